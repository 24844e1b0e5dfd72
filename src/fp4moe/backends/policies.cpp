// The policies: what the reference does at each date, and what we do. Where dates differ there is
// one list per date.
#include "fp4moe/backends/policies.hpp"

namespace fp4moe::backends {
namespace {

using oracle::EnvironmentStep;
using oracle::exactly;
using oracle::family;
using oracle::Library;
using oracle::NamedChoice;
using oracle::PlatformKind;
using oracle::Policy;
using oracle::PolicyDate;
using oracle::Routing;
using oracle::Variable;
using oracle::WeightFormat;
using oracle::Wording;

constexpr Wording kMxfp4Wording{
    .using_backend = "Using '{0}' Mxfp4 MoE backend.",
    .unsupported = "Mxfp4 MoE backend '{0}' does not support the deployment configuration.",
    .since = "Mxfp4 MoE backend '{0}' does not support the deployment configuration since {1}.",
    .unknown_name = "moe_backend='{0}' is not supported for MXFP4 MoE. Expected one of {1}.",
    .nothing_supports = "No MXFP4 MoE backend supports the deployment configuration.",
};
constexpr Wording kNvfp4Wording{
    .using_backend = "Using '{0}' NvFp4 MoE backend out of potential backends: {1}.",
    .unsupported = "NvFp4 MoE backend '{0}' does not support the deployment configuration.",
    .since = "NvFp4 MoE backend '{0}' does not support the deployment configuration since {1}.",
    .unknown_name = "moe_backend='{0}' is not supported for NvFP4 MoE. Expected one of {1}.",
    .nothing_supports = "No NvFp4 MoE backend supports the deployment configuration.",
    .no_flashinfer =
        "Found VLLM_USE_FLASHINFER_MOE_FP4=1, but no FlashInfer NVFP4 MoE backend supports the "
        "configuration.",
};

NamedChoice named(std::string_view name, std::vector<const oracle::Backend*> backends) {
  return {.name = name, .backends = std::move(backends)};
}

// MXFP4, March and April ------------------------------------------------------------------------

std::vector<EnvironmentStep> steps_before_august(Rows& rows) {
  const oracle::Backend* cutlass = rows("FLASHINFER_CUTLASS_MXFP4_BF16");
  const oracle::Backend* trtllm = rows("FLASHINFER_TRTLLM_MXFP4_BF16");
  return {
      {.variable = Variable::flashinfer_mxfp4_bf16,
       .removed_when_false = {trtllm, cutlass},
       .when_true = {{exactly(9, 0), cutlass}, {family(10), trtllm}},
       .otherwise = "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16=1 is set but the current device capability "
                    "is not supported. Only SM90 (CUTLASS) and SM100+ (TRTLLM) are supported."},
      {.variable = Variable::flashinfer_mxfp4_mxfp8,
       .when_true = {{{}, rows("FLASHINFER_TRTLLM_MXFP4_MXFP8")}}},
      {.variable = Variable::flashinfer_mxfp4_mxfp8_cutlass,
       .when_true = {{{}, rows("FLASHINFER_CUTLASS_MXFP4_MXFP8")}}},
      {.variable = Variable::mxfp4_use_marlin,
       .when_true = {{{}, rows("MARLIN")}},
       .like_a_name = true},
  };
}

std::vector<NamedChoice> names_before_august(Rows& rows) {
  return {
      named("flashinfer_trtllm", rows({"FLASHINFER_TRTLLM_MXFP4_BF16"})),
      named("flashinfer_trtllm_afp8", rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8"})),
      named("flashinfer_cutlass", rows({"FLASHINFER_CUTLASS_MXFP4_BF16"})),
      named("flashinfer_cutlass_afp8", rows({"FLASHINFER_CUTLASS_MXFP4_MXFP8"})),
      named("triton", rows({"TRITON"})),
      named("marlin", rows({"MARLIN"})),
  };
}

void set_before_august(Policy& policy, Rows& rows, std::string_view only_cuda) {
  policy.wording = kMxfp4Wording;
  policy.ending = oracle::Ending::none_off_gpu;
  policy.names = names_before_august(rows);
  policy.steps = steps_before_august(rows);
  policy.lora = {
      .marlin = rows("MARLIN"), .triton = rows("TRITON_UNFUSED"), .only_cuda = only_cuda};
}

constexpr std::string_view kLoraOnlyCuda = "Mxfp4 LoRA is currently only supported on CUDA.";

void make_march_20(Policy& policy, Rows& rows) {
  set_before_august(policy, rows, "Mxfp4 LoRA only supported on CUDA Platform.");
  policy.automatic = {{.backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "CK", "TRITON",
                                         "FLASHINFER_CUTLASS_MXFP4_BF16", "TRITON_UNFUSED",
                                         "MARLIN", "BATCHED_MARLIN"})}};
  policy.names.push_back(named("ck", rows({"CK"})));
  policy.fallbacks = {{.kind = PlatformKind::xpu, .backend = rows("XPU"), .unchecked = true}};
  policy.compares_absent_capability = true;
}

void make_march_27(Policy& policy, Rows& rows) {
  set_before_august(policy, rows, kLoraOnlyCuda);
  policy.automatic = {{.backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "CK", "TRITON",
                                         "FLASHINFER_CUTLASS_MXFP4_BF16", "TRITON_UNFUSED",
                                         "MARLIN", "BATCHED_MARLIN", "XPU"})}};
  policy.names.push_back(named("ck", rows({"CK"})));
  policy.names.push_back(named("xpu", rows({"XPU"})));
  policy.fallbacks = {{.kind = PlatformKind::xpu, .backend = rows("XPU")}};
  policy.compares_absent_capability = true;
}

