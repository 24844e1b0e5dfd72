// The bulk codecs of this build, one row per instruction set, and the choice among them.
#pragma once
#include <span>
#include <string_view>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

using platform::CpuFeature;

struct BlockCodec {
  std::string_view name;  // <isa>/block_codec
  EnumSet<CpuFeature> needs;
  void (*quantize_mxfp4)(const QuantizeBlocks&) noexcept;
  void (*quantize_nvfp4)(const QuantizeBlocks&) noexcept;
  void (*quantize_mxfp8)(const QuantizeBlocks&) noexcept;
  void (*dequantize_mxfp4)(const DequantizeBlocks&) noexcept;
  void (*dequantize_nvfp4)(const DequantizeBlocks&) noexcept;
  void (*dequantize_mxfp8)(const DequantizeBlocks&) noexcept;
  float (*max_magnitude)(const MaxMagnitude&) noexcept;
  void (*pack_gguf_mxfp4)(const PackGguf&) noexcept;
  void (*pack_gguf_nvfp4)(const PackGguf&) noexcept;
  void (*unpack_gguf_mxfp4)(const UnpackGguf&) noexcept;
  void (*unpack_gguf_nvfp4)(const UnpackGguf&) noexcept;
};

// Best first; the last row is portable C++ and needs nothing. `pick` of isa.hpp chooses.
std::span<const BlockCodec> block_codecs();

}  // namespace fp4moe::kernels::cpu
