#include "fp4moe/moe/rows.hpp"

#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::moe {
namespace {

template <class Stored, class Value, class Convert>
void read_as(const std::byte* from, std::span<Value> values, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, from + i * sizeof(Stored), sizeof(Stored));
    values[i] = static_cast<Value>(convert(stored));
  }
}

template <class Stored, class Value, class Convert>
void write_as(std::span<const Value> values, std::byte* to, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(to + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class Value>
void read_any(const ConstRows& from, std::uint64_t row, std::span<Value> values) {
  const std::byte* source = from.row(row);
  switch (from.dtype) {
    case DType::bf16:
      return read_as<std::uint16_t>(source, values, formats::Bf16::decode);
    case DType::f16:
      return read_as<std::uint16_t>(source, values, formats::F16::decode);
    case DType::f64:
      return read_as<double>(source, values, [](double x) { return x; });
    default:
      return read_as<float>(source, values, [](float x) { return x; });
  }
}

template <class Value>
void write_any(std::span<const Value> values, const MutableRows& to, std::uint64_t row) {
  std::byte* target = to.row(row);
  const auto narrow = [](Value x) { return static_cast<float>(x); };
  switch (to.dtype) {
    case DType::bf16:
      return write_as<std::uint16_t>(values, target,
                                     [&](Value x) { return formats::Bf16::encode(narrow(x)); });
    case DType::f16:
      return write_as<std::uint16_t>(values, target,
                                     [&](Value x) { return formats::F16::encode(narrow(x)); });
    case DType::f64:
      return write_as<double>(values, target, [](Value x) { return static_cast<double>(x); });
    default:
      return write_as<float>(values, target, narrow);
  }
}

}  // namespace

bool is_activation_type(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64;
}

std::uint64_t element_bytes(DType dtype) { return tensor::row(dtype).block_bytes; }

void read_row(const ConstRows& from, std::uint64_t row, std::span<float> values) {
  read_any(from, row, values);
}
void read_row(const ConstRows& from, std::uint64_t row, std::span<double> values) {
  read_any(from, row, values);
}
void write_row(std::span<const float> values, const MutableRows& to, std::uint64_t row) {
  write_any(values, to, row);
}
void write_row(std::span<const double> values, const MutableRows& to, std::uint64_t row) {
  write_any(values, to, row);
}

Result<Done> check_rows(const ConstRows& rows, const char* what, std::uint64_t columns) {
  if (!is_activation_type(rows.dtype))
    return usage("rows.type", fmt::format("{} have a type that is not computed with", what))
        .expects("BF16, F16, F32 or F64", tensor::name(rows.dtype));
  if (rows.columns != columns)
    return usage("rows.columns", fmt::format("{} have the wrong width", what))
        .expects(fmt::format("{} columns", columns), fmt::format("{}", rows.columns));
  if (rows.rows == 0) return Done{};
  if (rows.data == nullptr)
    return usage("rows.memory", fmt::format("{} have no memory", what))
        .expects(fmt::format("{} rows", rows.rows), "a null pointer");
  const std::uint64_t min = columns * element_bytes(rows.dtype);
  if (rows.rows > 1 && rows.stride < min)
    return usage("rows.stride", fmt::format("rows of {} overlap", what))
        .expects(fmt::format("at least {} bytes from row to row", min),
                 fmt::format("{}", rows.stride));
  return Done{};
}

}  // namespace fp4moe::moe
