// GEMM by sdot: two of them replace one smmla.
#include "fp4moe/kernels/cpu/arm_gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

struct Sdot : HalfSums {
  void add(int8x16_t rows, int8x16_t tokens) {
    const int64x2_t halves = vreinterpretq_s64_s8(tokens);
    first = vdotq_s32(first, rows, vreinterpretq_s8_s64(vdupq_laneq_s64(halves, 0)));
    second = vdotq_s32(second, rows, vreinterpretq_s8_s64(vdupq_laneq_s64(halves, 1)));
  }
  static int32x4_t dot(int32x4_t sum, int8x16_t a, int8x16_t b) { return vdotq_s32(sum, a, b); }
};

}  // namespace

namespace neon_dotprod {
extern const GemmFunctions kGemm;
const GemmFunctions kGemm = kFunctions<Sdot>;
}  // namespace neon_dotprod

}  // namespace fp4moe::kernels::cpu
