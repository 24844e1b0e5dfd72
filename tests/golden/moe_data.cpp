#include "golden/moe_data.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "fp4moe/base/json_fields.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

using tensor::DType;
using tensor::Shape;

struct EncodingWord {
  std::string_view word;
  DType dtype;
};
constexpr EncodingWord kMoeEncodings[] = {
    {"f32", DType::f32}, {"bf16", DType::bf16}, {"u8", DType::u8}};

constexpr std::size_t kMaxMoeRank = 8;
constexpr int kMaxExponent = 126;  // exact in every encoding
constexpr std::int64_t kMaxBase = 1 << 24;

// What a generated element is made of besides the stream.
struct MoeRule {
  std::int64_t base = 0, span = 1;
  int exponent = 0;
};
struct MoeKind {
  std::string_view name;
  bool has_exponent, has_span;
  double (*element)(std::uint64_t z, const MoeRule& rule);
};

double from_span(std::uint64_t z, const MoeRule& rule) {
  return static_cast<double>(rule.base) +
         static_cast<double>(z % static_cast<std::uint64_t>(rule.span));
}

// clang-format off
constexpr MoeKind kMoeKinds[] = {
    {"grid8",  true,  false, [](std::uint64_t z, const MoeRule& rule) { return std::ldexp(static_cast<double>(z >> 56) - 128, rule.exponent); }},
    {"grid16", true,  false, [](std::uint64_t z, const MoeRule& rule) { return std::ldexp(static_cast<double>(z >> 48) - 32768, rule.exponent); }},
    {"byte",   false, false, [](std::uint64_t z, const MoeRule&) { return static_cast<double>(z >> 56); }},
    {"mod8",   false, true,  from_span},
    {"modf",   true,  true,  [](std::uint64_t z, const MoeRule& rule) { return std::ldexp(from_span(z, rule), rule.exponent); }},
};
// clang-format on

// The error with the tensor's name before the field's.
Error within(std::string_view tensor, const Error& why) {
  Error named = why;
  named.tensor =
      why.tensor.empty() ? std::string(tensor) : fmt::format("{}.{}", tensor, why.tensor);
  return named;
}

Result<Shape> shape_of(const Json& item) {
  const Result<const Json*> list = field(item, "shape");
  if (!list) return list.why();
  if (!(*list)->is_array() || (*list)->size() > kMaxMoeRank)
    return malformed("shape", fmt::format("a list of up to {} extents", kMaxMoeRank),
                     (*list)->type_name());
  Shape shape;
  for (const Json& extent : **list) {
    if (!JsonType<std::uint64_t>::is(extent) || extent.get<std::uint64_t>() > kMaxMoeElements)
      return malformed("shape", fmt::format("whole numbers up to {}", kMaxMoeElements),
                       extent.is_number() ? extent.dump() : extent.type_name());
    shape.push_back(extent.get<std::uint64_t>());
  }
  const std::optional<std::uint64_t> elements = tensor::element_count(shape);
  if (!elements || *elements > kMaxMoeElements)
    return invalid("golden.size", "the tensor is too large to be made")
        .at("shape")
        .expects(fmt::format("at most {} elements", kMaxMoeElements), tensor::text(shape));
  return shape;
}

Result<std::int64_t> integer_of(const Json& item, std::string_view key, std::int64_t min,
                                std::int64_t max) {
  const Result<const Json*> found = field(item, key);
  if (!found) return found.why();
  const Json& value = **found;
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(max));
  if (!fits || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max)
    return malformed(key, fmt::format("a whole number from {} to {}", min, max),
                     value.is_number() ? value.dump() : value.type_name());
  return value.get<std::int64_t>();
}

// "0x" and up to 16 hexadecimal digits.
Result<std::uint64_t> word_of(const Json& item, std::string_view key) {
  const Result<std::string> text = string_field(item, key);
  if (!text) return text.why();
  bool good = text->starts_with("0x") && text->size() > 2 && text->size() <= 18;
  std::uint64_t word = 0;
  for (std::size_t i = 2; good && i < text->size(); ++i) {
    static constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
    const std::size_t at = kDigits.find((*text)[i]);
    good = at != std::string_view::npos;
    word = word * 16 + (at & 15);
  }
  if (!good)
    return malformed(key, "0x and up to 16 hexadecimal digits", fmt::format("\"{}\"", *text));
  return word;
}

