// fp4moe numbers: what becomes of numbers in FP4, FP8 and scales, by every rule.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/formats/encodings.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nibbles.hpp"
#include "fp4moe/formats/nvfp4.hpp"

namespace fp4moe::cli {

Run declare_numbers(OptionSet& set);

namespace {

constexpr std::size_t kMaxNumbers = 32;  // a block of MXFP4

// JSON has no NaN and no infinity: they are texts.
Json json_of(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::optional<float> float_from(const std::string& text) {
  float value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end) return std::nullopt;
  if (code == std::errc::result_out_of_range) return std::strtof(text.c_str(), nullptr);
  return code == std::errc() ? std::optional(value) : std::nullopt;
}

Result<std::vector<float>> read_numbers(const std::vector<std::string>& words) {
  std::vector<float> numbers;
  for (const std::string& word : words) {
    const std::optional<float> value = float_from(word);
    if (!value)
      return usage("numbers.value", "invalid number")
          .expects("decimal numbers, nan or inf", "'" + printable(word) + "'");
    numbers.push_back(*value);
  }
  if (numbers.empty() || numbers.size() > kMaxNumbers)
    return usage("numbers.count", "a block has 1 to 32 numbers")
        .expects("1 to 32 numbers, separated by commas", std::to_string(numbers.size()));
  return numbers;
}

// A block after quantization by a rule. Scales are codes: one, or for NVFP4 one for each 16 numbers.
struct QuantizedBlock {
  std::string_view format, rule, used_by;
  std::vector<std::uint8_t> scales{}, codes{};
  std::vector<float> scale_values{}, values{};
  std::optional<float> global_scale{};
};

std::vector<std::uint8_t> nibbles_of(std::span<const std::uint8_t> bytes, std::size_t count) {
  std::vector<std::uint8_t> codes;
  for (std::size_t i = 0; i < count; ++i) codes.push_back(formats::nibble(bytes, i));
  return codes;
}

QuantizedBlock to_mxfp4(const formats::Mxfp4RuleRow& row, std::span<const float> x) {
  QuantizedBlock block{.format = "mxfp4", .rule = row.name, .used_by = row.used_by};
  std::uint8_t scale = 0;
  std::array<std::uint8_t, formats::kMxfp4Bytes> bytes{};
  formats::quantize_mxfp4(row.rule, x, scale, bytes);
  block.values.resize(x.size());
  formats::dequantize_mxfp4(scale, bytes, block.values);
  block.scales = {scale};
  block.scale_values = {formats::E8m0::decode(scale)};
  block.codes = nibbles_of(bytes, x.size());
  return block;
}

QuantizedBlock to_nvfp4(const formats::Nvfp4RuleRow& row, std::span<const float> x) {
  QuantizedBlock block{.format = "nvfp4", .rule = row.name, .used_by = row.used_by};
  const bool has_global = row.rule != formats::Nvfp4Rule::no_global;
  const float global = has_global ? formats::nvfp4_global_scale(formats::block_amax(x)) : 1.0f;
  if (has_global) block.global_scale = global;
  for (std::size_t from = 0; from < x.size(); from += formats::kNvfp4Block) {
    const auto part = x.subspan(from, std::min(formats::kNvfp4Block, x.size() - from));
    std::uint8_t scale = 0;
    std::array<std::uint8_t, formats::kNvfp4Bytes> bytes{};
    formats::quantize_nvfp4({.rule = row.rule, .global_scale = global}, part, scale, bytes);
    std::vector<float> back(part.size());
    formats::dequantize_nvfp4(scale, global, bytes, back);
    const auto codes = nibbles_of(bytes, part.size());
    block.scales.push_back(scale);
    block.scale_values.push_back(formats::E4m3fn::decode(scale));
    block.codes.insert(block.codes.end(), codes.begin(), codes.end());
    block.values.insert(block.values.end(), back.begin(), back.end());
  }
  return block;
}

QuantizedBlock to_mxfp8(const formats::Mxfp8RuleRow& row, std::span<const float> x) {
  QuantizedBlock block{.format = "mxfp8", .rule = row.name, .used_by = row.used_by};
  std::uint8_t scale = 0;
  std::array<std::uint8_t, formats::kMxfp8Block> codes{};
  formats::quantize_mxfp8(row.rule, x, scale, codes);
  block.values.resize(x.size());
  formats::dequantize_mxfp8(scale, codes, block.values);
  block.scales = {scale};
  block.scale_values = {formats::E8m0::decode(scale)};
  block.codes.assign(codes.begin(), codes.begin() + static_cast<std::ptrdiff_t>(x.size()));
  return block;
}

std::vector<QuantizedBlock> quantized(std::span<const float> x) {
  std::vector<QuantizedBlock> blocks;
  for (const auto& row : formats::kMxfp4Rules) blocks.push_back(to_mxfp4(row, x));
  for (const auto& row : formats::kNvfp4Rules) blocks.push_back(to_nvfp4(row, x));
  for (const auto& row : formats::kMxfp8Rules) blocks.push_back(to_mxfp8(row, x));
  return blocks;
}

// The largest |x - rounded| of a block; NaN where one is.
float worst_error(const QuantizedBlock& block, std::span<const float> x) {
  float worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float error = std::abs(x[i] - block.values[i]);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

Json floats_json(std::span<const float> values) {
  Json result = Json::array();
  for (const float value : values) result.push_back(json_of(value));
  return result;
}

Json number_json(float value) {
  Json codes = Json::array();
  for (const formats::Encoding& row : formats::kEncodings) {
    const std::uint8_t code = row.encode(value);
    codes.push_back({{"format", row.format},
                     {"rule", row.rule},
                     {"code", code},
                     {"value", json_of(row.decode(code))}});
  }
  return {{"value", json_of(value)},
          {"float32", fmt::format("{:08x}", formats::float_bits(value))},
          {"codes", std::move(codes)}};
}

Json block_json(const QuantizedBlock& block, std::span<const float> x) {
  return {{"format", block.format},
          {"rule", block.rule},
          {"used_by", block.used_by},
          {"global_scale", block.global_scale ? json_of(*block.global_scale) : Json()},
          {"scales", block.scales},
          {"scale_values", floats_json(block.scale_values)},
          {"codes", block.codes},
          {"values", floats_json(block.values)},
          {"worst_error", json_of(worst_error(block, x))}};
}

void print_number(const Io& io, float value) {
  io.out << fmt::format("{} (float32 {:08x})\n", value, formats::float_bits(value));
  for (const formats::Encoding& row : formats::kEncodings) {
    const std::uint8_t code = row.encode(value);
    io.out << fmt::format("  {:<9} {:<28} 0x{:02x}  {}\n", row.format, row.rule, code,
                          row.decode(code));
  }
}

void print_block(const Io& io, const QuantizedBlock& block, std::span<const float> x) {
  io.out << fmt::format("  {:<30} scale {:02x}  worst error {:<12} {}\n", block.rule,
                        fmt::join(block.scales, " "), worst_error(block, x),
                        fmt::join(block.values, " "));
}

Result<int> run_numbers(const std::vector<std::string>& words, const Io& io) {
  const Result<std::vector<float>> numbers = read_numbers(words);
  if (!numbers) return numbers.why();
  if (io.json) {
    Json each = Json::array(), blocks = Json::array();
    for (const float value : *numbers) each.push_back(number_json(value));
    for (const QuantizedBlock& block : quantized(*numbers))
      blocks.push_back(block_json(block, *numbers));
    io.print({{"command", "numbers"}, {"numbers", std::move(each)}, {"blocks", std::move(blocks)}});
    return kDone;
  }
  for (const float value : *numbers) print_number(io, value);
  io.out << "as a block\n";
  for (const QuantizedBlock& block : quantized(*numbers)) print_block(io, block, *numbers);
  return kDone;
}

}  // namespace

Run declare_numbers(OptionSet& set) {
  const auto words = std::make_shared<std::vector<std::string>>();
  set.add("NUMBERS", *words, "1 to 32 numbers, which also make a block: 0.7,-1.5,3")
      .separated_by_commas("NUMBER")
      .required();
  return [words](const Io& io) { return run_numbers(*words, io); };
}

}  // namespace fp4moe::cli
