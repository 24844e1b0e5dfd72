// Classifies a table of 256 bytes for the translate kernels.
#pragma once
#include <array>
#include <cstdint>

#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu {

Translation make_translation(const std::array<std::uint8_t, 256>& table);

}  // namespace fp4moe::kernels::cpu
