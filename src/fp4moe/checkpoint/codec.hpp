// The bulk codec for this machine, chosen once. All codecs give the same bytes; see
// kernels/cpu/block_codec.hpp.
#pragma once
#include "fp4moe/kernels/cpu/block_codec_list.hpp"

namespace fp4moe::checkpoint {

const kernels::cpu::BlockCodec& machine_codec();

}  // namespace fp4moe::checkpoint
