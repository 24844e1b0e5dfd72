// A converted folder opened for use: files are mapped, nothing is copied, and whatever does not
// agree with the manifest or with what the caller expects is refused by a sentence that names both
// sides. Checksums are verify's business.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::convert {

// The layout that a caller will compute with; absent: any.
struct Expectations {
  std::optional<std::string> layout{}, generation{}, backend{};
  std::optional<checkpoint::Slice> slice{};
  std::optional<layout::Sizes> sizes{}, padded{};  // of every layer
};

struct NamedView {
  std::string name{};  // "w13", "w13_scale", ...
  tensor::TensorView view{};
};

class ConvertedFolder {
 public:
  // Errors: converted.manifest, converted.version, converted.file (missing, or of another size),
  // converted.tensor (other names, types or shapes than the manifest's), converted.layout,
  // converted.generation, converted.backend, converted.shard, converted.size.
  static Result<ConvertedFolder> open(const std::string& path, const Expectations& expected = {});

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  // Valid while this lives; the tensors of a layer in the packer's order.
  std::vector<NamedView> layer(std::size_t number) const;
  // The manifest's. Errors: layout.unknown, layout.generation, converted.generation (the folder is
  // older than the layout's first change).
  Result<const layout::Layout*> layout() const;
  // A packer of the layer's layout that can unpack it. Errors: as layout(), converted.tensor.
  Result<LayerPacker> packer(std::size_t number) const;

  // By position in manifest().files and its tensors.
  const tensor::MappedFile& mapped(std::size_t file) const { return files_[file].mapped; }
  std::span<const std::byte> bytes(std::size_t file, std::size_t tensor) const;
  std::size_t file_of_layer(std::size_t number) const;
  // A tensor of any file by its whole name; empty when there is none.
  struct TensorIndex {
    std::size_t file = 0, tensor = 0;
  };
  std::optional<TensorIndex> find(std::string_view file, std::string_view tensor) const;

 private:
  struct OpenFile {
    tensor::MappedFile mapped{};
    std::vector<std::uint64_t> begins{};
  };
  Result<Done> open_file(const FileRecord& record, const LayerRecord* layer);

  std::string path_{};
  Manifest manifest_{};
  std::vector<OpenFile> files_{};
};

}  // namespace fp4moe::convert
