// The names of a checkpoint before it was transcoded, so that the way back restores them: one line
// of JSON in the metadata of the files.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::string_view kOriginKey = "fp4moe.origin";

// Empty: not known.
struct Origin {
  std::string prefix{};                               // "model.layers.{}.mlp."
  std::string projections{};                          // "gate_proj,up_proj,down_proj"
  std::string quark_grouping{}, modelopt_grouping{};  // as grouping_text says them
  std::string bias_dtype{};                           // "BF16"
  std::string input_dtype{};                          // of input scales; empty: F32
  // Tensors around the experts whose names no table gives back: GGUF's name, the one before.
  std::map<std::string, std::string> names{};
  // Vectors around the experts that GGUF has as F32: GGUF's name, the type before ("BF16", "F16").
  std::map<std::string, std::string> dtypes{};
};

std::string to_text(const Origin& origin);
// The origin that the files record; unknown keys are ignored. Errors: transcode.origin.
Result<Origin> read_origin(const tensor::Store& store);

std::string projections_text(const ProjectionNames& names);

}  // namespace fp4moe::checkpoint
