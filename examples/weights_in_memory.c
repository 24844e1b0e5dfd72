/* A gpt-oss layer from weights in memory, through the C API: no file, no config.json. Every weight
 * is 1, so the output can be computed by hand: with x = 0.25, gate and up are 16, clamped to 7;
 * swigluoai makes about 7 * (7 + 1) of them, and a row of w2 adds up 32 times that: 1792. */
#include <stdio.h>
#include <string.h>

#include "fp4moe/fp4moe.h"

enum { EXPERTS = 4, HIDDEN = 64, INTERMEDIATE = 32, BLOCK = 32 };

int main(void) {
  unsigned char w13[EXPERTS][2 * INTERMEDIATE][HIDDEN / 2], w2[EXPERTS][HIDDEN][INTERMEDIATE / 2];
  unsigned char w13_scales[EXPERTS][2 * INTERMEDIATE][HIDDEN / BLOCK];
  unsigned char w2_scales[EXPERTS][HIDDEN][INTERMEDIATE / BLOCK];
  memset(w13, 0x22, sizeof w13); /* two codes in a byte; code 2 is 1.0 */
  memset(w2, 0x22, sizeof w2);
  memset(w13_scales, 127, sizeof w13_scales); /* E8M0: 2^(127 - 127) */
  memset(w2_scales, 127, sizeof w2_scales);
  fp4moe_gpt_oss_experts given = {.size = sizeof given, .experts = EXPERTS, .hidden = HIDDEN};
  given.intermediate = INTERMEDIATE, given.top_k = 2;
  given.gate_up_proj_blocks = w13, given.gate_up_proj_scales = w13_scales; /* and ..._bias */
  given.down_proj_blocks = w2, given.down_proj_scales = w2_scales;

  float x[HIDDEN], logits[EXPERTS] = {0, 3, 1, 2}, y[HIDDEN];
  for (int i = 0; i < HIDDEN; ++i) x[i] = 0.25f;
  fp4moe_rows in = {sizeof in, x, FP4MOE_F32, 1, HIDDEN, 0};
  fp4moe_rows scores = {sizeof scores, logits, FP4MOE_F32, 1, EXPERTS, 0};
  fp4moe_output out = {sizeof out, y, FP4MOE_F32, 1, HIDDEN, 0};
  fp4moe_layer* layer = NULL; /* NULL options: the best backend of this machine */
  if (fp4moe_layer_from_gpt_oss(&given, NULL, &layer) != FP4MOE_OK ||
      fp4moe_layer_run(layer, &in, &scores, &out) != FP4MOE_OK)
    return fprintf(stderr, "%s\n", fp4moe_last_error()), 1;
  printf("%g %g ... %g\n", y[0], y[1], y[HIDDEN - 1]);
  fp4moe_layer_destroy(layer);
  return 0;
}