void append_element(std::vector<std::byte>& bytes, DType dtype, double value) {
  std::uint32_t code = 0;
  if (dtype == DType::u8)
    code = static_cast<std::uint32_t>(value);
  else if (dtype == DType::bf16)
    code = formats::Bf16::encode(static_cast<float>(value));
  else
    code = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  for (std::uint32_t byte = 0; byte < tensor::row(dtype).block_bytes; ++byte)
    bytes.push_back(static_cast<std::byte>(code >> (8 * byte)));
}

// Whether the encoding can hold the number: a byte must be one.
bool fits_encoding(DType dtype, double value) {
  return dtype != DType::u8 || (value >= 0 && value <= 255 && value == std::floor(value));
}

Result<double> listed_number(const Json& item) {
  if (item.is_number()) return item.get<double>();
  if (item.is_string()) {
    const auto& word = item.string();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (word == "inf") return std::numeric_limits<double>::infinity();
    if (word == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return malformed("values", "numbers, \"nan\", \"inf\" or \"-inf\"", item.dump());
}

// Lists inside lists, as deep as the shape at most.
Result<Done> append_listed(const Json& list, std::size_t depth, MoeTensor& result) {
  for (const Json& item : list) {
    if (item.is_array() && depth > 1) {
      if (Result<Done> inner = append_listed(item, depth - 1, result); !inner) return inner;
      continue;
    }
    const Result<double> number = listed_number(item);
    if (!number) return number.why();
    if (!fits_encoding(result.dtype, *number))
      return malformed("values", "whole numbers from 0 to 255", item.dump());
    append_element(result.bytes, result.dtype, *number);
  }
  return Done{};
}

Result<Done> fill_from_list(const Json& item, MoeTensor& result) {
  const Result<const Json*> list = field(item, "values");
  if (!list) return list.why();
  if (!(*list)->is_array()) return malformed("values", "a list", (*list)->type_name());
  if (Result<Done> read = append_listed(**list, result.shape.size(), result); !read) return read;
  const std::uint64_t bytes = *tensor::byte_count(result.dtype, result.shape);
  if (result.bytes.size() != bytes)
    return malformed("values", fmt::format("as many as the shape {}", tensor::text(result.shape)),
                     std::to_string(result.bytes.size() / tensor::row(result.dtype).block_bytes));
  return Done{};
}

Result<Done> fill_from_seed(const Json& item, const MoeKind& kind, MoeTensor& result) {
  const Result<std::uint64_t> seed = word_of(item, "seed");
  if (!seed) return seed.why();
  MoeRule rule;
  if (kind.has_exponent) {
    const Result<std::int64_t> exponent = integer_of(item, "exp", -kMaxExponent, kMaxExponent);
    if (!exponent) return exponent.why();
    rule.exponent = static_cast<int>(*exponent);
  }
  if (kind.has_span) {
    const Result<std::int64_t> base = integer_of(item, "base", -kMaxBase, kMaxBase);
    if (!base) return base.why();
    const Result<std::int64_t> span = integer_of(item, "span", 1, kMaxBase);
    if (!span) return span.why();
    rule.base = *base;
    rule.span = *span;
  }
  result.bytes.reserve(*tensor::byte_count(result.dtype, result.shape));
  SplitMix64 stream(*seed);
  for (std::uint64_t left = *tensor::element_count(result.shape); left > 0; --left) {
    const double value = kind.element(stream.next(), rule);
    if (!fits_encoding(result.dtype, value))
      return malformed("encoding", "one that holds every value", fmt::format("u8 for {}", value));
    append_element(result.bytes, result.dtype, value);
  }
  return Done{};
}

std::uint64_t fnv1a64(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
  return hash;
}

Result<Done> fill_tensor(const Json& item, MoeTensor& result) {
  const Result<std::string> encoding = string_field(item, "encoding");
  if (!encoding) return encoding.why();
  const auto* word = std::ranges::find(kMoeEncodings, *encoding, &EncodingWord::word);
  if (word == std::end(kMoeEncodings))
    return malformed("encoding", "f32, bf16 or u8", fmt::format("\"{}\"", *encoding));
  result.dtype = word->dtype;
  Result<Shape> shape = shape_of(item);
  if (!shape) return shape.why();
  result.shape = *std::move(shape);

  const Result<std::string> kind = string_field(item, "kind");
  if (!kind) return kind.why();
  const bool is_list = *kind == "list";
  const auto* rule = std::ranges::find(kMoeKinds, *kind, &MoeKind::name);
  if (!is_list && rule == std::end(kMoeKinds))
    return malformed("kind", "grid8, grid16, byte, mod8, modf or list",
                     fmt::format("\"{}\"", *kind));
  Result<Done> filled =
      is_list ? fill_from_list(item, result) : fill_from_seed(item, *rule, result);
  if (!filled) return filled;
  if (is_list && !item.contains("fnv1a64")) return Done{};
  const Result<std::uint64_t> hash = word_of(item, "fnv1a64");
  if (!hash) return hash.why();
  if (const std::uint64_t ours = fnv1a64(result.bytes); ours != *hash)
    return invalid("golden.input", "the tensor made here is not the one the case was made from")
        .expects(fmt::format("FNV-1a {:#018x}", *hash), fmt::format("{:#018x}", ours));
  return Done{};
}

Result<std::vector<std::uint8_t>> bytes_from_base64(std::string_view text) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto wrong = [](std::string_view found) {
    return malformed("f64_le_base64", "base64 with padding", found);
  };
  if (text.size() % 4 != 0) return wrong(fmt::format("{} characters", text.size()));
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::vector<std::uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size() - padding; ++i) {
    const std::size_t digit = kAlphabet.find(text[i]);
    if (digit == std::string_view::npos) return wrong(fmt::format("\"{}\"", text.substr(i, 1)));
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 0) bytes.push_back(static_cast<std::uint8_t>(bits >> (6 - 2 * (i % 4))));
  }
  return bytes;
}

