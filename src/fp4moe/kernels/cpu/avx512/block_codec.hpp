// Block codecs of the folder avx512/. The others are bound by memory: its row uses those of avx2/.
// Plain declarations, for block_codec_list.cpp.
#pragma once
#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx512 {

void quantize_mxfp4(const QuantizeBlocks& work) noexcept;
void quantize_nvfp4(const QuantizeBlocks& work) noexcept;
void quantize_mxfp8(const QuantizeBlocks& work) noexcept;
void dequantize_mxfp4(const DequantizeBlocks& work) noexcept;
void dequantize_nvfp4(const DequantizeBlocks& work) noexcept;
void dequantize_mxfp8(const DequantizeBlocks& work) noexcept;

}  // namespace fp4moe::kernels::cpu::avx512
