#include "fp4moe/weights/codec.hpp"

#include "fp4moe/kernels/cpu/isa.hpp"

namespace fp4moe::weights {

const kernels::cpu::BlockCodec& machine_codec() {
  static const kernels::cpu::BlockCodec& codec =
      kernels::cpu::pick(kernels::cpu::block_codecs(), platform::detect_cpu_features());
  return codec;
}

}  // namespace fp4moe::weights
