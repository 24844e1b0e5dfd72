// The cases about whole blocks: MXFP4, MXFP8 and NVFP4.
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nibbles.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "golden/fields.hpp"
#include "golden/formats.hpp"

namespace fp4moe::golden {
namespace {

// One code for each value of the block.
struct Quantized {
  std::uint8_t scale = 0;
  std::vector<std::uint8_t> codes{};
};

std::vector<std::uint8_t> nibbles(std::span<const std::uint8_t> packed, std::size_t count) {
  std::vector<std::uint8_t> codes(count);
  for (std::size_t i = 0; i < count; ++i) codes[i] = formats::nibble(packed, i);
  return codes;
}

Result<std::vector<float>> inputs_field(const Json& item, std::size_t max) {
  Result<std::vector<float>> inputs = floats_field(item, "inputs");
  if (!inputs) return inputs;
  if (inputs->empty() || inputs->size() > max)
    return malformed("inputs", "1 to " + std::to_string(max) + " values",
                     std::to_string(inputs->size()));
  if (!item.contains("in_dtype")) return inputs;
  const Result<std::string> dtype = string_field(item, "in_dtype");
  if (!dtype) return dtype.why();
  if (*dtype != "f32" && *dtype != "bf16" && *dtype != "f16")
    return malformed("in_dtype", "f32, bf16 or f16", "\"" + *dtype + "\"");
  for (const float value : *inputs) {
    const bool fits = *dtype == "bf16"
                          ? formats::Bf16::decode(formats::Bf16::encode(value)) == value
                      : *dtype == "f16" ? formats::F16::decode(formats::F16::encode(value)) == value
                                        : true;
    if (!fits && !formats::is_nan(value))
      return malformed("inputs", "values that " + *dtype + " can hold", show(value));
  }
  return inputs;
}

// `bits` 4: packed codes, a whole block or just as many bytes as the values need. 8: one byte each.
Result<std::vector<std::uint8_t>> block_codes_field(const Json& item, std::size_t count,
                                                    std::size_t block, int bits) {
  Result<std::vector<std::uint8_t>> bytes = bytes_field(item, "codes");
  if (!bytes) return bytes;
  const std::size_t needed = bits == 4 ? (count + 1) / 2 : count;
  const std::size_t whole = bits == 4 ? block / 2 : block;
  if (bytes->size() != needed && bytes->size() != whole)
    return malformed("codes", std::to_string(needed) + " bytes", std::to_string(bytes->size()));
  if (bits == 4) return nibbles(*bytes, count);
  bytes->resize(count);
  return bytes;
}

// The indices whose codes are not compared.
Result<std::vector<bool>> unspecified_field(const Json& item, std::size_t count) {
  std::vector<bool> skip(count);
  const auto indices = item.find("unspecified");
  if (indices == item.end()) return skip;
  const std::string range = "indices below " + std::to_string(count);
  if (!indices->is_array()) return malformed("unspecified", range, indices->type_name());
  for (const Json& index : *indices) {
    const bool inside = index.is_number_integer() && index.get<std::int64_t>() >= 0 &&
                        index.get<std::uint64_t>() < count;
    if (!inside)
      return malformed("unspecified", range, index.is_number() ? index.dump() : index.type_name());
    skip[index.get<std::size_t>()] = true;
  }
  return skip;
}

std::optional<Mismatch> compare(const Quantized& expected, const Quantized& found,
                                std::span<const float> inputs, const std::vector<bool>& skip) {
  if (expected.scale != found.scale)
    return Mismatch{"the block's scale differs", std::to_string(expected.scale),
                    std::to_string(found.scale)};
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!skip[i] && expected.codes[i] != found.codes[i])
      return Mismatch{"the code of element " + std::to_string(i) + ", " + show(inputs[i]) +
                          ", differs (scale " + std::to_string(found.scale) + ")",
                      std::to_string(expected.codes[i]), std::to_string(found.codes[i])};
  return std::nullopt;
}

// How a rule turns values into a scale and one code per value.
struct BlockRule {
  std::size_t block = 0;
  int bits = 0;
  Quantized (*quantize)(std::string_view rule, std::span<const float> x) = nullptr;
};

std::optional<BlockRule> block_rule(std::string_view name) {
  if (formats::mxfp4_rule_from_name(name))
    return BlockRule{formats::kMxfp4Block, 4, [](std::string_view rule, std::span<const float> x) {
                       Quantized result;
                       std::array<std::uint8_t, formats::kMxfp4Bytes> packed{};
                       formats::quantize_mxfp4(*formats::mxfp4_rule_from_name(rule), x,
                                               result.scale, packed);
                       result.codes = nibbles(packed, x.size());
                       return result;
                     }};
  if (formats::mxfp8_rule_from_name(name))
    return BlockRule{formats::kMxfp8Block, 8, [](std::string_view rule, std::span<const float> x) {
                       Quantized result;
                       result.codes.resize(formats::kMxfp8Block);
                       formats::quantize_mxfp8(*formats::mxfp8_rule_from_name(rule), x,
                                               result.scale, result.codes);
                       result.codes.resize(x.size());
                       return result;
                     }};
  return std::nullopt;
}

}  // namespace

Outcome check_block(const Json& item) {
  const Result<std::string> name = string_field(item, "rule");
  if (!name) return name.why();
  const std::optional<BlockRule> rule = block_rule(*name);
  if (!rule) return malformed("rule", "a known block rule", "\"" + *name + "\"");
  const Result<std::vector<float>> inputs = inputs_field(item, rule->block);
  if (!inputs) return inputs.why();
  const Result<std::uint64_t> scale = number_field(item, "scale", 255);
  if (!scale) return scale.why();
  const auto codes = block_codes_field(item, inputs->size(), rule->block, rule->bits);
  if (!codes) return codes.why();
  const Result<std::vector<bool>> skip = unspecified_field(item, inputs->size());
  if (!skip) return skip.why();
  const Quantized expected{static_cast<std::uint8_t>(*scale), *codes};
  return compare(expected, rule->quantize(*name, *inputs), *inputs, *skip);
}

Outcome check_nvfp4(const Json& item) {
  const Result<float> global_scale = float_field(item, "global_scale");
  if (!global_scale) return global_scale.why();
  const Result<std::vector<float>> inputs = inputs_field(item, formats::kNvfp4Block);
  if (!inputs) return inputs.why();
  const Result<std::uint64_t> scale = number_field(item, "scale_e4m3", 255);
  if (!scale) return scale.why();
  Result<std::vector<std::uint8_t>> codes =
      block_codes_field(item, inputs->size(), formats::kNvfp4Block, 4);
  if (!codes) return codes.why();
  const Result<std::vector<bool>> skip = unspecified_field(item, inputs->size());
  if (!skip) return skip.why();

  Quantized found;
  std::array<std::uint8_t, formats::kNvfp4Bytes> packed{};
  formats::quantize_nvfp4(*global_scale, *inputs, found.scale, packed);
  found.codes = nibbles(packed, inputs->size());
  Quantized expected{static_cast<std::uint8_t>(*scale), *codes};
  for (std::vector<std::uint8_t>* list : {&found.codes, &expected.codes})
    for (std::uint8_t& code : *list)
      if (code == 8) code = 0;  // the makers of these data disagree on the sign of zero
  return compare(expected, found, *inputs, *skip);
}

}  // namespace fp4moe::golden
