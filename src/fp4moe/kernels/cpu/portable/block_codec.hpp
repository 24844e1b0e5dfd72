// Block codecs of the folder portable/. Plain declarations, for block_codec_list.cpp and for vector
// kernels that meet an unusual block.
#pragma once
#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu::portable {

void quantize_mxfp4(const QuantizeBlocks& work) noexcept;
void quantize_nvfp4(const QuantizeBlocks& work) noexcept;
void quantize_mxfp8(const QuantizeBlocks& work) noexcept;
void dequantize_mxfp4(const DequantizeBlocks& work) noexcept;
void dequantize_nvfp4(const DequantizeBlocks& work) noexcept;
void dequantize_mxfp8(const DequantizeBlocks& work) noexcept;
float max_magnitude(const MaxMagnitude& work) noexcept;
void pack_gguf_mxfp4(const PackGguf& work) noexcept;
void pack_gguf_nvfp4(const PackGguf& work) noexcept;
void unpack_gguf_mxfp4(const UnpackGguf& work) noexcept;
void unpack_gguf_nvfp4(const UnpackGguf& work) noexcept;

// For vector kernels that look E2M1 up: one scale byte has only sixteen results. `results` gets
// those of codes 0 ... 15 in the output's element type (`work` says which; its codes, scales and
// output are not read); `planes` gets their first bytes, then their second bytes, and so on.
using Dequantize = void (*)(const DequantizeBlocks& work) noexcept;
void e2m1_results(const DequantizeBlocks& work, Dequantize reference, std::uint8_t scale,
                  std::uint8_t* results) noexcept;
void e2m1_planes(const DequantizeBlocks& work, Dequantize reference, std::uint8_t scale,
                 std::uint8_t* planes) noexcept;

}  // namespace fp4moe::kernels::cpu::portable
