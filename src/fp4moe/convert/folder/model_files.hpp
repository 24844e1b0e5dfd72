// The files that make a converted folder a model folder, which serving programs open by its path:
//
//   config.json                     the checkpoint's, with a quantization_config that names fp4moe
//   others.safetensors.index.json   where the tensors that are not experts' lie
//
// The checkpoint's own files of these names are kept in source.safetensors.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/convert/folder/manifest.hpp"

namespace fp4moe::convert {

inline constexpr std::string_view kConfigName = "config.json";
// Not "model.safetensors.index.json": a program that does not know fp4moe must not find weights
// here, and go on without the experts.
inline constexpr std::string_view kOthersIndexName = "others.safetensors.index.json";

// True if conversion makes a file of this name.
bool is_generated(std::string_view name);

// A configuration with fp4moe as its quantization method; the method before is its "source", or
// what `beside` says, the text of hf_quant_config.json. All other bytes stay. Nothing where the text
// is no JSON object.
std::optional<std::string> config_for_fp4moe(std::string_view config, std::string_view beside = {});

// The index of a folder's other tensors; `prefix` is put before the names of files.
std::string others_index(const std::vector<FileRecord>& files, std::string_view prefix = {});

// OUT of a model whose ranks are OUT/rank-0, OUT/rank-1, ...: the files of the first one that are
// not tensors, and an index that leads there. Written again where they are. Errors: those of files.
Result<Done> write_parent(const std::string& out, const std::string& first);

}  // namespace fp4moe::convert
