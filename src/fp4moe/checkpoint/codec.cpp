#include "fp4moe/checkpoint/codec.hpp"

#include "fp4moe/kernels/cpu/isa.hpp"

namespace fp4moe::checkpoint {

const kernels::cpu::BlockCodec& machine_codec() {
  static const kernels::cpu::BlockCodec& chosen =
      kernels::cpu::pick(kernels::cpu::block_codecs(), kernels::cpu::machine_features());
  return chosen;
}

}  // namespace fp4moe::checkpoint
