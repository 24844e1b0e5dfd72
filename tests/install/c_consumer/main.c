/* Uses the installed package from C: asks a question, runs a layer of the checkpoint it is given.
 */
#include <fp4moe/fp4moe.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, fp4moe_last_error());
  return 1;
}

int main(int argc, char** argv) {
  fp4moe_model* model = NULL;
  fp4moe_layer* layer = NULL;
  char* json = NULL;
  if (argc != 2) return 2;
  if (fp4moe_api_version() < FP4MOE_API_VERSION) return fail("version");
  if (fp4moe_explain("{\"device\": \"h100\", \"policy\": \"2026-04-24\"}", &json) != FP4MOE_OK)
    return fail("explain");
  if (strstr(json, "TRITON") == NULL) return fail("record");
  fp4moe_free_string(json);
  if (fp4moe_model_open("/nowhere", &model) == FP4MOE_OK || model != NULL) return fail("nowhere");
  if (fp4moe_model_open(argv[1], &model) != FP4MOE_OK) return fail("open");
  if (fp4moe_layer_create(model, 0, NULL, &layer) != FP4MOE_OK) return fail("create");
  fp4moe_model_close(model);
  if (fp4moe_layer_load(layer) != FP4MOE_OK) return fail("load");
  if (fp4moe_layer_process(layer) != FP4MOE_OK) return fail("process");
  if (fp4moe_layer_info(layer, &json) != FP4MOE_OK) return fail("info");
  printf("fp4moe %s from C: %s\n", fp4moe_version(), json);
  fp4moe_free_string(json);
  fp4moe_layer_destroy(layer);
  return 0;
}
