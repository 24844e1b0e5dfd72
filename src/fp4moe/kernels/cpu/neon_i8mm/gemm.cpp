// GEMM by smmla.
#include "fp4moe/kernels/cpu/arm_gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

struct Smmla {
  int32x4_t held = vdupq_n_s32(0);
  void add(int8x16_t rows, int8x16_t tokens) { held = vmmlaq_s32(held, rows, tokens); }
  void shift() { held = vshlq_n_s32(held, 8); }
  int32x4_t sums() const { return held; }
  static int32x4_t dot(int32x4_t sum, int8x16_t a, int8x16_t b) { return vdotq_s32(sum, a, b); }
};

}  // namespace

namespace neon_i8mm {
extern const GemmFunctions kGemm;
const GemmFunctions kGemm = kFunctions<Smmla>;
}  // namespace neon_i8mm

}  // namespace fp4moe::kernels::cpu
