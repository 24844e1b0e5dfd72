/* A layer on an NVIDIA GPU with tokens that lie there already: addresses of the device and a stream.
 * The layer is that of weights_in_memory.c, so the output is about 1792. Programs that use CUDA's
 * runtime have cudaMalloc and a cudaStream_t; this one asks the driver itself, so that it compiles
 * without CUDA. Where there is no GPU, or the library was built without its kernels, it says so and
 * ends with status 77. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "fp4moe/fp4moe.h"

enum { EXPERTS = 4, HIDDEN = 64, INTERMEDIATE = 32, BLOCK = 32, SKIPPED = 77 };

typedef uint64_t address; /* CUdeviceptr */
static struct {
  int (*retain)(void** context, int device), (*use)(void* context);
  int (*allocate)(address* memory, size_t bytes), (*release)(address memory);
  int (*upload)(address to, const void* from, size_t bytes);
  int (*download)(void* to, address from, size_t bytes);
  int (*make_stream)(void** stream, unsigned flags), (*wait)(void* stream);
} cuda;

/* Where a function of the driver lies; 0: there is no driver. */
static int find(void* driver, const char* name, void* function) {
  void* symbol = driver == NULL ? NULL : dlsym(driver, name);
  memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast for this */
  return symbol != NULL;
}

static int find_driver(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return find(driver, "cuDevicePrimaryCtxRetain", &cuda.retain) &&
         find(driver, "cuCtxSetCurrent", &cuda.use) &&
         find(driver, "cuMemAlloc_v2", &cuda.allocate) &&
         find(driver, "cuMemFree_v2", &cuda.release) &&
         find(driver, "cuMemcpyHtoD_v2", &cuda.upload) &&
         find(driver, "cuMemcpyDtoH_v2", &cuda.download) &&
         find(driver, "cuStreamCreate", &cuda.make_stream) &&
         find(driver, "cuStreamSynchronize", &cuda.wait);
}

static fp4moe_status make_layer(fp4moe_layer** layer) {
  unsigned char w13[EXPERTS][2 * INTERMEDIATE][HIDDEN / 2], w2[EXPERTS][HIDDEN][INTERMEDIATE / 2];
  unsigned char w13_scales[EXPERTS][2 * INTERMEDIATE][HIDDEN / BLOCK];
  unsigned char w2_scales[EXPERTS][HIDDEN][INTERMEDIATE / BLOCK];
  memset(w13, 0x22, sizeof w13); /* two codes in a byte; code 2 is 1.0 */
  memset(w2, 0x22, sizeof w2);
  memset(w13_scales, 127, sizeof w13_scales); /* E8M0: 2^(127 - 127) */
  memset(w2_scales, 127, sizeof w2_scales);
  fp4moe_gpt_oss_experts given = {.size = sizeof given, .experts = EXPERTS, .hidden = HIDDEN};
  given.intermediate = INTERMEDIATE, given.top_k = 2;
  given.gate_up_proj_blocks = w13, given.gate_up_proj_scales = w13_scales;
  given.down_proj_blocks = w2, given.down_proj_scales = w2_scales;
  fp4moe_layer_options options = {.size = sizeof options, .engine = "cuda"};
  return fp4moe_layer_from_gpt_oss(&given, &options, layer);
}

int main(void) {
  fp4moe_layer* layer = NULL;
  if (make_layer(&layer) != FP4MOE_OK) return printf("skipped: %s\n", fp4moe_last_error()), SKIPPED;

  float x[HIDDEN], logits[EXPERTS] = {0, 3, 1, 2}, y[HIDDEN];
  for (int i = 0; i < HIDDEN; ++i) x[i] = 0.25f;
  void *context = NULL, *stream = NULL;
  address on_device[3] = {0, 0, 0}; /* of x, logits and y */
  if (!find_driver() || cuda.retain(&context, 0) != 0 || cuda.use(context) != 0 ||
      cuda.make_stream(&stream, 1) != 0 || cuda.allocate(&on_device[0], sizeof x) != 0 ||
      cuda.allocate(&on_device[1], sizeof logits) != 0 ||
      cuda.allocate(&on_device[2], sizeof y) != 0 || cuda.upload(on_device[0], x, sizeof x) != 0 ||
      cuda.upload(on_device[1], logits, sizeof logits) != 0)
    return fprintf(stderr, "the driver gives no memory\n"), 1;

  fp4moe_rows in = {sizeof in, (void*)(uintptr_t)on_device[0], FP4MOE_F32, 1, HIDDEN, 0};
  fp4moe_rows scores = {sizeof scores, (void*)(uintptr_t)on_device[1], FP4MOE_F32, 1, EXPERTS, 0};
  fp4moe_output out = {sizeof out, (void*)(uintptr_t)on_device[2], FP4MOE_F32, 1, HIDDEN, 0};
  fp4moe_call call = {.size = sizeof call, .x = &in, .logits = &scores, .out = &out};
  call.on_device = 1, call.stream = stream; /* enqueues and returns */
  if (fp4moe_layer_call(layer, &call) != FP4MOE_OK)
    return fprintf(stderr, "%s\n", fp4moe_last_error()), 1;
  if (cuda.wait(stream) != 0 || cuda.download(y, on_device[2], sizeof y) != 0)
    return fprintf(stderr, "the result does not come back\n"), 1;
  printf("%g %g ... %g\n", y[0], y[1], y[HIDDEN - 1]);
  for (int i = 0; i < 3; ++i) cuda.release(on_device[i]);
  fp4moe_layer_destroy(layer);
  return 0;
}
