// Tensors and values of golden data about MoE layers. A tensor is told as a seed and a rule, or as
// a list:
//
//   {kind, encoding, shape, seed, fnv1a64, exp?, base?, span?}     one splitmix64 output z a value
//     grid8   (z >> 56) - 128, times 2^exp         mod8   base + z mod span
//     grid16  (z >> 48) - 32768, times 2^exp       modf   (base + z mod span) times 2^exp
//     byte    z >> 56
//   {kind: "list", encoding, shape, values}        numbers, "nan", "inf" or "-inf", nested or flat
//
// and values that came out as {shape, f64_le_base64, head?, sum?, absmax?}.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "fp4moe/tensor/shape.hpp"

namespace fp4moe::golden {

// Nothing larger is generated.
constexpr std::uint64_t kMaxMoeElements = std::uint64_t{1} << 28;

struct MoeTensor {
  std::string name{};
  tensor::DType dtype = tensor::DType::f32;  // f32, bf16 or u8
  tensor::Shape shape{};
  std::vector<std::byte> bytes{};  // little-endian

  std::uint64_t extent(std::size_t axis) const { return axis < shape.size() ? shape[axis] : 1; }
  // Each element as the number it stands for; a byte is 0 to 255.
  std::vector<double> values() const;
  std::vector<float> floats() const;
};

struct MoeValues {
  std::string name{};
  tensor::Shape shape{};
  std::vector<double> values{};
};

// The tensor in the field `name` of `object`. Errors name it: golden.malformed, golden.size, and
// golden.input when the bytes made from the seed are not those the case was made from.
Result<MoeTensor> read_moe_tensor(const Json& object, std::string_view name);
// The same, where the shape must be `expected`.
Result<MoeTensor> read_moe_tensor(const Json& object, std::string_view name,
                                  const tensor::Shape& expected);

// The values in the field `name` of `object`; what is told of them besides must hold.
Result<MoeValues> read_moe_values(const Json& object, std::string_view name);
Result<MoeValues> read_moe_values(const Json& object, std::string_view name,
                                  const tensor::Shape& expected);

// A list of equally long lists of whole numbers from `least` to `most`: [rows, columns].
struct MoeNumbers {
  std::uint64_t rows = 0, columns = 0;
  std::vector<std::int32_t> numbers{};
};
struct NumberRange {
  std::int32_t min = 0, max = 0;
};
Result<MoeNumbers> read_moe_rows(const Json& object, std::string_view name, NumberRange range);
// A plain list of them.
Result<std::vector<std::int32_t>> read_moe_list(const Json& object, std::string_view name,
                                                NumberRange range);

}  // namespace fp4moe::golden
