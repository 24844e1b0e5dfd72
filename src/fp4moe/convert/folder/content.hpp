// The content of an expert, as one digest that does not depend on how a file lays it out: gate, up
// and down, of each the codes row by row, the block scales row by row, the bias. Converting records
// it, converting back proves it.
#pragma once
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/convert/folder/checksum.hpp"

namespace fp4moe::convert {

Digest content_of(const checkpoint::ExpertView& view);

}  // namespace fp4moe::convert
