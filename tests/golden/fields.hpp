// Typed fields of golden cases. A field that is missing or of the wrong form is an error that names
// it; nothing here trusts a count.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::golden {

Result<const Json*> field(const Json& object, std::string_view key);
Result<const Json*> object_field(const Json& object, std::string_view key);
Result<bool> bool_field(const Json& object, std::string_view key);
Result<std::string> string_field(const Json& object, std::string_view key);

// A whole number in [0, max].
Result<std::uint64_t> number_field(const Json& object, std::string_view key, std::uint64_t max);

// "00ff" -> {0x00, 0xff}
Result<std::vector<std::uint8_t>> bytes_field(const Json& object, std::string_view key);

// Concatenated float32 patterns of 8 hexadecimal digits each.
Result<std::vector<float>> floats_field(const Json& object, std::string_view key);
Result<float> float_field(const Json& object, std::string_view key);

// The float32 with this pattern of exactly 8 hexadecimal digits.
Result<float> float_from_hex(std::string_view digits);

// A value as a person compares it: its pattern and its decimal form.
std::string show(float value);
std::string show(double value);

Error malformed(std::string_view key, std::string_view expected, std::string_view found);

}  // namespace fp4moe::golden