void make_april_24_mxfp4(Policy& policy, Rows& rows) {
  set_before_august(policy, rows, kLoraOnlyCuda);
  policy.automatic = {{.backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "AITER", "TRITON",
                                         "FLASHINFER_CUTLASS_MXFP4_BF16", "TRITON_UNFUSED",
                                         "MARLIN", "BATCHED_MARLIN", "XPU", "EMULATION"})}};
  policy.names.push_back(named("aiter", rows({"AITER"})));
  policy.names.push_back(named("xpu", rows({"XPU"})));
  policy.names.push_back(named("emulation", rows({"EMULATION"})));
  policy.fallbacks = {{.kind = PlatformKind::xpu, .backend = rows("XPU")}};
  policy.checks_invariance = true;
}

// MXFP4, August ---------------------------------------------------------------------------------

constexpr std::string_view kNothingWithReasons =
    "No MXFP4 MoE backend supports the deployment configuration. weight_key=kMxfp4Static, "
    "activation_key={0}. Candidate backends were: {1}. Unsupported reasons: {2}. ";
constexpr std::string_view kReasonEntry = "backend: {0}, reason: {1}";

void make_august_mxfp4_common(Policy& policy, Rows& rows) {
  policy.wording = kMxfp4Wording;
  policy.checks_invariance = true;
  policy.checks_lora = true;
  policy.gate_from_activation = true;
  policy.request_filters = true;
  policy.names = {
      {.name = "b12x",
       .backends = rows({"B12X_MXFP4_MXFP8", "B12X_MXFP4_BF16"}),
       .force_16_bit = Variable::b12x_force_a16,
       .keep_all = true},
      named("deep_gemm", rows({"DEEPGEMM_MXFP4"})),
      named("flashinfer_trtllm",
            rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8"})),
      named("flashinfer_trtllm_afp8", rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8"})),
      named("flashinfer_cutlass",
            rows({"FLASHINFER_CUTLASS_MXFP4_BF16", "FLASHINFER_CUTLASS_MXFP4_MXFP8"})),
      named("flashinfer_cutlass_afp8", rows({"FLASHINFER_CUTLASS_MXFP4_MXFP8"})),
      named("triton", rows({"TRITON"})),
      named("triton_unfused", rows({"TRITON_UNFUSED"})),
      named("humming", rows({"HUMMING"})),
      named("marlin", rows({"MARLIN"})),
      named("aiter", rows({"AITER_MXFP4_BF16", "AITER_MXFP4_FP8", "AITER_MXFP4_MXFP4"})),
      named("aiter_mxfp4_fp8", rows({"AITER_MXFP4_FP8"})),
      named("aiter_mxfp4_mxfp4", rows({"AITER_MXFP4_MXFP4"})),
      named("xpu", rows({"XPU"})),
      named("cpu", rows({"CPU"})),
      named("emulation", rows({"EMULATION"})),
  };
}

void make_august_mxfp4(Policy& policy, Rows& rows) {
  make_august_mxfp4_common(policy, rows);
  policy.wording.nothing_supports = kNothingWithReasons;
  policy.wording.entry = kReasonEntry;
  policy.automatic = {
      {.backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8",
                         "AITER_MXFP4_BF16", "AITER_MXFP4_FP8", "AITER_MXFP4_MXFP4", "TRITON",
                         "FLASHINFER_CUTLASS_MXFP4_BF16", "FLASHINFER_CUTLASS_MXFP4_MXFP8",
                         "MARLIN", "BATCHED_MARLIN", "XPU", "EMULATION"})}};
  policy.fallbacks = {{.kind = PlatformKind::xpu, .backend = rows("XPU")},
                      {.kind = PlatformKind::cpu, .backend = rows("CPU")}};
}

