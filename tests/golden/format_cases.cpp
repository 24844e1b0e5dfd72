// The cases about single numbers: tables of all codes, encodings, scales of blocks, activations.
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e4m3fnuz.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/encodings.hpp"
#include "fp4moe/formats/mx_scale.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nibbles.hpp"
#include "fp4moe/moe/activation.hpp"
#include "golden/fields.hpp"
#include "golden/formats.hpp"

namespace fp4moe::golden {
namespace {

struct Table {
  std::string_view format;
  std::size_t codes;
  float (*decode)(std::uint8_t code);
};

// clang-format off
constexpr Table kTables[] = {
    {"e2m1",     16,  formats::E2m1::decode},
    {"e8m0",     256, formats::E8m0::decode},
    {"e4m3fn",   256, formats::E4m3fn::decode},
    {"e5m2",     256, formats::E5m2::decode},
    {"e4m3fnuz", 256, formats::E4m3fnuz::decode},
};
// clang-format on

bool same_value(float a, float b) {
  return formats::float_bits(a) == formats::float_bits(b) ||
         (formats::is_nan(a) && formats::is_nan(b));
}

Result<float> table_entry(const Json& value) {
  if (!value.is_string()) return malformed("table entry", "a string", value.type_name());
  const auto& digits = value.string();
  if (digits == "nan") return formats::float_from_bits(formats::kFloatNanBits);
  return float_from_hex(digits);
}

// One byte per code, or packed nibbles where the format has 4 bits and the length says so.
Result<std::vector<std::uint8_t>> codes_field(const Json& item, std::string_view format,
                                              std::size_t count) {
  Result<std::vector<std::uint8_t>> bytes = bytes_field(item, "codes");
  if (!bytes || bytes->size() == count) return bytes;
  if (format != "e2m1" || bytes->size() != (count + 1) / 2)
    return malformed("codes", std::to_string(count) + " codes", std::to_string(bytes->size()));
  std::vector<std::uint8_t> codes(count);
  for (std::size_t i = 0; i < count; ++i) codes[i] = formats::nibble(*bytes, i);
  return codes;
}

using ScaleFunction = std::uint8_t (*)(std::string_view rule, float amax);

// Scale rules stand alone ("ceil6") or are those of a block rule ("mxfp4.ceil6.rne").
ScaleFunction scale_function(std::string_view rule) {
  if (formats::scale_rule_from_name(rule))
    return [](std::string_view name, float amax) {
      return formats::mx_scale(*formats::scale_rule_from_name(name), amax);
    };
  if (formats::mxfp4_rule_from_name(rule))
    return [](std::string_view name, float amax) {
      return formats::mxfp4_scale(*formats::mxfp4_rule_from_name(name), amax);
    };
  if (formats::mxfp8_rule_from_name(rule))
    return [](std::string_view name, float amax) {
      return formats::mxfp8_scale(*formats::mxfp8_rule_from_name(name), amax);
    };
  return nullptr;
}

// What a column of an activation case computes. The names are those of the functions that made the
// data; a number at the end is the limit.
struct Column {
  std::string_view name;
  moe::Activation activation;
  bool takes_limit;
};

// clang-format off
constexpr Column kColumns[] = {
    {"swigluoai",          moe::Activation::swigluoai,        false},
    {"silu_and_mul",       moe::Activation::silu,             false},
    {"silu_and_mul_clamp", moe::Activation::silu,             true},
    {"gelu_and_mul",       moe::Activation::gelu,             false},
    {"gelu_tanh_and_mul",  moe::Activation::gelu_tanh,        false},
    {"swiglustep",         moe::Activation::swiglustep,       true},
    {"swiglustep",         moe::Activation::swiglustep,       false},
    {"relu2_no_mul",       moe::Activation::relu2_no_mul,     false},
    {"silu_no_mul",        moe::Activation::silu_no_mul,      false},
    {"gelu_no_mul",        moe::Activation::gelu_no_mul,      false},
    {"gelu_tanh_no_mul",   moe::Activation::gelu_tanh_no_mul, false},
};
// clang-format on

std::optional<double> whole_number(std::string_view text) {
  double value = 0.0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Call {
  moe::Activation activation{};
  moe::ActivationParams params{};
};

std::optional<Call> call_from_name(std::string_view name) {
  for (const Column& column : kColumns) {
    Call call{column.activation, moe::row(column.activation).params};
    if (!column.takes_limit && name == column.name) return call;
    if (!column.takes_limit || !name.starts_with(column.name)) continue;
    const std::optional<double> limit = whole_number(name.substr(column.name.size()));
    if (!limit || !(*limit > 0.0)) continue;
    call.params.limit = *limit;
    return call;
  }
  return std::nullopt;
}

Result<double> decimal_field(const Json& item, std::string_view key) {
  const auto value = item.find(key);
  if (value->is_number()) return value->get<double>();
  const Result<std::string> text = string_field(item, key);
  if (!text) return text.why();
  const std::optional<double> number = whole_number(*text);
  if (!number) return malformed(key, "a decimal number", *text);
  return *number;
}

// Relative 1e-6, as the golden data promise. Besides, the GELU forms subtract nearly equal numbers
// for negative gates: 1 + erf(...) and 1 + tanh(...) each carry an absolute error of a few units of
// 2^-53 whatever the library, multiplied by |g u| / 2. Below that floor both sides are rounding
// noise (the data hold -0.0 there).
bool is_close(double expected, double found, double floor) {
  if (std::isnan(expected) || std::isnan(found)) return std::isnan(expected) && std::isnan(found);
  if (expected == found) return true;
  return std::fabs(expected - found) <= std::max(1e-6 * std::fabs(expected), floor);
}

double rounding_floor(moe::Activation activation, double gate, double up) {
  switch (activation) {
    case moe::Activation::gelu:
    case moe::Activation::gelu_tanh:
      return 0x1p-51 * std::fabs(gate * up);
    case moe::Activation::gelu_no_mul:
    case moe::Activation::gelu_tanh_no_mul:
      return 0x1p-51 * std::fabs(gate);
    default:
      return 0.0;
  }
}

}  // namespace

Outcome check_table(std::string_view format, const Json& values) {
  const Table* table = nullptr;
  for (const Table& candidate : kTables)
    if (candidate.format == format) table = &candidate;
  if (table == nullptr)
    return malformed("tables", "a known format", "\"" + std::string(format) + "\"");
  if (!values.is_array() || values.size() != table->codes)
    return malformed(format, std::to_string(table->codes) + " values",
                     std::to_string(values.size()));
  for (std::size_t code = 0; code < table->codes; ++code) {
    const Result<float> expected = table_entry(values[code]);
    if (!expected) return expected.why();
    const float found = table->decode(static_cast<std::uint8_t>(code));
    if (!same_value(*expected, found))
      return std::optional<Mismatch>(
          {"code " + std::to_string(code) + " decodes differently", show(*expected), show(found)});
  }
  return kAgrees;
}

Outcome check_encode(const Json& item) {
  const Result<std::string> format = string_field(item, "format");
  if (!format) return format.why();
  const Result<std::string> rule = string_field(item, "rule");
  if (!rule) return rule.why();
  const formats::Encoding* encoder = formats::find_encoding(*format, *rule);
  if (encoder == nullptr)
    return malformed("rule", "a known pair of format and rule",
                     "\"" + *format + "\" with \"" + *rule + "\"");
  const Result<std::vector<float>> inputs = floats_field(item, "inputs");
  if (!inputs) return inputs.why();
  const Result<std::uint64_t> count = number_field(item, "n", inputs->size());
  if (!count) return count.why();
  if (*count != inputs->size())
    return malformed("n", std::to_string(inputs->size()) + " as there are inputs",
                     std::to_string(*count));
  const Result<std::vector<std::uint8_t>> codes = codes_field(item, *format, inputs->size());
  if (!codes) return codes.why();
  for (std::size_t i = 0; i < inputs->size(); ++i) {
    const std::uint8_t found = encoder->encode((*inputs)[i]);
    if (found != (*codes)[i])
      return std::optional<Mismatch>(
          {"input " + std::to_string(i) + ", " + show((*inputs)[i]) + ", is encoded differently",
           std::to_string((*codes)[i]), std::to_string(found)});
  }
  return kAgrees;
}

Outcome check_block_scales(const Json& item) {
  const Result<std::string> rule = string_field(item, "rule");
  if (!rule) return rule.why();
  const ScaleFunction scale = scale_function(*rule);
  if (scale == nullptr) return malformed("rule", "a known scale rule", "\"" + *rule + "\"");
  const Result<std::vector<float>> amax = floats_field(item, "amax");
  if (!amax) return amax.why();
  const Result<std::vector<std::uint8_t>> codes = bytes_field(item, "scale");
  if (!codes) return codes.why();
  if (codes->size() != amax->size())
    return malformed("scale", std::to_string(amax->size()) + " scales",
                     std::to_string(codes->size()));
  for (std::size_t i = 0; i < amax->size(); ++i) {
    const std::uint8_t found = scale(*rule, (*amax)[i]);
    if (found != (*codes)[i])
      return std::optional<Mismatch>(
          {"maximum " + std::to_string(i) + ", " + show((*amax)[i]) + ", has a different scale",
           std::to_string((*codes)[i]), std::to_string(found)});
  }
  return kAgrees;
}

Outcome check_activation(const Json& item) {
  const Result<float> gate = float_field(item, "gate");
  if (!gate) return gate.why();
  const Result<float> up = float_field(item, "up");
  if (!up) return up.why();
  bool has_columns = false;
  for (const auto& [key, value] : item.items()) {
    if (key == "gate" || key == "up" || key == "id" || key == "verified") continue;
    const std::optional<Call> call = call_from_name(key);
    if (!call) return malformed(key, "a known activation", "\"" + key + "\"");
    const Result<double> expected = decimal_field(item, key);
    if (!expected) return expected.why();
    has_columns = true;
    const double g = *gate, u = *up;
    const double found = moe::activate(call->activation, call->params, g, u);
    if (!is_close(*expected, found, rounding_floor(call->activation, g, u)))
      return std::optional<Mismatch>(
          {key + " of gate " + show(*gate) + " and up " + show(*up) + " differs", show(*expected),
           show(found)});
  }
  if (!has_columns) return malformed("activations", "at least one activation", "none");
  return kAgrees;
}

}  // namespace fp4moe::golden
