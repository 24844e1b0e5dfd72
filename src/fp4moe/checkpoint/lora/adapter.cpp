#include "fp4moe/checkpoint/lora/adapter.hpp"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/lora/adapter_builder.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

Error no_adapter(const std::string& folder, std::string_view file, std::string_view remedy) {
  return invalid("adapter.missing", "this is no adapter as PEFT saves it")
      .in(folder)
      .expects(file, "no such file")
      .try_this(remedy);
}

// Reads numbers of one type; the type is asked once, not for every number.
template <class Decode>
std::optional<std::uint64_t> decode_rows(Decode decode, const FactorPlace& place,
                                         const FactorPart& part, std::span<float> out) {
  std::size_t at = 0;
  for (std::uint64_t row = part.rows.begin; row < part.rows.end; ++row) {
    const std::uint64_t begin = place.first + row * place.row_step;
    for (std::uint64_t column = part.columns.begin; column < part.columns.end; ++column) {
      const std::uint64_t index = begin + column * place.column_step;
      const float value = decode(index) * part.scale;
      if (!std::isfinite(value)) return index;
      out[at++] = value;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<AdapterTarget> adapter_targets(const Checkpoint& checkpoint) {
  std::vector<AdapterTarget> targets;
  for (const LayerTensors& layer : checkpoint.layers())
    targets.push_back({.index = layer.index,
                       .prefix = layer.prefix,
                       .shape = layer.shape,
                       .is_gpt_oss = split_rule(checkpoint, layer) == SplitRule::ceil_blocks});
  return targets;
}

Result<Adapter> Adapter::open(const std::string& folder, std::vector<AdapterTarget> targets) {
  namespace fs = std::filesystem;
  const std::string config_path = folder + "/adapter_config.json";
  const std::string tensors_path = folder + "/adapter_model.safetensors";
  std::error_code code;
  if (!fs::exists(folder, code))
    return system_error("file.open", "cannot open", code ? code.value() : ENOENT).in(folder);
  if (!fs::exists(config_path, code))
    return no_adapter(folder, "adapter_config.json", "Give the folder that save_pretrained wrote");
  if (!fs::exists(tensors_path, code))
    return no_adapter(folder, "adapter_model.safetensors",
                      fs::exists(folder + "/adapter_model.bin", code)
                          ? "Save it again with safe_serialization=True: adapter_model.bin is a "
                            "program, not data"
                          : "Give the folder that save_pretrained wrote");
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    if (const auto inside = tensor::file_inside(folder, name); !inside) return inside.why();
  const Result<Json> document = read_json_file(config_path, kMaxConfigBytes);
  if (!document) return document.why();
  Result<AdapterConfig> config = parse_adapter_config(*document, config_path);
  if (!config) return config.why();
  Result<tensor::Store> store = tensor::Store::open(tensors_path);
  if (!store) return store.why();
  Adapter adapter;
  adapter.folder_ = folder;
  adapter.config_ = *std::move(config);
  adapter.store_ = std::make_unique<tensor::Store>(*std::move(store));
  adapter.targets_ = std::move(targets);
  adapter.places_.resize(adapter.targets_.size());
  if (Result<Done> built = AdapterBuilder(adapter).build(); !built) return built.why();
  return adapter;
}

const LowRankPlace& Adapter::place(std::size_t layer, Projection which,
                                   std::uint64_t expert) const {
  static const LowRankPlace kNothing{};
  if (places_[layer].empty()) return kNothing;
  return places_[layer][expert][static_cast<std::size_t>(which)];
}

bool Adapter::touches(std::size_t layer, std::uint64_t expert) const {
  if (places_[layer].empty()) return false;
  for (const LowRankPlace& one : places_[layer][expert])
    if (!one.empty()) return true;
  return false;
}

std::optional<std::uint64_t> decode_factor(const std::byte* bytes, tensor::DType dtype,
                                           const FactorPlace& place, const FactorPart& part,
                                           std::span<float> out) {
  const auto half = [bytes](std::uint64_t index) {
    std::uint16_t code = 0;
    std::memcpy(&code, bytes + index * 2, 2);
    return code;
  };
  switch (dtype) {
    case tensor::DType::bf16:
      return decode_rows([&](std::uint64_t i) { return formats::Bf16::decode(half(i)); }, place,
                         part, out);
    case tensor::DType::f16:
      return decode_rows([&](std::uint64_t i) { return formats::F16::decode(half(i)); }, place,
                         part, out);
    default:  // float32: others are refused when the adapter is opened
      return decode_rows(
          [bytes](std::uint64_t i) {
            float value = 0;
            std::memcpy(&value, bytes + i * 4, 4);
            return value;
          },
          place, part, out);
  }
}

Result<Done> read_factor(const Adapter& adapter, const FactorPlace& place, const FactorPart& part,
                         std::span<float> out) {
  const auto wrong = decode_factor(adapter.store().bytes(*place.tensor).data(),
                                   place.tensor->entry.dtype, place, part, out);
  if (!wrong) return Done{};
  return invalid("adapter.not_finite", "a number of the adapter is not finite once it is scaled")
      .in(adapter.store().path(*place.tensor))
      .at(place.tensor->entry.name)
      .expects("finite numbers", fmt::format("NaN or infinity at element {}", *wrong));
}

}  // namespace fp4moe::checkpoint
