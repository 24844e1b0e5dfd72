#include "fp4moe/kernels/cpu/block_codec_list.hpp"

#include "fp4moe/kernels/cpu/portable/block_codec.hpp"
#if defined(__aarch64__)
#include "fp4moe/kernels/cpu/neon/block_codec.hpp"
#elif defined(__x86_64__)
#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx512/block_codec.hpp"
#endif

namespace fp4moe::kernels::cpu {
namespace {

constexpr BlockCodec kCodecs[] = {
#if defined(__aarch64__)
    {"neon/block_codec",
     {CpuFeature::neon},
     neon::quantize_mxfp4,
     neon::quantize_nvfp4,
     neon::quantize_mxfp8,
     neon::dequantize_mxfp4,
     neon::dequantize_nvfp4,
     neon::dequantize_mxfp8,
     neon::max_magnitude,
     neon::pack_gguf_mxfp4,
     neon::pack_gguf_nvfp4,
     neon::unpack_gguf_mxfp4,
     neon::unpack_gguf_nvfp4},
#elif defined(__x86_64__)
    {"avx512/block_codec",
     {CpuFeature::avx2, CpuFeature::avx512},
     avx512::quantize_mxfp4,
     avx512::quantize_nvfp4,
     avx512::quantize_mxfp8,
     avx512::dequantize_mxfp4,
     avx512::dequantize_nvfp4,
     avx512::dequantize_mxfp8,
     avx2::max_magnitude,
     avx2::pack_gguf_mxfp4,
     avx2::pack_gguf_nvfp4,
     avx2::unpack_gguf_mxfp4,
     avx2::unpack_gguf_nvfp4},
    {"avx2/block_codec",
     {CpuFeature::avx2},
     avx2::quantize_mxfp4,
     avx2::quantize_nvfp4,
     avx2::quantize_mxfp8,
     avx2::dequantize_mxfp4,
     avx2::dequantize_nvfp4,
     avx2::dequantize_mxfp8,
     avx2::max_magnitude,
     avx2::pack_gguf_mxfp4,
     avx2::pack_gguf_nvfp4,
     avx2::unpack_gguf_mxfp4,
     avx2::unpack_gguf_nvfp4},
#endif
    {"portable/block_codec",
     {},
     portable::quantize_mxfp4,
     portable::quantize_nvfp4,
     portable::quantize_mxfp8,
     portable::dequantize_mxfp4,
     portable::dequantize_nvfp4,
     portable::dequantize_mxfp8,
     portable::max_magnitude,
     portable::pack_gguf_mxfp4,
     portable::pack_gguf_nvfp4,
     portable::unpack_gguf_mxfp4,
     portable::unpack_gguf_nvfp4},
};

}  // namespace

std::span<const BlockCodec> block_codecs() { return kCodecs; }

}  // namespace fp4moe::kernels::cpu
