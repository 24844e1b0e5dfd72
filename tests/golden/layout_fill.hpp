// Tensors made from a seed: splitmix64's bytes, and what a fill makes of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::golden {

struct FillRule;

class Fill {
 public:
  Fill(const FillRule& rule, std::uint64_t seed) : rule_(&rule), seed_(seed) {}

  std::size_t element_bytes() const;
  // Whole elements.
  void make(std::span<std::byte> out) const;

 private:
  const FillRule* rule_;
  std::uint64_t seed_;
};

// From the fields "fill" (or "gen") and "seed" of a tensor.
Result<Fill> read_fill(const Json& item);

}  // namespace fp4moe::golden
