// The names of the tensors around the experts (embeddings, norms, attention, router) in the three
// families of names. A table per pair; what a table does not know keeps its name.
//
// The bytes stay as they are, with one exception of form: OpenAI's gpt-oss joins the rows of q, k
// and v in one tensor.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert_name.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

constexpr NameFamily name_family(Dialect dialect) {
  return dialect == Dialect::gguf     ? NameFamily::gguf
         : dialect == Dialect::openai ? NameFamily::openai
                                      : NameFamily::hugging_face;
}

// The numbers of MoE layers by prefix, which their routers' names begin with.
using LayerNumbers = std::map<std::string, std::uint64_t, std::less<>>;
LayerNumbers layer_numbers(const auto& layers) {
  LayerNumbers numbers;
  for (const auto& layer : layers) numbers[layer.prefix] = layer.index;
  return numbers;
}

struct RenameContext {
  std::string model_type{};
  std::uint64_t query_rows = 0, key_rows = 0;  // 0: the configuration does not say
  std::map<std::string, std::string> names{};  // GGUF's to Hugging Face's, before any table
  LayerNumbers layers{};                       // without them routers keep their names
};

// The rows come from config.json: heads * head_dim, key-value heads * head_dim.
RenameContext rename_context(std::string_view model_type, const Json& config, LayerNumbers layers);

// The tensors under the names of another family. Errors: names.qkv, also where q, k and v could not
// be told apart again.
Result<std::vector<OtherTensor>> rename_others(std::vector<OtherTensor> others, NameFamily from,
                                               NameFamily to, const RenameContext& context);

// The entries of RenameContext::names that the way back from GGUF needs to restore these names.
std::map<std::string, std::string> names_to_keep(const std::vector<OtherTensor>& others,
                                                 const RenameContext& context);

// One name from Hugging Face to GGUF and back.
std::string gguf_name(std::string_view name, std::string_view model_type);
std::string hugging_face_name(std::string_view gguf, std::string_view model_type);

}  // namespace fp4moe::checkpoint