// `head`, `sum` and `absmax` are there for people, but a file in which they are wrong was altered.
Result<Done> check_quick_looks(const Json& item, std::span<const double> values) {
  double sum = 0, absolute = 0, absmax = 0;
  for (const double value : values) {
    sum += value;
    absolute += std::abs(value);
    absmax = std::max(absmax, std::abs(value));
  }
  const auto number = [&](std::string_view key, double ours, double slack) -> Result<Done> {
    const auto told = item.find(key);
    if (told == item.end()) return Done{};
    if (!told->is_number()) return malformed(key, "a number", told->type_name());
    if (std::abs(told->get<double>() - ours) <= slack || !std::isfinite(ours)) return Done{};
    return malformed(key, fmt::format("{} as the values say", show(ours)),
                     show(told->get<double>()));
  };
  if (Result<Done> good = number("sum", sum, 1e-12 * (absolute + 1)); !good) return good;
  if (Result<Done> good = number("absmax", absmax, 0); !good) return good;
  const auto head = item.find("head");
  if (head == item.end()) return Done{};
  if (!head->is_array() || head->size() > values.size())
    return malformed("head", "the first values", head->dump());
  for (std::size_t i = 0; i < head->size(); ++i)
    if (!(*head)[i].is_number() || (*head)[i].get<double>() != values[i])
      return malformed("head", fmt::format("{} at {}", show(values[i]), i), (*head)[i].dump());
  return Done{};
}

Result<Done> fill_values(const Json& item, MoeValues& result) {
  Result<Shape> shape = shape_of(item);
  if (!shape) return shape.why();
  result.shape = *std::move(shape);
  const Result<std::string> text = string_field(item, "f64_le_base64");
  if (!text) return text.why();
  const Result<std::vector<std::uint8_t>> bytes = bytes_from_base64(*text);
  if (!bytes) return bytes.why();
  const std::uint64_t count = *tensor::element_count(result.shape);
  if (bytes->size() != count * 8)
    return malformed("f64_le_base64", fmt::format("8 bytes for each of {} values", count),
                     fmt::format("{} bytes", bytes->size()));
  result.values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    for (std::size_t byte = 0; byte < 8; ++byte)
      bits |= std::uint64_t{(*bytes)[i * 8 + byte]} << (8 * byte);
    result.values.push_back(std::bit_cast<double>(bits));
  }
  return check_quick_looks(item, result.values);
}