// The entry for DeepSeek-V4 and for generic MXFP4 checkpoints: MXFP8 activations come first, and
// nothing is filtered.
void make_august_deepseek_v4(Policy& policy, Rows& rows) {
  make_august_mxfp4_common(policy, rows);
  policy.ignores_request = true;
  policy.is_generic = true;
  policy.automatic = {
      {.kinds = {PlatformKind::rocm},
       .routings = {Routing::deepseek_v4},
       .backends = rows({"AITER_MXFP4_BF16", "TRITON_UNFUSED"})},
      {.kinds = {PlatformKind::rocm}, .backends = rows({"AITER_MXFP4_BF16", "EMULATION"})},
      {.kinds = {PlatformKind::xpu}, .backends = rows({"XPU"})},
      {.backends =
           rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8", "DEEPGEMM_MXFP4", "MARLIN", "BATCHED_MARLIN"})},
  };
}

// MXFP4, release 0.33.0 -------------------------------------------------------------------------

// The packages that the wheel for CUDA installs beside the usual ones.
constexpr EnumSet<Library> kWheel{Library::humming, Library::deep_gemm};

void make_033_mxfp4_common(Policy& policy, Rows& rows) {
  policy.wording = kMxfp4Wording;
  policy.wording.not_valid = "{0} does not support this MoE deployment since {1}.";
  policy.checks_invariance = true;
  policy.checks_lora = true;
  policy.checks_routes = true;
  policy.gate_from_activation = true;
  policy.request_filters = true;
  policy.validates = true;
  policy.brings = kWheel;
  policy.names = {
      {.name = "b12x",
       .backends = rows({"B12X_MXFP4_MXFP8", "B12X_MXFP4_BF16"}),
       .force_16_bit = Variable::b12x_force_a16,
       .keep_all = true},
      named("deep_gemm", rows({"DEEPGEMM_MXFP4"})),
      named("flashinfer_trtllm",
            rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8"})),
      named("flashinfer_trtllm_afp8", rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8"})),
      named("flashinfer_cutlass",
            rows({"FLASHINFER_CUTLASS_MXFP4_BF16", "FLASHINFER_CUTLASS_MXFP4_MXFP8"})),
      named("flashinfer_cutlass_afp8", rows({"FLASHINFER_CUTLASS_MXFP4_MXFP8"})),
      named("flashinfer_moe_ep_cutedsl", rows({"FLASHINFER_MOE_EP_CUTEDSL"})),
      named("flashinfer_moe_ep_mega_deep_gemm", rows({"FLASHINFER_MOE_EP_DEEP_GEMM"})),
      named("triton", rows({"TRITON"})),
      named("triton_unfused", rows({"TRITON_UNFUSED"})),
      named("humming", rows({"HUMMING"})),
      named("marlin", rows({"MARLIN"})),
      named("aiter", rows({"AITER_MXFP4_BF16", "AITER_TRITON_MXFP4_BF16", "AITER_MXFP4_FP8",
                           "AITER_MXFP4_MXFP4", "AITER_TRITON_MXFP4_MXFP4"})),
      named("aiter_triton_mxfp4_bf16", rows({"AITER_TRITON_MXFP4_BF16"})),
      named("aiter_mxfp4_fp8", rows({"AITER_MXFP4_FP8"})),
      named("aiter_triton_mxfp4_mxfp4", rows({"AITER_TRITON_MXFP4_MXFP4"})),
      named("aiter_mxfp4_mxfp4", rows({"AITER_MXFP4_MXFP4"})),
      named("xpu", rows({"XPU"})),
      named("cpu", rows({"CPU"})),
      named("emulation", rows({"EMULATION"})),
  };
}

void make_033_mxfp4(Policy& policy, Rows& rows) {
  make_033_mxfp4_common(policy, rows);
  policy.request_falls_back = true;
  policy.wording.falls_back =
      "No Mxfp4 MoE backend supports activation={0} for the deployment configuration. Falling back "
      "to '{1}' with BF16 activations.";
  policy.wording.nothing_supports = kNothingWithReasons;
  policy.wording.entry = kReasonEntry;
  // Consumer Blackwell tries Triton behind both Marlins, Hopper tries HUMMING before them.
  policy.automatic = {
      {.kinds = {PlatformKind::cuda},
       .capability = family(12),
       .backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8",
                         "AITER_MXFP4_BF16", "AITER_TRITON_MXFP4_BF16", "AITER_MXFP4_FP8",
                         "AITER_MXFP4_MXFP4", "FLASHINFER_CUTLASS_MXFP4_BF16",
                         "FLASHINFER_CUTLASS_MXFP4_MXFP8", "CUTLASS_MXFP4_MXFP4", "MARLIN",
                         "BATCHED_MARLIN", "TRITON", "HUMMING", "XPU", "CPU", "EMULATION"})},
      {.kinds = {PlatformKind::cuda},
       .capability = exactly(9, 0),
       .backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8",
                         "AITER_MXFP4_BF16", "AITER_TRITON_MXFP4_BF16", "AITER_MXFP4_FP8",
                         "AITER_MXFP4_MXFP4", "TRITON", "FLASHINFER_CUTLASS_MXFP4_BF16",
                         "FLASHINFER_CUTLASS_MXFP4_MXFP8", "CUTLASS_MXFP4_MXFP4", "HUMMING",
                         "MARLIN", "BATCHED_MARLIN", "XPU", "CPU", "EMULATION"})},
      {.backends = rows({"FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM_MXFP4_MXFP8",
                         "AITER_MXFP4_BF16", "AITER_TRITON_MXFP4_BF16", "AITER_MXFP4_FP8",
                         "AITER_MXFP4_MXFP4", "TRITON", "FLASHINFER_CUTLASS_MXFP4_BF16",
                         "FLASHINFER_CUTLASS_MXFP4_MXFP8", "CUTLASS_MXFP4_MXFP4", "MARLIN",
                         "BATCHED_MARLIN", "HUMMING", "XPU", "CPU", "EMULATION"})},
  };
  policy.fallbacks = {{.kind = PlatformKind::xpu, .backend = rows("XPU")}};
}

