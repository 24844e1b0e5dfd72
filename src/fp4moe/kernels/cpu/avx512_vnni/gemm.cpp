#include "fp4moe/kernels/cpu/avx512_vnni/gemm.hpp"

namespace fp4moe::kernels::cpu::avx512_vnni {

extern const GemmFunctions kGemm;
constexpr GemmFunctions kGemm{
    {vnni_gemm<VnniMxfp4, 1, X86Exactly>, vnni_gemm<VnniMxfp4, 2, X86Exactly>},
    {vnni_gemm<VnniNvfp4, 1, X86Exactly>, vnni_gemm<VnniNvfp4, 2, X86Exactly>},
    {x86_pack_tokens<1, X86Exactly>, x86_pack_tokens<2, X86Exactly>},
    {x86_panel_bytes<1, X86Exactly>, x86_panel_bytes<2, X86Exactly>}};

}  // namespace fp4moe::kernels::cpu::avx512_vnni
