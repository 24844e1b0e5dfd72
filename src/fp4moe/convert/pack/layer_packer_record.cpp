// The notes of packing on a layer: for the manifest, and in sentences.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"

namespace fp4moe::convert {

Json LayerPacker::record() const {
  Json record = Json::object();
  const ScalarProblem problem = scalar_problem();
  if (layout_.scalars != nullptr && layout_.scalars->has_folded_exponents) {
    const auto common = [](const std::vector<int>& all) { return all.empty() ? 0 : all[0]; };
    record["w13_exponent"] = common(problem.w13_exponents);
    record["w2_exponent"] = common(problem.w2_exponents);
  }
  Json& experts = record["experts"] = Json::array();
  const bool has_scalars = layout_.format == layout::WeightFormat::nvfp4;
  const auto bits = [](const std::optional<float>& value) -> Json {
    if (!value) return nullptr;
    return fmt::format("{:08x}", std::bit_cast<std::uint32_t>(*value));
  };
  for (const Facts& facts : facts_) {
    Json expert = Json::object();
    const ExpertScalars& s = facts.scalars;
    if (has_scalars) {
      expert["global"] = {bits(s.gate_global), bits(s.up_global), bits(s.down_global)};
      expert["input"] = {bits(s.gate_input), bits(s.up_input), bits(s.down_input)};
    }
    if (layout_.scale_transform != nullptr)
      expert["scales"] = {facts.w13.smallest, facts.w13.largest, facts.w2.smallest,
                          facts.w2.largest};
    if (facts.zeroed_blocks != 0) expert["zeroed_blocks"] = facts.zeroed_blocks;
    experts.push_back(std::move(expert));
  }
  return record;
}

Result<Done> LayerPacker::restore(const Json& record) {
  const Error broken = invalid("converted.manifest", "the record of a layer is damaged")
                           .expects(fmt::format("what packing noted of {} experts", facts_.size()),
                                    "fields that are missing or of another form")
                           .try_this("convert the checkpoint again");
  if (!record.is_object() || !record.contains("experts") || !record["experts"].is_array() ||
      record["experts"].size() != facts_.size())
    return broken;
  const auto float_of = [](const Json& value) -> std::optional<float> {
    if (!value.is_string() || value.string().size() != 8) return std::nullopt;
    std::uint32_t bits = 0;
    for (const char digit : value.string()) {
      const std::size_t at = std::string_view("0123456789abcdef").find(digit);
      if (at == std::string_view::npos) return std::nullopt;
      bits = bits << 4 | static_cast<std::uint32_t>(at);
    }
    return std::bit_cast<float>(bits);
  };
  const bool has_scalars = layout_.format == layout::WeightFormat::nvfp4;
  for (std::size_t e = 0; e < facts_.size(); ++e) {
    const Json& expert = record["experts"][e];
    const auto list = [&](const char* key, std::size_t size) {
      return expert.is_object() && expert.contains(key) && expert[key].is_array() &&
             expert[key].size() == size;
    };
    Facts& facts = facts_[e];
    if (has_scalars) {
      if (!list("global", 3) || !list("input", 3)) return broken;
      const std::optional<float> global[] = {float_of(expert["global"][0]),
                                             float_of(expert["global"][1]),
                                             float_of(expert["global"][2])};
      if (!global[0] || !global[1] || !global[2]) return broken;
      facts.scalars = {*global[0],
                       *global[1],
                       *global[2],
                       float_of(expert["input"][0]),
                       float_of(expert["input"][1]),
                       float_of(expert["input"][2])};
    }
    if (layout_.scale_transform != nullptr) {
      if (!list("scales", 4)) return broken;
      std::array<std::uint8_t, 4> read{};
      for (std::size_t i = 0; i < 4; ++i) {
        const Json& byte = expert["scales"][i];
        if (!byte.is_number_unsigned() || byte.get<std::uint64_t>() > 255) return broken;
        read[i] = byte.get<std::uint8_t>();
      }
      facts.w13 = {.largest = read[1], .smallest = read[0]};
      facts.w2 = {.largest = read[3], .smallest = read[2]};
    }
    facts.is_noted = true;
  }
  return Done{};
}

std::vector<std::string> LayerPacker::losses() const {
  std::vector<std::string> found;
  std::uint64_t zeroed = 0, rounded = 0, negative = 0;
  for (const Facts& facts : facts_) {
    zeroed += facts.zeroed_blocks;
    rounded += facts.bias_rounded ? 1 : 0;
    negative += facts.w13.has_negative || facts.w2.has_negative ? 1 : 0;
  }
  if (layout_.has_no_negative_zero)
    found.emplace_back("the sign of FP4 zeros is cleared and cannot be restored");
  if (zeroed != 0)
    found.push_back(
        fmt::format("{} blocks with scale 0 had codes, which are written as 0", zeroed));
  if (rounded != 0)
    found.push_back(fmt::format("biases of {} experts are rounded to the layout's type", rounded));
  const ScaleTransform* transform = layout_.scale_transform;
  if (transform == nullptr) return found;
  if (transform->is_unsigned && negative != 0)
    found.push_back(fmt::format("negative block scales of {} experts lose their sign", negative));
  for (const layout::ScaleLoss& loss : transform->losses)
    if (any_scale_becomes(loss.byte, loss.extreme)) found.emplace_back(loss.says);
  return found;
}

std::vector<std::string> LayerPacker::warnings() const {
  const bool keeps_both = layout_.scalars == nullptr || layout_.scalars->has_gate_and_up;
  if (keeps_both || problem_.order == checkpoint::RowOrder::single) return {};
  const auto differ = std::ranges::count_if(facts_, [](const Facts& facts) {
    return facts.scalars.gate_global != facts.scalars.up_global;
  });
  if (differ == 0) return {};
  return {fmt::format(
      "gate and up of {} experts have different global scales; the kernel uses the gate's for both",
      differ)};
}

// An extreme positive scale of an expert is written as `byte`.
bool LayerPacker::any_scale_becomes(std::uint8_t byte, std::uint8_t ScaleExtremes::*extreme) const {
  const ScalarProblem problem = scalar_problem();
  const auto becomes = [&](const ScaleExtremes& extremes, int exponent) {
    const std::uint8_t code = extremes.*extreme;
    return code > 0 && code < 0x80 && layout_.scale_transform->byte(code, exponent) == byte;
  };
  for (std::size_t e = 0; e < facts_.size(); ++e)
    if (becomes(facts_[e].w13, problem.w13_exponents[e]) ||
        becomes(facts_[e].w2, problem.w2_exponents[e]))
      return true;
  return false;
}

}  // namespace fp4moe::convert