void make_033_deepseek_v4(Policy& policy, Rows& rows) {
  make_033_mxfp4_common(policy, rows);
  policy.ignores_request = true;
  policy.is_generic = true;
  for (NamedChoice& choice : policy.names) choice.keep_all = true;
  policy.automatic = {
      {.kinds = {PlatformKind::rocm},
       .routings = {Routing::deepseek_v4},
       .backends = rows({"AITER_MXFP4_BF16", "TRITON_UNFUSED"})},
      {.kinds = {PlatformKind::rocm}, .backends = rows({"AITER_MXFP4_BF16", "EMULATION"})},
      {.kinds = {PlatformKind::xpu}, .backends = rows({"XPU"})},
      {.kinds = {PlatformKind::cpu}, .backends = rows({"CPU"})},
      {.capability = exactly(9, 0),
       .backends = rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8", "DEEPGEMM_MXFP4", "HUMMING", "MARLIN",
                         "BATCHED_MARLIN"})},
      {.backends = rows({"FLASHINFER_TRTLLM_MXFP4_MXFP8", "DEEPGEMM_MXFP4", "MARLIN",
                         "BATCHED_MARLIN", "HUMMING"})},
  };
}

// NVFP4 -----------------------------------------------------------------------------------------

void make_nvfp4(Policy& policy, Rows& rows) {
  policy.wording = kNvfp4Wording;
  policy.asks_checkpoint = true;
  policy.steps = {
      {.variable = Variable::test_force_fp8_marlin, .when_true = {{{}, rows("MARLIN")}}}};
}

oracle::FlashinferOnly flashinfer(Rows& rows, std::vector<const oracle::Backend*> candidates) {
  return {.candidates = std::move(candidates),
          .throughput = rows("FLASHINFER_CUTLASS"),
          .latency = rows("FLASHINFER_TRTLLM"),
          .masked_gemm = rows("FLASHINFER_CUTEDSL")};
}

