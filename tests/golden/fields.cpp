#include "golden/fields.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cstdio>

#include "fp4moe/base/json_fields.hpp"

namespace fp4moe::golden {
namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::vector<std::uint8_t>> bytes_from_hex(std::string_view key, std::string_view digits) {
  if (digits.size() % 2 != 0)
    return malformed(key, "an even number of hexadecimal digits", std::to_string(digits.size()));
  std::vector<std::uint8_t> bytes;
  bytes.reserve(digits.size() / 2);
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const int high = digit(digits[i]), low = digit(digits[i + 1]);
    if (high < 0 || low < 0)
      return malformed(key, "hexadecimal digits", std::string(digits.substr(i, 2)));
    bytes.push_back(static_cast<std::uint8_t>(high * 16 + low));
  }
  return bytes;
}

float float_from_bytes(const std::uint8_t* bytes) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bytes[0]) << 24 |
                              static_cast<std::uint32_t>(bytes[1]) << 16 |
                              static_cast<std::uint32_t>(bytes[2]) << 8 | bytes[3]);
}

}  // namespace

Error malformed(std::string_view key, std::string_view expected, std::string_view found) {
  return invalid("golden.malformed", "the golden data cannot be read")
      .at(key)
      .expects(expected, found);
}

Result<const Json*> field(const Json& object, std::string_view key) {
  if (!object.is_object()) return malformed("the case", "an object", object.type_name());
  const auto found = object.find(key);
  if (found == object.end()) return malformed(key, "the field", "none");
  return &*found;
}

Result<const Json*> object_field(const Json& object, std::string_view key) {
  const Result<const Json*> value = field(object, key);
  if (!value) return value.why();
  if (!(*value)->is_object()) return malformed(key, "an object", (*value)->type_name());
  return *value;
}

namespace {

template <class T>
Result<T> typed_field(const Json& object, std::string_view key) {
  const Result<const Json*> value = field(object, key);
  if (!value) return value.why();
  if (!JsonType<T>::is(**value)) return malformed(key, JsonType<T>::kWords, (*value)->type_name());
  return (*value)->get<T>();
}

}  // namespace

Result<bool> bool_field(const Json& object, std::string_view key) {
  return typed_field<bool>(object, key);
}
Result<std::string> string_field(const Json& object, std::string_view key) {
  return typed_field<std::string>(object, key);
}

Result<std::uint64_t> number_field(const Json& object, std::string_view key, std::uint64_t max) {
  const Result<const Json*> value = field(object, key);
  if (!value) return value.why();
  const std::string range = "a whole number from 0 to " + std::to_string(max);
  if (!JsonType<std::uint64_t>::is(**value))
    return malformed(key, range, (*value)->is_number() ? (*value)->dump() : (*value)->type_name());
  const auto number = (*value)->get<std::uint64_t>();
  if (number > max) return malformed(key, range, std::to_string(number));
  return number;
}

Result<std::vector<std::uint8_t>> bytes_field(const Json& object, std::string_view key) {
  const Result<std::string> digits = string_field(object, key);
  if (!digits) return digits.why();
  return bytes_from_hex(key, *digits);
}

Result<std::vector<float>> floats_field(const Json& object, std::string_view key) {
  const Result<std::vector<std::uint8_t>> bytes = bytes_field(object, key);
  if (!bytes) return bytes.why();
  if (bytes->size() % 4 != 0)
    return malformed(key, "a multiple of 8 digits", std::to_string(bytes->size() * 2));
  std::vector<float> floats;
  floats.reserve(bytes->size() / 4);
  for (std::size_t i = 0; i < bytes->size(); i += 4)
    floats.push_back(float_from_bytes(bytes->data() + i));
  return floats;
}

Result<float> float_field(const Json& object, std::string_view key) {
  const Result<std::vector<float>> floats = floats_field(object, key);
  if (!floats) return floats.why();
  if (floats->size() != 1) return malformed(key, "8 digits", std::to_string(floats->size() * 8));
  return floats->front();
}

Result<float> float_from_hex(std::string_view digits) {
  const Result<std::vector<std::uint8_t>> bytes = bytes_from_hex("float32 pattern", digits);
  if (!bytes) return bytes.why();
  if (bytes->size() != 4)
    return malformed("float32 pattern", "8 digits", std::to_string(digits.size()));
  return float_from_bytes(bytes->data());
}

std::string show(float value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%08x (%.9g)", std::bit_cast<std::uint32_t>(value),
                static_cast<double>(value));
  return text.data();
}

std::string show(double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

}  // namespace fp4moe::golden
