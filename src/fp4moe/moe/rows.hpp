// Rows of activations in the caller's memory: a type, sizes and the distance between rows. What a
// kernel is given and what it writes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::moe {

using tensor::DType;

template <class Byte>
struct BasicRows {
  Byte* data = nullptr;
  DType dtype = DType::bf16;  // bf16, f16, f32 or f64
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t stride = 0;  // bytes from row to row

  Byte* row(std::uint64_t index) const { return data + index * stride; }
  BasicRows first(std::uint64_t count) const { return {data, dtype, count, columns, stride}; }
  BasicRows from(std::uint64_t begin, std::uint64_t count) const {
    return {data + begin * stride, dtype, count, columns, stride};
  }
  operator BasicRows<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {data, dtype, rows, columns, stride};
  }
};
using ConstRows = BasicRows<const std::byte>;
using MutableRows = BasicRows<std::byte>;

bool is_activation_type(DType dtype);
std::uint64_t element_bytes(DType dtype);

// Rows without gaps over typed memory: T is float, double, or std::uint16_t for bf16.
template <class T>
BasicRows<std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>> dense_rows(
    std::span<T> values, DType dtype, std::uint64_t rows, std::uint64_t columns) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return {reinterpret_cast<Byte*>(values.data()), dtype, rows, columns, columns * sizeof(T)};
}

// The same with the type and the columns that follow from the memory: T is float or double.
template <class T>
auto dense_rows(std::span<T> values, std::uint64_t rows) {
  using Number = std::remove_const_t<T>;
  static_assert(std::is_same_v<Number, float> || std::is_same_v<Number, double>);
  return dense_rows(values, std::is_same_v<Number, float> ? DType::f32 : DType::f64, rows,
                    rows == 0 ? 0 : values.size() / rows);
}

// One row as numbers, and numbers as a row: rounded to nearest even, float64 first to float32.
// `values` has at most as many elements as the row has columns.
void read_row(const ConstRows& from, std::uint64_t row, std::span<float> values);
void read_row(const ConstRows& from, std::uint64_t row, std::span<double> values);
void write_row(std::span<const float> values, const MutableRows& to, std::uint64_t row);
void write_row(std::span<const double> values, const MutableRows& to, std::uint64_t row);

// Checks of rows at every entry point: a known type, memory, a stride that holds a row.
// Errors: rows.type, rows.memory, rows.stride, rows.columns.
Result<Done> check_rows(const ConstRows& rows, const char* what, std::uint64_t columns);

}  // namespace fp4moe::moe