void make_january_seed(Policy& policy, Rows& rows) {
  make_nvfp4(policy, rows);
  policy.wording.terse_reasons = true;
  policy.wording.refusals_are_info = true;
  policy.wording.using_backend = "Using '{0}' backend for NvFp4 MoE";
  policy.wording.unsupported =
      "NvFP4 MoE backend '{0}' does not support the deployment configuration.";
  policy.wording.since =
      "NvFP4 MoE backend '{0}' does not support the deployment configuration since {1}.";
  policy.automatic = {{.backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL",
                                         "FLASHINFER_CUTLASS", "MARLIN"})}};
  policy.flashinfer_only =
      flashinfer(rows, rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL"}));
  policy.flashinfer_only->taken_unseen = rows("FLASHINFER_CUTLASS");
}

void make_january_27(Policy& policy, Rows& rows) {
  make_nvfp4(policy, rows);
  policy.wording.terse_reasons = true;
  policy.automatic = {{.backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL",
                                         "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN"})}};
  policy.flashinfer_only =
      flashinfer(rows, rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL"}));
  policy.flashinfer_only->loses_the_class = true;
}

void make_april_24_nvfp4(Policy& policy, Rows& rows) {
  make_nvfp4(policy, rows);
  policy.checks_invariance = true;
  policy.automatic = {
      {.backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
                         "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN", "EMULATION"})}};
  policy.flashinfer_only =
      flashinfer(rows, rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL",
                             "FLASHINFER_CUTEDSL_BATCHED"}));
  policy.names = {
      named("cutlass", rows({"VLLM_CUTLASS"})),
      named("flashinfer_trtllm", rows({"FLASHINFER_TRTLLM"})),
      named("flashinfer_cutlass", rows({"FLASHINFER_CUTLASS"})),
      named("flashinfer_cutedsl", rows({"FLASHINFER_CUTEDSL"})),
      named("marlin", rows({"MARLIN"})),
      named("emulation", rows({"EMULATION"})),
  };
}

void make_august_nvfp4(Policy& policy, Rows& rows) {
  make_nvfp4(policy, rows);
  policy.steps.clear();
  policy.checks_invariance = true;
  policy.checks_lora = true;
  policy.gate_from_activation = true;
  policy.wording.no_clamp =
      "Model sets swiglu_limit={0}, but the explicitly requested moe_backend='{1}' does not apply "
      "the SwiGLU clamp. Use 'flashinfer_trtllm', 'flashinfer_cutlass', 'flashinfer_cutedsl', "
      "'cutlass', 'b12x', 'marlin', or 'humming' instead.";
  policy.automatic = {
      {.backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
                         "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN", "HUMMING", "EMULATION"})}};
  policy.names = {
      {.name = "b12x", .backends = rows({"B12X"}), .force_16_bit = Variable::b12x_force_a16},
      named("cutlass", rows({"VLLM_CUTLASS"})),
      named("flashinfer_trtllm", rows({"FLASHINFER_TRTLLM"})),
      named("flashinfer_cutlass", rows({"FLASHINFER_CUTLASS"})),
      named("flashinfer_cutedsl", rows({"FLASHINFER_CUTEDSL"})),
      named("flashinfer_b12x", rows({"FLASHINFER_B12X"})),
      named("marlin", rows({"MARLIN"})),
      named("humming", rows({"HUMMING"})),
      named("emulation", rows({"EMULATION"})),
  };
}

