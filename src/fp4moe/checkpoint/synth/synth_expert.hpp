// Seeded weights of one expert, in canonical form. The same seed gives the same weights whatever
// dialect they are then written in.
//
// Codes are uniform. Scales are where trained models have them: E8M0 from 2^-8 to 2^-2, E4M3
// positive and normal, global scales of 1e-4 to 1e-3 shared by gate and up.
#pragma once
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::checkpoint {

struct ExpertSeed {
  std::uint64_t seed = 1, layer = 0, expert = 0;
};

// Memory for one expert, reused from expert to expert.
class SynthExpert {
 public:
  // A quantized expert; valid until the next call. `shape.order` decides only whether there is a
  // gate: rows are dense.
  Result<ExpertView> make(const ExpertSeed& seed, const MoeShape& shape);

 private:
  tensor::Buffer memory_{};
};

// Bfloat16 values [rows, k] of an unquantized projection, roughly normal with deviation 1/sqrt(k).
void fill_normal_bf16(std::uint64_t seed, std::uint64_t k, std::span<std::uint16_t> out);

// The stream of one part of an expert; different parts never share one.
std::uint64_t part_seed(const ExpertSeed& seed, std::uint64_t part);

}  // namespace fp4moe::checkpoint
