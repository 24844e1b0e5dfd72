// Finds out what a table of 256 bytes has that kernels can make use of.
#pragma once
#include <array>
#include <cstdint>

#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu {

Translation make_translation(const std::array<std::uint8_t, 256>& table);

}  // namespace fp4moe::kernels::cpu
