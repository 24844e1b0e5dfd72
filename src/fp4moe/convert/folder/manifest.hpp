// fp4moe.json: what a converted folder is, what its files hold, and their checksums. It says
// nothing of time or threads: the same source and options always give the same bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/convert/folder/checksum.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"

namespace fp4moe::convert {

inline constexpr std::string_view kManifestName = "fp4moe.json";
inline constexpr std::string_view kSourceName = "source.safetensors";
// The version of the folder and its tags; another one is refused.
inline constexpr std::string_view kFolderVersion = "1";

struct TensorRecord {
  std::string name{};
  tensor::DType dtype = tensor::DType::u8;
  tensor::Shape shape{};
  std::uint64_t bytes = 0, piece_bytes = 0;
  Digest checksum{};
};

// A safetensors file of the folder.
struct FileRecord {
  std::string name{};
  std::uint64_t bytes = 0, header_bytes = 0;
  Digest header{};  // digest of the header's bytes
  std::vector<TensorRecord> tensors{};
};

struct LayerRecord {
  std::uint64_t index = 0;
  std::string prefix{};  // of the layer in the checkpoint
  std::string file{};
  Problem problem{};  // params_type is the folder's
  Json record{};      // LayerPacker's
  Digest content{};   // digest of the experts' content digests, see content.hpp
  std::vector<std::string> losses{};
};

// A file beside the tensors: config.json, tokenizer, ...
struct CompanionRecord {
  std::string name{};
  std::uint64_t bytes = 0;
  Digest checksum{};  // in pieces of kPieceBytes
};

struct SourceFile {
  std::string name{};
  std::uint64_t bytes = 0;
  Digest frame{};  // of all its bytes outside tensors
};

struct Manifest {
  std::string layout{}, generation{}, backend{};  // backend is empty where a layout was asked for
  std::string library{};                          // that wrote it: "0.1.0"
  checkpoint::Slice slice{};
  tensor::DType params_type = tensor::DType::bf16;
  bool experts_only = false;
  std::string source_path{}, dialect{};
  std::vector<SourceFile> source_files{};
  std::vector<LayerRecord> layers{};
  std::vector<FileRecord> files{};
  std::vector<CompanionRecord> companions{};

  const FileRecord* find_file(std::string_view name) const;
};

Json to_json(const FileRecord& file);
Json to_json(const LayerRecord& layer);
Result<FileRecord> file_from_json(const Json& json);
Result<LayerRecord> layer_from_json(const Json& json);

// The whole document, its own checksum last.
std::string to_text(const Manifest& manifest);
// Refuses anything but what to_text writes, so that no byte can change unseen. Errors:
// converted.manifest, converted.version.
Result<Manifest> manifest_from_text(std::string_view text);
Result<Manifest> read_manifest(const std::string& folder);

// "0/8"
std::string text(checkpoint::Rank rank);
std::optional<checkpoint::Rank> rank_from_text(std::string_view text);
std::string_view name(checkpoint::Placement placement);
std::optional<checkpoint::Placement> placement_from_name(std::string_view name);

// The tags in the `__metadata__` of a layer's file.
tensor::Metadata tags_of(const Manifest& manifest, const LayerRecord& layer);

// The name of a packed tensor in its file: "model.layers.3.mlp.experts.w13".
std::string packed_name(const LayerRecord& layer, std::string_view tensor);

// "NAME (GENERATION)", or the name alone where a layout has no generations.
std::string layout_text(std::string_view layout, std::string_view generation);

}  // namespace fp4moe::convert
