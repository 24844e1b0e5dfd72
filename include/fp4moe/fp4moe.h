/* The C API of fp4moe: which backend a layer gets, conversion to its layout, and running layers.
 *
 *   fp4moe_model* model = NULL;
 *   fp4moe_layer* layer = NULL;
 *   if (fp4moe_model_open("gpt-oss-20b", &model) != FP4MOE_OK ||
 *       fp4moe_layer_create(model, 0, NULL, &layer) != FP4MOE_OK ||
 *       fp4moe_layer_load(layer) != FP4MOE_OK || fp4moe_layer_process(layer) != FP4MOE_OK)
 *     fprintf(stderr, "%s\n", fp4moe_last_error());
 *
 * Functions that can fail return a status, which is also the exit status that the command line
 * would give; the words are then this thread's last error. Nothing is thrown, printed or aborted.
 *
 * Structs begin with their own size: set it to sizeof. Bytes beyond what the caller knows count as
 * zero, and zero is the default of every field; bytes beyond what the library knows must be zero.
 *
 * Strings are UTF-8. A `char**` receives a string of the caller's, to be freed with
 * fp4moe_free_string; a `const char*` that is returned belongs to the library. Where a function
 * fails, what its pointers point at becomes null.
 *
 * Any thread may call anything. Calls on one layer wait for each other. Handles are never reused:
 * one that was closed, or never was, is refused. Guide: docs/c-api.md. */
#ifndef FP4MOE_FP4MOE_H
#define FP4MOE_FP4MOE_H

/* C's names are not those of the C++ parts. */
/* NOLINTBEGIN(readability-identifier-naming,cppcoreguidelines-macro-usage) */
#include <stddef.h>
#include <stdint.h>

#define FP4MOE_VERSION_MAJOR 0
#define FP4MOE_VERSION_MINOR 1
#define FP4MOE_VERSION_PATCH 0
/* Grows by one whenever something is added here. */
#define FP4MOE_API_VERSION 4

#if defined(__GNUC__)
#define FP4MOE_API __attribute__((visibility("default")))
#else
#define FP4MOE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fp4moe_status {
  FP4MOE_OK = 0,
  FP4MOE_FAILED = 1,        /* the work could not be done: input/output error, bug */
  FP4MOE_USAGE = 2,         /* the request itself is wrong */
  FP4MOE_INVALID_INPUT = 3, /* a file or tensor breaks its format */
  FP4MOE_NO_BACKEND = 4,    /* no backend supports the configuration */
  FP4MOE_MISMATCH = 5,      /* verification disagrees */
  FP4MOE_EXHAUSTED = 6,     /* out of memory or disk */
  FP4MOE_LACKING = 7,       /* this machine or build lacks what is needed */
  FP4MOE_INTERRUPTED = 130
} fp4moe_status;

typedef enum fp4moe_dtype {
  FP4MOE_BF16 = 1,
  FP4MOE_F16 = 2,
  FP4MOE_F32 = 3,
  FP4MOE_F64 = 4
} fp4moe_dtype;

typedef enum fp4moe_log_level { FP4MOE_LOG_NOTE = 1, FP4MOE_LOG_WARNING = 2 } fp4moe_log_level;

typedef struct fp4moe_model fp4moe_model; /* a checkpoint or converted folder, opened */
typedef struct fp4moe_layer fp4moe_layer; /* one of its MoE layers, or one from weights in memory */
typedef struct fp4moe_adapters fp4moe_adapters; /* LoRA adapters of one layer */

/* ---- The library --------------------------------------------------------------------------- */

FP4MOE_API const char* fp4moe_version(void);  /* "0.1.0" */
FP4MOE_API uint32_t fp4moe_api_version(void); /* FP4MOE_API_VERSION of the library that runs */
FP4MOE_API const char* fp4moe_status_name(int32_t status); /* "usage"; "unknown" for others */

/* Why this thread's last failing call failed: one line for people, a stable name for programs
 * ("handle.freed"), and both with their parts as a JSON object. Until the thread fails again; ""
 * and "{}" before it ever did. */
FP4MOE_API const char* fp4moe_last_error(void);
FP4MOE_API const char* fp4moe_last_error_id(void);
FP4MOE_API const char* fp4moe_last_error_json(void);

FP4MOE_API void fp4moe_free_string(char* string); /* null: nothing */

