// Arithmetic on sizes that come from files: an overflow is an answer, not a wrap.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace fp4moe {

constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

constexpr std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> factors) {
  std::uint64_t product = 1;
  bool overflowed = false;  // a later zero still makes the product 0
  for (const std::uint64_t factor : factors) {
    if (factor == 0) return 0;
    overflowed = __builtin_mul_overflow(product, factor, &product) || overflowed;
  }
  if (overflowed) return std::nullopt;
  return product;
}

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }
constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t b) { return ceil_div(a, b) * b; }

}  // namespace fp4moe