template <class Made>
Result<Made> with_shape(Result<Made> result, const Shape& expected) {
  if (result && result->shape != expected)
    return within(result->name,
                  malformed("shape", tensor::text(expected), tensor::text(result->shape)));
  return result;
}

Result<Done> append_numbers(const Json& list, NumberRange range, std::vector<std::int32_t>& out) {
  for (const Json& item : list) {
    const bool whole = item.is_number_integer() &&
                       !(item.is_number_unsigned() && item.get<std::uint64_t>() > 0x7FFFFFFF);
    if (!whole || item.get<std::int64_t>() < range.min || item.get<std::int64_t>() > range.max)
      return malformed("", fmt::format("whole numbers from {} to {}", range.min, range.max),
                       item.is_number() ? item.dump() : item.type_name());
    out.push_back(static_cast<std::int32_t>(item.get<std::int64_t>()));
  }
  return Done{};
}

}  // namespace

std::vector<float> MoeTensor::floats() const {
  const std::size_t size = tensor::row(dtype).block_bytes;
  std::vector<float> result;
  result.reserve(bytes.size() / size);
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    std::uint32_t code = 0;
    for (std::size_t byte = 0; byte < size; ++byte)
      code |= std::to_integer<std::uint32_t>(bytes[at + byte]) << (8 * byte);
    if (dtype == DType::u8)
      result.push_back(static_cast<float>(code));
    else if (dtype == DType::bf16)
      result.push_back(formats::Bf16::decode(static_cast<std::uint16_t>(code)));
    else
      result.push_back(std::bit_cast<float>(code));
  }
  return result;
}

std::vector<double> MoeTensor::values() const {
  const std::vector<float> exact = floats();
  return {exact.begin(), exact.end()};
}

Result<MoeTensor> read_moe_tensor(const Json& object, std::string_view name) {
  const Result<const Json*> item = field(object, name);
  if (!item) return item.why();
  MoeTensor result{.name = std::string(name)};
  if (const Result<Done> filled = fill_tensor(**item, result); !filled)
    return within(name, filled.why());
  return result;
}

Result<MoeTensor> read_moe_tensor(const Json& object, std::string_view name,
                                  const Shape& expected) {
  return with_shape(read_moe_tensor(object, name), expected);
}

Result<MoeValues> read_moe_values(const Json& object, std::string_view name) {
  const Result<const Json*> item = field(object, name);
  if (!item) return item.why();
  MoeValues result{.name = std::string(name)};
  if (const Result<Done> filled = fill_values(**item, result); !filled)
    return within(name, filled.why());
  return result;
}

Result<MoeValues> read_moe_values(const Json& object, std::string_view name,
                                  const Shape& expected) {
  return with_shape(read_moe_values(object, name), expected);
}

Result<std::vector<std::int32_t>> read_moe_list(const Json& object, std::string_view name,
                                                NumberRange range) {
  const Result<const Json*> item = field(object, name);
  if (!item) return item.why();
  if (!(*item)->is_array()) return malformed(name, "a list", (*item)->type_name());
  std::vector<std::int32_t> result;
  if (const Result<Done> read = append_numbers(**item, range, result); !read)
    return within(name, read.why());
  return result;
}

Result<MoeNumbers> read_moe_rows(const Json& object, std::string_view name, NumberRange range) {
  const Result<const Json*> item = field(object, name);
  if (!item) return item.why();
  if (!(*item)->is_array()) return malformed(name, "a list of lists", (*item)->type_name());
  MoeNumbers result;
  for (const Json& row : **item) {
    if (!row.is_array()) return malformed(name, "a list of lists", row.type_name());
    if (result.rows > 0 && row.size() != result.columns)
      return malformed(name, fmt::format("{} numbers in every row", result.columns),
                       std::to_string(row.size()));
    result.columns = row.size();
    ++result.rows;
    if (const Result<Done> read = append_numbers(row, range, result.numbers); !read)
      return within(name, read.why());
  }
  return result;
}

}  // namespace fp4moe::golden