/* Where warnings and notes go, from any thread, while a call runs; null: nowhere. A call that is
 * under way elsewhere may still use the previous sink. The sink must not throw or jump out. */
typedef void (*fp4moe_log)(int32_t level, const char* message, void* user);
FP4MOE_API void fp4moe_set_log(fp4moe_log sink, void* user);

/* ---- Which backend, and why not the others ------------------------------------------------- */

/* `request` is a JSON object in the words of `fp4moe explain`: {"device": "h100", "model":
 * "gpt-oss-20b", "policy": "2026-04-24", "tp": 8, "layer": {"hidden_dim": 2880}}; null: all
 * defaults, which is this machine. `record` receives what `fp4moe explain --json` prints.
 * FP4MOE_NO_BACKEND: there is a record, and it says why. */
FP4MOE_API fp4moe_status fp4moe_explain(const char* request, char** record);

/* ---- Conversion ---------------------------------------------------------------------------- */

typedef struct fp4moe_convert_options {
  size_t size;
  const char* backend;       /* null: what the policy selects for the device */
  const char* layout;        /* instead of a backend: "marlin.mxfp4" */
  const char* generation;    /* of the layout; null: the backend's, or the newest */
  const char* policy;        /* null: "native" */
  const char* device;        /* null or "auto": this machine; "h100", ... */
  uint64_t tp_rank, tp_size; /* this rank of so many that split every expert; 0, 0: alone */
  uint64_t ep_rank, ep_size; /* the same where whole experts are dealt out */
  uint64_t threads;          /* 0: all */
  uint64_t max_memory;       /* bytes; 0: no limit */
  uint64_t resume;           /* not 0: go on where a stopped conversion left off */
  uint64_t experts_only;     /* not 0: leave the other tensors out */
} fp4moe_convert_options;

/* A checkpoint (folder, index or file) into a backend's layout, in the new folder `out`. `report`
 * may be null. */
FP4MOE_API fp4moe_status fp4moe_convert(const char* checkpoint, const char* out,
                                        const fp4moe_convert_options* options, char** report);

/* ---- Models -------------------------------------------------------------------------------- */

FP4MOE_API fp4moe_status fp4moe_model_open(const char* path, fp4moe_model** model);

/* A tensor in the caller's memory, dense and row-major. */
typedef struct fp4moe_tensor {
  size_t size;
  const char* name;      /* as in the checkpoint's files */
  const char* dtype;     /* as safetensors spells it: "U8", "BF16", "F8_E4M3" */
  const uint64_t* shape; /* outermost first */
  uint64_t dimensions;
  const void* data;
  uint64_t bytes;
} fp4moe_tensor;

typedef struct fp4moe_tensors {
  size_t size;
  const fp4moe_tensor* tensors;
  uint64_t count;
  const char* config;       /* the text of config.json; null: there is none */
  const char* quant_config; /* of hf_quant_config.json; null: there is none */
} fp4moe_tensors;

/* A checkpoint whose tensors the caller has read already. Names, shapes and texts are copied; the
 * tensors' memory is read by layers while they load (with weights "mapped" while they compute) and
 * must stay until the model and its layers are closed. Since version 2. */
FP4MOE_API fp4moe_status fp4moe_model_from_tensors(const fp4moe_tensors* tensors,
                                                   fp4moe_model** model);

FP4MOE_API void fp4moe_model_close(fp4moe_model* model); /* its layers stay; null: nothing */
FP4MOE_API fp4moe_status fp4moe_model_layers(const fp4moe_model* model, uint64_t* count);
FP4MOE_API fp4moe_status fp4moe_model_info(const fp4moe_model* model, char** json);

/* ---- Layers: created, loaded, processed, applied; loaded again when weights change --------- */

typedef struct fp4moe_layer_options {
  size_t size;
  const char* engine;        /* null or "auto"; "reference", "cpu", "cuda" */
  const char* backend;       /* null or "auto": what the policy selects for the device */
  const char* policy;        /* null: "native" */
  const char* device;        /* null or "auto": this machine */
  const char* numerics;      /* null: the backend's; "exact", ... */
  const char* weights;       /* null or "auto"; "packed", "mapped" */
  uint64_t threads;          /* 0: all */
  uint64_t tp_rank, tp_size; /* as in fp4moe_convert_options; outputs are then parts of the sum */
  uint64_t ep_rank, ep_size;
} fp4moe_layer_options;

