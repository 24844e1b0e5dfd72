// Block codecs of the folder avx2/. Plain declarations, for block_codec_list.cpp.
#pragma once
#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx2 {

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

}  // namespace fp4moe::kernels::cpu::avx2
