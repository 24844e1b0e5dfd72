// The weights of a rank's experts as the reference engine keeps them: canonical, w13's gates before
// its ups, in 4 bits.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/moe/reference/panel.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::moe::reference {

struct StoredExpert {
  tensor::Buffer w13_codes{}, w13_scales{}, w2_codes{}, w2_scales{};
  std::vector<float> w13_bias{}, w2_bias{};  // empty: none
  float gate_global = 1.0f, up_global = 1.0f, down_global = 1.0f;
};

class StoredExperts {
 public:
  static Result<StoredExperts> load(const ExpertSource& source, ThreadPool& pool);

  const checkpoint::MoeShape& shape() const { return shape_; }
  const StoredExpert& at(std::size_t position) const { return experts_[position]; }
  // Rows [0, intermediate) are gates where there is a gate, then come the ups.
  Fp4Matrix w13(std::size_t position) const;
  Fp4Matrix w2(std::size_t position) const;
  float w13_global(std::size_t position, std::uint64_t row) const;

 private:
  checkpoint::MoeShape shape_{};
  std::vector<StoredExpert> experts_{};
};

}  // namespace fp4moe::moe::reference