/* What the rows of a layer's calls look like; `size` is the caller's. */
typedef struct fp4moe_shape {
  size_t size;
  uint64_t hidden, intermediate;   /* columns of x and of the output; of the activation */
  uint64_t experts, local_experts; /* all, and those of this rank */
  uint64_t top_k;                  /* experts of a token */
} fp4moe_shape;

/* Rows in the caller's memory, aligned as their type is. */
typedef struct fp4moe_rows {
  size_t size;
  const void* data;
  uint64_t dtype; /* fp4moe_dtype */
  uint64_t rows, columns;
  uint64_t stride; /* bytes from row to row; 0: no gaps */
} fp4moe_rows;

typedef struct fp4moe_output {
  size_t size;
  void* data; /* of no memory that the call reads */
  uint64_t dtype;
  uint64_t rows, columns;
  uint64_t stride;
} fp4moe_output;

/* The experts of each token, without gaps: [tokens, top_k]. */
typedef struct fp4moe_routes {
  size_t size;
  const int32_t* ids; /* -1: nothing */
  const float* weights;
  uint64_t tokens, top_k;
} fp4moe_routes;

FP4MOE_API fp4moe_status fp4moe_layer_create(const fp4moe_model* model, uint64_t number,
                                             const fp4moe_layer_options* options,
                                             fp4moe_layer** layer);
FP4MOE_API void fp4moe_layer_destroy(fp4moe_layer* layer); /* null: nothing */
FP4MOE_API fp4moe_status fp4moe_layer_load(fp4moe_layer* layer);
/* One expert again, by its position among those of the rank. */
FP4MOE_API fp4moe_status fp4moe_layer_load_expert(fp4moe_layer* layer, uint64_t position);
FP4MOE_API fp4moe_status fp4moe_layer_process(fp4moe_layer* layer);

/* Given ids and weights. */
FP4MOE_API fp4moe_status fp4moe_layer_apply(fp4moe_layer* layer, const fp4moe_rows* x,
                                            const fp4moe_routes* routes, const fp4moe_output* out);
/* Given logits, by a kernel that routes itself; refused where the backend has none. */
FP4MOE_API fp4moe_status fp4moe_layer_apply_monolithic(fp4moe_layer* layer, const fp4moe_rows* x,
                                                       const fp4moe_rows* logits,
                                                       const fp4moe_output* out);
/* Given logits: by the monolithic kernel where there is one, else routed first. */
FP4MOE_API fp4moe_status fp4moe_layer_run(fp4moe_layer* layer, const fp4moe_rows* x,
                                          const fp4moe_rows* logits, const fp4moe_output* out);

/* All that a call may bring; zero is nothing. Since version 3. */
typedef struct fp4moe_call {
  size_t size;
  const fp4moe_rows* x;
  const fp4moe_output* out;
  const fp4moe_routes* routes;     /* ids and weights, as fp4moe_layer_apply takes them, or ... */
  const fp4moe_rows* logits;       /* ... logits, as fp4moe_layer_run takes them */
  const fp4moe_adapters* adapters; /* of this layer; null: none */
  const int32_t* adapter_of_token; /* [tokens] by their order, -1: none; null: the first for all */
  uint64_t on_device; /* not 0: all rows and routes above are addresses of the layer's GPU */
  void* stream;       /* then: where the work is enqueued (CUstream, cudaStream_t); null: default */
  uint64_t trusted;   /* not 0: the driver is not asked whether the addresses are its own */
} fp4moe_call;

/* apply or run, with all that a call may bring. On a device it enqueues and returns: what it reads
 * and writes stays until the stream has done it. Needs engine "cuda"; adapters are for calls with
 * tokens on the host. Since version 3. */
FP4MOE_API fp4moe_status fp4moe_layer_call(fp4moe_layer* layer, const fp4moe_call* call);
/* Memory on the device for calls of up to so many tokens, before a stream is captured into a graph;
 * top_k 0: the layer's. Graphs stay valid until the layer is processed again. Since version 3. */
FP4MOE_API fp4moe_status fp4moe_layer_reserve(fp4moe_layer* layer, uint64_t tokens, uint64_t top_k);

