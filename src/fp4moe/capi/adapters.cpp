// fp4moe_adapters_*: LoRA adapters of a layer, from PEFT's folders or from memory.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/capi/border.hpp"
#include "fp4moe/capi/rows.hpp"

namespace fp4moe::capi {
namespace {

constexpr std::uint64_t kMaxAdapters = 1u << 16;

Result<Done> check_adapter_count(std::uint64_t count) {
  if (count != 0 && count <= kMaxAdapters) return Done{};
  return usage("lora.folders", "too many adapters")
      .expects(fmt::format("1 to {}", kMaxAdapters), fmt::format("{}", count));
}

Result<Done> open_adapters(const fp4moe_layer* layer, std::span<const char* const> names,
                           fp4moe_adapters** adapters) {
  const auto open = find(layer);
  if (!open) return open.why();
  if ((*open)->model == nullptr)
    return usage("lora.model", "folders of adapters name a checkpoint's layers")
        .expects("a layer of a model", "one from weights in memory")
        .try_this("read the adapter and call fp4moe_adapters_from_memory");
  std::vector<std::string> folders;
  for (const char* name : names) {
    Result<std::string> folder = require_text(name, "an adapter's folder");
    if (!folder) return folder.why();
    folders.push_back(*std::move(folder));
  }
  Result<moe::LoraSet> set =
      (*open)->model->adapters((*open)->number, folders, (*open)->layer.slice());
  if (!set) return set.why();
  *adapters = add(std::make_shared<const OpenAdapters>(OpenAdapters{*open, *std::move(set)}));
  return Done{};
}

Result<Done> take_pair(const fp4moe_lora_pair* pointer, checkpoint::StackedPair& to) {
  if (pointer == nullptr) return Done{};
  const auto given = take_struct(pointer, "fp4moe_lora_pair");
  if (!given) return given.why();
  const auto dtype = dtype_of(given->dtype, "factors");
  if (!dtype) return dtype.why();
  const auto factor = [&](const void* data, std::uint64_t bytes) {
    return checkpoint::StackedFactor{
        {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)}, *dtype};
  };
  if (given->a == nullptr || given->b == nullptr)
    return null_argument(given->a == nullptr ? "a pair's A" : "a pair's B");
  to = {factor(given->a, given->a_bytes), factor(given->b, given->b_bytes)};
  return Done{};
}

Result<checkpoint::LoraWeights> lora_of(const fp4moe_lora& given) {
  checkpoint::LoraWeights result{
      .rank = given.rank, .scale = given.scale == 0 ? 1.0f : static_cast<float>(given.scale)};
  for (const auto& [from, to] :
       {std::pair{given.w13, &result.w13}, std::pair{given.gate, &result.gate},
        std::pair{given.up, &result.up}, std::pair{given.w2, &result.down}})
    if (const auto fine = take_pair(from, *to); !fine) return fine.why();
  return result;
}

Result<Done> adapters_from_memory(const fp4moe_layer* layer, const fp4moe_lora* loras,
                                  std::uint64_t count, fp4moe_adapters** adapters) {
  const auto open = find(layer);
  if (!open) return open.why();
  const auto given = take_structs(loras, count, kMaxAdapters, "fp4moe_lora");
  if (!given) return given.why();
  std::vector<checkpoint::LoraWeights> all;
  for (const fp4moe_lora& one : *given) {
    Result<checkpoint::LoraWeights> lora = lora_of(one);
    if (!lora) return lora.why();
    all.push_back(*lora);
  }
  const plan::Model& model = (*open)->layer.facts().model;
  Result<moe::LoraSet> set =
      moe::LoraSet::of(all, {model.shape, model.rule}, {.slice = (*open)->layer.slice()});
  if (!set) return set.why();
  *adapters = add(std::make_shared<const OpenAdapters>(OpenAdapters{*open, *std::move(set)}));
  return Done{};
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;

extern "C" {

fp4moe_status fp4moe_adapters_open(const fp4moe_layer* layer, const char* const* folders,
                                   uint64_t count, fp4moe_adapters** adapters) {
  return capi::guarded([&]() -> fp4moe::Result<fp4moe::Done> {
    if (const auto fine = capi::clear(adapters, "the place for the adapters"); !fine)
      return fine.why();
    if (const auto fine = capi::check_adapter_count(count); !fine) return fine.why();
    if (folders == nullptr) return capi::null_argument("the adapters' folders");
    return capi::open_adapters(layer, {folders, static_cast<std::size_t>(count)}, adapters);
  });
}

fp4moe_status fp4moe_adapters_from_memory(const fp4moe_layer* layer, const fp4moe_lora* loras,
                                          uint64_t count, fp4moe_adapters** adapters) {
  return capi::guarded([&]() -> fp4moe::Result<fp4moe::Done> {
    if (const auto fine = capi::clear(adapters, "the place for the adapters"); !fine)
      return fine.why();
    if (const auto fine = capi::check_adapter_count(count); !fine) return fine.why();
    return capi::adapters_from_memory(layer, loras, count, adapters);
  });
}

void fp4moe_adapters_close(fp4moe_adapters* adapters) { capi::close(adapters); }

}  // extern "C"
