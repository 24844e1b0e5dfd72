#pragma once
#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu::neon {

// One for each of kShufflePatterns, in its order.
const ShuffleKernel* shuffles() noexcept;

void translate(const Translation& translation, const std::uint8_t* from, std::uint8_t* to,
               std::size_t size) noexcept;

}  // namespace fp4moe::kernels::cpu::neon
