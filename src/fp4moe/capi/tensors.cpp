// fp4moe_model_from_tensors: a checkpoint that the caller has read already.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/capi/border.hpp"

namespace fp4moe::capi {
namespace {

constexpr std::uint64_t kMaxDimensions = 16, kMaxTensors = 1u << 24;

Result<tensor::MemoryTensor> tensor_of(const fp4moe_tensor& given) {
  Result<std::string> name = require_text(given.name, "a tensor's name");
  if (!name) return name.why();
  const std::string word = text_or(given.dtype, "");
  const auto dtype = tensor::dtype_from_safetensors(word);
  if (!dtype)
    return usage("tensors.type", "the tensor has a type that no checkpoint has")
        .at(*name)
        .expects("a type of safetensors: \"U8\", \"BF16\", \"F8_E4M3\"", fmt::format("'{}'", word));
  if (given.dimensions > kMaxDimensions)
    return usage("tensors.shape", "the tensor has too many dimensions")
        .at(*name)
        .expects(fmt::format("at most {}", kMaxDimensions), fmt::format("{}", given.dimensions));
  if (given.dimensions != 0 && given.shape == nullptr) return null_argument("a tensor's shape");
  if (given.bytes != 0 && given.data == nullptr) return null_argument("a tensor's data");
  return tensor::MemoryTensor{
      .name = *std::move(name),
      .dtype = *dtype,
      .shape = {given.shape, given.shape + given.dimensions},
      .bytes = {static_cast<const std::byte*>(given.data), static_cast<std::size_t>(given.bytes)}};
}

Result<std::vector<tensor::MemoryTensor>> tensors_of(const fp4moe_tensors& given) {
  if (given.count > kMaxTensors)
    return usage("tensors.count", "too many tensors")
        .expects(fmt::format("at most {}", kMaxTensors), fmt::format("{}", given.count));
  const auto all = take_structs(given.tensors, given.count, kMaxTensors, "fp4moe_tensor");
  if (!all) return all.why();
  std::vector<tensor::MemoryTensor> result;
  result.reserve(all->size());
  for (const fp4moe_tensor& one : *all) {
    Result<tensor::MemoryTensor> tensor = tensor_of(one);
    if (!tensor) return tensor.why();
    result.push_back(*std::move(tensor));
  }
  return result;
}

Result<Done> model_of_tensors(const fp4moe_tensors* pointer, fp4moe_model** model) {
  if (const auto fine = clear(model, "the place for the model"); !fine) return fine.why();
  const auto given = take_struct(pointer, "fp4moe_tensors");
  if (!given) return given.why();
  Result<std::vector<tensor::MemoryTensor>> tensors = tensors_of(*given);
  if (!tensors) return tensors.why();
  std::vector<tensor::Document> documents;
  if (given->config != nullptr) documents.push_back({"config.json", given->config});
  if (given->quant_config != nullptr)
    documents.push_back({"hf_quant_config.json", given->quant_config});
  Result<tensor::Store> store = tensor::Store::of(*std::move(tensors), std::move(documents));
  if (!store) return store.why();
  Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::of(*std::move(store));
  if (!checkpoint) return checkpoint.why();
  Result<runtime::Model> result = runtime::Model::of(*std::move(checkpoint));
  if (!result) return result.why();
  *model = add(std::make_shared<const runtime::Model>(*std::move(result)));
  return Done{};
}

}  // namespace
}  // namespace fp4moe::capi

extern "C" {

fp4moe_status fp4moe_model_from_tensors(const fp4moe_tensors* tensors, fp4moe_model** model) {
  return fp4moe::capi::guarded([&] { return fp4moe::capi::model_of_tensors(tensors, model); });
}

}  // extern "C"
