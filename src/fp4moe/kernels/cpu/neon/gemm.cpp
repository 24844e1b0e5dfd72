// GEMM on CPUs without dot products: bytes are multiplied to 16 bits and added in pairs.
#include "fp4moe/kernels/cpu/arm_gemm.hpp"

namespace fp4moe::kernels::cpu {
namespace {

struct Smull : HalfSums {
  // Four products of 12 << 3 and 127 at most would overflow 16 bits, so pairs are widened to 32 at
  // once.
  void add(int8x16_t rows, int8x16_t tokens) {
    first = both(first, rows, vget_low_s8(tokens));
    second = both(second, rows, vget_high_s8(tokens));
  }
  static int32x4_t dot(int32x4_t sum, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    const int16x8_t high = vmull_s8(vget_high_s8(a), vget_high_s8(b));
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
  }

 private:
  static int32x4_t both(int32x4_t sum, int8x16_t rows, int8x8_t token) {
    return dot(sum, rows, vcombine_s8(token, token));
  }
};

}  // namespace

namespace neon {
extern const GemmFunctions kGemm;
const GemmFunctions kGemm = kFunctions<Smull>;
}  // namespace neon

}  // namespace fp4moe::kernels::cpu
