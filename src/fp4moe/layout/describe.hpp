// Maps in words and drawings, made from the maps themselves: the pages under docs/layouts are
// these.
#pragma once
#include <string>

#include "fp4moe/layout/layout.hpp"

namespace fp4moe::layout {

// "offset = k/8%2 + 2*(n/8%2) + ... + 16*N*(k/16)", with n a row, k a column, N and K their padded
// numbers.
std::string formula(const Map& map);

// The first bytes of the storage, a line at a time: "row:column", for codes the
// low nibble first. Bits of scattered codes are drawn below.
std::string drawing(const Map& map);

// "rows a multiple of 64, columns padded to a multiple of 4", or nothing.
std::string size_rule(const Map& map);

// A layout's orders and rules as sentences.
std::string order_words(const Layout& layout);
std::string scale_words(const Layout& layout);
std::string bias_words(const Layout& layout);
std::string scalar_words(const Layout& layout);

}  // namespace fp4moe::layout
