// What packing noted of a layer: for the manifest, and in sentences.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"

namespace fp4moe::convert {

using layout::ScaleRule;

Json LayerPacker::record() const {
  Json record = Json::object();
  const ScalarProblem problem = scalar_problem();
  if (layout_.scalars == layout::ScalarRule::marlin) {
    record["w13_exponent"] = problem.w13_exponent;
    record["w2_exponent"] = problem.w2_exponent;
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
    if (needs_extremes(layout_.scale_rule))
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
    if (needs_extremes(layout_.scale_rule)) {
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
  if (layout_.clears_negative_zero)
    found.emplace_back("the sign of FP4 zeros is cleared and cannot be restored");
  if (zeroed != 0)
    found.push_back(
        fmt::format("{} blocks with scale 0 had codes, which are written as 0", zeroed));
  if (rounded != 0)
    found.push_back(fmt::format("biases of {} experts are rounded to the layout's type", rounded));
  const bool is_marlin = layout_.scalars == layout::ScalarRule::marlin;
  if (is_marlin && negative != 0)
    found.push_back(fmt::format("negative block scales of {} experts lose their sign", negative));
  if (is_marlin && layout_.scale_rule == ScaleRule::marlin_2026_04 &&
      any_scale_becomes(0, &ScaleExtremes::smallest))
    found.emplace_back("block scales too small for the kernel are written as 0");
  if (is_marlin && layout_.scale_rule == ScaleRule::marlin_2026_03 &&
      any_scale_becomes(0xF8, &ScaleExtremes::largest))
    found.emplace_back("block scales too large for the common exponent are written as infinity");
  return found;
}

std::vector<std::string> LayerPacker::warnings() const {
  const bool keeps_both = layout_.scalars == layout::ScalarRule::none ||
                          layout_.scalars == layout::ScalarRule::global_scales ||
                          layout_.scalars == layout::ScalarRule::native_sm90_offsets;
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
    const std::optional<ByteTable> table = scale_table(layout_.scale_rule, exponent);
    const std::uint8_t code = extremes.*extreme;
    return code > 0 && code < 0x80 && (*table)[code] == byte;
  };
  return std::ranges::any_of(facts_, [&](const Facts& facts) {
    return becomes(facts.w13, problem.w13_exponent) || becomes(facts.w2, problem.w2_exponent);
  });
}

}  // namespace fp4moe::convert