FP4MOE_API fp4moe_status fp4moe_layer_shape(const fp4moe_layer* layer, fp4moe_shape* shape);
/* {"backend", "policy", "layout", "numerics", "weights_bytes", "engine", "kernel", ...}; the engine
 * and its kernel once the layer is processed; "wide_rows" if its weights are on a device. */
FP4MOE_API fp4moe_status fp4moe_layer_info(const fp4moe_layer* layer, char** json);

/* ---- Routing: logits to experts and their weights (since version 3) ------------------------ */

typedef struct fp4moe_routing {
  size_t size;
  const char* method;             /* "Renormalize", "DeepSeekV3", ...: docs/routing.md */
  uint64_t experts, top_k;        /* in a layer's description 0: the layer's */
  uint64_t groups, chosen_groups; /* 0: not grouped */
  const float* bias;              /* [experts + zero_experts] of the choice; null: none */
  double scale;                   /* of the weights; 0: 1 */
  uint64_t scale_on_output;       /* not 0: left to whoever adds shared experts */
  uint64_t renormalize;           /* where the method leaves it open: 1 yes, 2 no */
  uint64_t zero_experts;          /* identities, numbered after the experts */
  uint64_t shared_experts;        /* appended to every token */
  const int32_t* table;           /* [table_rows, top_k]: experts of token ids; null: none */
  uint64_t table_rows;
  uint64_t weights_in_bf16; /* not 0: weights are rounded */
} fp4moe_routing;

/* slots = top_k + shared_experts. */
typedef struct fp4moe_route_call {
  size_t size;
  const fp4moe_rows* logits; /* [tokens, experts + zero_experts] of bf16, f16 or f32 */
  const int32_t* token_ids;  /* [tokens], where a table chooses */
  const uint8_t* is_padding; /* [tokens], not 0: ids -1 and weights 0; null: none */
  int32_t* ids;              /* [tokens, slots] */
  float* weights;            /* [tokens, slots] */
  float* identity_weights;   /* [tokens], where there are zero experts */
  uint64_t slots;            /* columns of ids and weights */
} fp4moe_route_call;

/* On the calling thread. */
FP4MOE_API fp4moe_status fp4moe_route(const fp4moe_routing* routing, const fp4moe_route_call* call);
/* By the layer's router, on the layer's threads. */
FP4MOE_API fp4moe_status fp4moe_layer_route(fp4moe_layer* layer, const fp4moe_route_call* call);

/* ---- Layers from weights in memory (since version 3) --------------------------------------- */

/* One matrix of all experts in the host's memory: codes [experts, rows, k / 2], the even element in
 * the low nibble; scales [experts, rows, k / block], E8M0 for 32 (mxfp4) or E4M3 for 16 (nvfp4).
 * Strides are in bytes; 0: no gaps. `*_bytes` is the size of the memory. */
typedef struct fp4moe_matrix {
  size_t size;
  const void* codes;
  uint64_t codes_bytes, codes_expert_stride, codes_row_stride;
  const void* scales;
  uint64_t scales_bytes, scales_expert_stride, scales_row_stride;
  const float* global_scales; /* nvfp4, factors: 1, one per expert, or of a w13 two (gate, up) */
  uint64_t global_scales_count;
  const float* input_scales; /* the same, of the activations; null: none */
  uint64_t input_scales_count;
  const void* bias; /* [experts, rows]; null: none */
  uint64_t bias_bytes, bias_expert_stride;
  uint64_t bias_dtype; /* FP4MOE_BF16, _F16 or _F32; 0: BF16 */
} fp4moe_matrix;

typedef struct fp4moe_weights {
  size_t size;
  const char* format;                     /* "mxfp4" or "nvfp4" */
  const char* row_order;                  /* of w13: "interleaved", "halves", "single" (no gate) */
  uint64_t experts, hidden, intermediate; /* of this memory */
  const fp4moe_matrix* w13;               /* [experts, 2 * intermediate, hidden], or ... */
  const fp4moe_matrix* gate;              /* ... gate and up apart */
  const fp4moe_matrix* up;
  const fp4moe_matrix* w2; /* [experts, hidden, intermediate] */
} fp4moe_weights;

/* What config.json would say. Constants are pointers because 0 is a number: null: the
 * activation's own. */
