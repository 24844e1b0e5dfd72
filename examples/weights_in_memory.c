/* A MoE layer from weights in memory, through the C API: no file, no names, no config.json.
 * Every weight is 1, so what comes out can be computed by hand: with x = 0.25, gate and up are 16,
 * silu(16) * 16 = 256, and the output is 32 * 256 for one expert of weight 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fp4moe/fp4moe.h"

enum { EXPERTS = 4, HIDDEN = 64, INTERMEDIATE = 32, BLOCK = 32 }; /* MXFP4: 32 codes to a scale */

static unsigned char w13[EXPERTS][2 * INTERMEDIATE][HIDDEN / 2],
    w2[EXPERTS][HIDDEN][INTERMEDIATE / 2];
static unsigned char w13_scales[EXPERTS][2 * INTERMEDIATE][HIDDEN / BLOCK];
static unsigned char w2_scales[EXPERTS][HIDDEN][INTERMEDIATE / BLOCK];

static void require(fp4moe_status status) {
  if (status == FP4MOE_OK) return;
  fprintf(stderr, "%s\n", fp4moe_last_error());
  exit(status);
}

int main(void) {
  memset(w13, 0x22, sizeof w13); /* two codes to a byte; code 2 is 1.0 */
  memset(w2, 0x22, sizeof w2);
  memset(w13_scales, 127, sizeof w13_scales); /* E8M0: 2^(127 - 127) */
  memset(w2_scales, 127, sizeof w2_scales);

  fp4moe_matrix first = {.size = sizeof first,
                         .codes = w13,
                         .codes_bytes = sizeof w13,
                         .scales = w13_scales,
                         .scales_bytes = sizeof w13_scales};
  fp4moe_matrix second = {.size = sizeof second,
                          .codes = w2,
                          .codes_bytes = sizeof w2,
                          .scales = w2_scales,
                          .scales_bytes = sizeof w2_scales};
  fp4moe_weights weights = {.size = sizeof weights,
                            .format = "mxfp4",
                            .row_order = "halves",
                            .experts = EXPERTS,
                            .hidden = HIDDEN,
                            .intermediate = INTERMEDIATE,
                            .w13 = &first,
                            .w2 = &second};
  fp4moe_routing routing = {.size = sizeof routing, .method = "Renormalize"};
  fp4moe_layer_description description = {
      .size = sizeof description, .activation = "silu", .top_k = 2, .routing = &routing};
  fp4moe_layer* layer = NULL;
  require(fp4moe_layer_from_weights(&description, &weights, NULL, &layer));
  require(fp4moe_layer_load(layer)); /* packed for this machine; the arrays may go now */
  require(fp4moe_layer_process(layer));

  float x[HIDDEN], logits[EXPERTS] = {0, 3, 1, 2}, y[HIDDEN];
  for (int i = 0; i < HIDDEN; ++i) x[i] = 0.25f;
  fp4moe_rows in = {sizeof in, x, FP4MOE_F32, 1, HIDDEN, 0};
  fp4moe_rows scores = {sizeof scores, logits, FP4MOE_F32, 1, EXPERTS, 0};
  fp4moe_output out = {sizeof out, y, FP4MOE_F32, 1, HIDDEN, 0};
  require(fp4moe_layer_run(layer, &in, &scores, &out));
  printf("%g %g ... %g\n", y[0], y[1], y[HIDDEN - 1]);
  fp4moe_layer_destroy(layer);
  return 0;
}
