/* Runs the first MoE layer of a checkpoint on four tokens, through the C API.
 *   run_layer PATH BACKEND        e.g. run_layer model.gguf MARLIN */
#include <stdio.h>
#include <stdlib.h>

#include "fp4moe/fp4moe.h"

static void require(fp4moe_status status) {
  if (status == FP4MOE_OK) return;
  fprintf(stderr, "%s\n", fp4moe_last_error());
  exit(status);
}

int main(int argc, char** argv) {
  if (argc != 3) return FP4MOE_USAGE;
  fp4moe_model* model = NULL;
  fp4moe_layer* layer = NULL;
  fp4moe_layer_options options = {.size = sizeof options, .backend = argv[2]};
  fp4moe_shape shape = {.size = sizeof shape};
  require(fp4moe_model_open(argv[1], &model));
  require(fp4moe_layer_create(model, 0, &options, &layer));
  require(fp4moe_layer_load(layer));    /* any dialect, straight into the backend's layout */
  require(fp4moe_layer_process(layer)); /* handed to an engine */
  require(fp4moe_layer_shape(layer, &shape));

  float* x = calloc(4 * shape.hidden, sizeof *x);
  float* logits = calloc(4 * shape.experts, sizeof *logits);
  float* y = calloc(4 * shape.hidden, sizeof *y);
  if (x == NULL || logits == NULL || y == NULL) return FP4MOE_EXHAUSTED;
  for (size_t i = 0; i < 4 * shape.hidden; ++i) x[i] = (float)(i % 7) - 3;
  for (size_t i = 0; i < 4 * shape.experts; ++i) logits[i] = (float)(i % 3);
  fp4moe_rows in = {sizeof in, x, FP4MOE_F32, 4, shape.hidden, 0};
  fp4moe_rows scores = {sizeof scores, logits, FP4MOE_F32, 4, shape.experts, 0};
  fp4moe_output out = {sizeof out, y, FP4MOE_F32, 4, shape.hidden, 0};
  require(fp4moe_layer_run(layer, &in, &scores, &out));
  printf("%g %g %g ...\n", y[0], y[1], y[2]);

  free(y), free(logits), free(x);
  fp4moe_layer_destroy(layer);
  fp4moe_model_close(model);
  return 0;
}