void make_033_nvfp4(Policy& policy, Rows& rows) {
  make_nvfp4(policy, rows);
  policy.steps.clear();
  policy.checks_invariance = true;
  policy.checks_lora = true;
  policy.checks_routes = true;
  policy.gate_from_activation = true;
  policy.brings = kWheel;
  policy.wording.no_clamp =
      "Model sets swiglu_limit={0}, but the explicitly requested moe_backend='{1}' does not apply "
      "the SwiGLU clamp. Use 'flashinfer_trtllm', 'flashinfer_cutlass', 'flashinfer_cutedsl', "
      "'flashinfer_moe_ep_cutedsl', 'cutlass', 'b12x', 'marlin', or 'humming' instead.";
  policy.automatic = {
      {.kinds = {PlatformKind::cuda},
       .capability = exactly(9, 0),
       .backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
                         "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "HUMMING", "MARLIN", "EMULATION"})},
      {.backends = rows({"FLASHINFER_TRTLLM", "FLASHINFER_CUTEDSL", "FLASHINFER_CUTEDSL_BATCHED",
                         "FLASHINFER_CUTLASS", "VLLM_CUTLASS", "MARLIN", "HUMMING", "EMULATION"})},
  };
  policy.names = {
      {.name = "b12x", .backends = rows({"B12X"}), .force_16_bit = Variable::b12x_force_a16},
      named("cutlass", rows({"VLLM_CUTLASS"})),
      named("flashinfer_trtllm", rows({"FLASHINFER_TRTLLM"})),
      named("flashinfer_cutlass", rows({"FLASHINFER_CUTLASS"})),
      named("flashinfer_cutedsl", rows({"FLASHINFER_CUTEDSL"})),
      named("flashinfer_moe_ep_cutedsl", rows({"FLASHINFER_MOE_EP_CUTEDSL"})),
      named("flashinfer_b12x", rows({"FLASHINFER_B12X"})),
      named("marlin", rows({"MARLIN"})),
      named("humming", rows({"HUMMING"})),
      named("emulation", rows({"EMULATION"})),
  };
}

// Ours ------------------------------------------------------------------------------------------

void make_native(Policy& policy, Rows& rows) {
  policy.wording = {
      .using_backend = "Using '{0}'.",
      .unsupported = "'{0}' does not support the layer.",
      .since = "'{0}' does not support the layer since {1}.",
      .unknown_name = "There is no backend '{0}'. Expected one of {1}.",
      .nothing_supports = "No backend supports the layer.",
  };
  policy.asks_checkpoint = true;
  policy.checks_invariance = true;
  policy.checks_lora = true;
  policy.checks_routes = true;
  policy.automatic = {{.backends = rows({"NATIVE_SM90", "NATIVE_SM80", "CPU", "EMULATION"})}};
  policy.names = {
      named("native_sm90", rows({"NATIVE_SM90"})),
      named("native_sm80", rows({"NATIVE_SM80"})),
      named("cpu", rows({"CPU"})),
      named("emulation", rows({"EMULATION"})),
  };
}

// clang-format off
constexpr PolicyMaker kMakers[] = {
    {"native",                 WeightFormat::mxfp4, PolicyDate::native,       "what this library runs fastest itself",             make_native},
    {"vllm-0.33.0",            WeightFormat::mxfp4, PolicyDate::vllm_033,     "vLLM 0.33.0 of November 2026, gpt-oss",              make_033_mxfp4},
    {"vllm-0.33.0-deepseek-v4", WeightFormat::mxfp4, PolicyDate::vllm_033,    "vLLM 0.33.0, DeepSeek-V4 and other MXFP4",           make_033_deepseek_v4},
    {"2026-08-22",             WeightFormat::mxfp4, PolicyDate::august_22,    "vLLM of August 2026, gpt-oss",                       make_august_mxfp4},
    {"2026-08-22-deepseek-v4", WeightFormat::mxfp4, PolicyDate::august_22,    "vLLM of August 2026, DeepSeek-V4 and other MXFP4",   make_august_deepseek_v4},
    {"2026-04-24",             WeightFormat::mxfp4, PolicyDate::april_24,     "vLLM of April 2026",                                 make_april_24_mxfp4},
    {"2026-03-27",             WeightFormat::mxfp4, PolicyDate::march_27,     "vLLM one week after its first MXFP4 oracle",         make_march_27},
    {"2026-03-20",             WeightFormat::mxfp4, PolicyDate::march_20,     "vLLM's first MXFP4 oracle",                          make_march_20},
    {"native",                 WeightFormat::nvfp4, PolicyDate::native,       "what this library runs fastest itself",             make_native},
    {"vllm-0.33.0",            WeightFormat::nvfp4, PolicyDate::vllm_033,     "vLLM 0.33.0 of November 2026",                       make_033_nvfp4},
    {"2026-08-22",             WeightFormat::nvfp4, PolicyDate::august_22,    "vLLM of August 2026",                                make_august_nvfp4},
    {"2026-04-24",             WeightFormat::nvfp4, PolicyDate::april_24,     "vLLM of April 2026",                                 make_april_24_nvfp4},
    {"2026-01-27",             WeightFormat::nvfp4, PolicyDate::january_27,   "vLLM's NVFP4 oracle as merged in January 2026",      make_january_27},
    {"2026-01-seed",           WeightFormat::nvfp4, PolicyDate::january_seed, "vLLM's NVFP4 oracle before it was merged",           make_january_seed},
};
// clang-format on

}  // namespace

std::span<const PolicyMaker> policy_makers() { return kMakers; }

}  // namespace fp4moe::backends
