// DeepGEMM's scales: four of a row in a word, words of a column together.
#pragma once
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::backends::deepgemm {

layout::Map scales();

}  // namespace fp4moe::backends::deepgemm