typedef struct fp4moe_layer_description {
  size_t size;
  const char* activation; /* "swigluoai", "silu", ...: docs/run.md; must be given */
  const double* alpha;
  const double* beta;
  const double* limit;
  uint64_t top_k;                 /* 0: the routing's */
  const fp4moe_routing* routing;  /* null: calls bring ids and weights */
  uint64_t weight_on_input;       /* not 0: router weights multiply x */
  uint64_t experts, intermediate; /* of the whole layer, where the weights are what the ranks of
                                     the options leave of it; 0: as the weights */
  uint64_t split_blocks; /* not 0: ranks take whole blocks, the last one the rest (gpt-oss) */
} fp4moe_layer_description;

/* A layer without a file. The weights' memory is read by fp4moe_layer_load and _load_expert, and by
 * calls where options say weights "mapped"; else it may go once the layer is loaded. */
FP4MOE_API fp4moe_status fp4moe_layer_from_weights(const fp4moe_layer_description* description,
                                                   const fp4moe_weights* weights,
                                                   const fp4moe_layer_options* options,
                                                   fp4moe_layer** layer);
/* fp4moe_layer_load from other memory of the same shape, which later loads read, too. */
FP4MOE_API fp4moe_status fp4moe_layer_load_weights(fp4moe_layer* layer,
                                                   const fp4moe_weights* weights);

/* The experts of a gpt-oss layer by their names in the checkpoint, dense: MXFP4, gate and up rows
 * interleaved. Sizes of the memory follow from the numbers. Since version 4. */
typedef struct fp4moe_gpt_oss_experts {
  size_t size;
  uint64_t experts, hidden, intermediate;
  uint64_t top_k;                  /* 0: 4 */
  const void* gate_up_proj_blocks; /* [experts, 2 * intermediate, hidden / 2] */
  const void* gate_up_proj_scales; /* [experts, 2 * intermediate, hidden / 32] */
  const void* gate_up_proj_bias;   /* [experts, 2 * intermediate] BF16; null: none */
  const void* down_proj_blocks;    /* [experts, hidden, intermediate / 2] */
  const void* down_proj_scales;    /* [experts, hidden, intermediate / 32] */
  const void* down_proj_bias;      /* [experts, hidden] BF16; null: none */
} fp4moe_gpt_oss_experts;

/* fp4moe_layer_from_weights, _load and _process in one call, with gpt-oss's activation (swigluoai)
 * and routing (softmax over the chosen experts): a layer that is ready to run. The memory may go,
 * unless options say weights "mapped". Since version 4. */
FP4MOE_API fp4moe_status fp4moe_layer_from_gpt_oss(const fp4moe_gpt_oss_experts* experts,
                                                   const fp4moe_layer_options* options,
                                                   fp4moe_layer** layer);

/* ---- LoRA adapters (since version 3) ------------------------------------------------------- */

/* A [rank, inputs] and B [outputs, rank] of all experts without gaps, or of one for all. */
typedef struct fp4moe_lora_pair {
  size_t size;
  const void* a;
  uint64_t a_bytes;
  const void* b;
  uint64_t b_bytes;
  uint64_t dtype; /* FP4MOE_BF16, _F16 or _F32 of both */
} fp4moe_lora_pair;

/* One adapter of a layer; pairs it has not are null. */
typedef struct fp4moe_lora {
  size_t size;
  uint64_t rank;
  double scale;                /* of B: alpha / rank; 0: 1 */
  const fp4moe_lora_pair* w13; /* gate and up with one A, rows of B in the layer's order, or ... */
  const fp4moe_lora_pair* gate;
  const fp4moe_lora_pair* up;
  const fp4moe_lora_pair* w2;
} fp4moe_lora;

/* PEFT's folders, for a layer of a checkpoint. Tokens name adapters by their order. */
FP4MOE_API fp4moe_status fp4moe_adapters_open(const fp4moe_layer* layer, const char* const* folders,
                                              uint64_t count, fp4moe_adapters** adapters);
/* From memory, which is copied, for any layer. */
FP4MOE_API fp4moe_status fp4moe_adapters_from_memory(const fp4moe_layer* layer,
                                                     const fp4moe_lora* loras, uint64_t count,
                                                     fp4moe_adapters** adapters);
FP4MOE_API void fp4moe_adapters_close(fp4moe_adapters* adapters); /* null: nothing */

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,cppcoreguidelines-macro-usage) */
#endif
