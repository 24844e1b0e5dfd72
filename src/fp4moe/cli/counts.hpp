// Counts as sentences of the commands have them.
#pragma once
#include <cstdint>
#include <string>

#include "fp4moe/base/phrase.hpp"

namespace fp4moe::cli {

// "4 experts each" of two layers that have eight together, "8 experts" of one layer, or where
// layers differ.
inline std::string experts_text(std::uint64_t experts, std::uint64_t layers) {
  if (layers > 1 && experts % layers == 0) return counted(experts / layers, "expert") + " each";
  return counted(experts, "expert");
}

}  // namespace fp4moe::cli
