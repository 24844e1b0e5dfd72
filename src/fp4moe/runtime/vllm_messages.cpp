#include "fp4moe/runtime/vllm_messages.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace fp4moe::runtime {
namespace {

using enum MessageLevel;

// Longer forms stand before those that are part of them.
// clang-format off
constexpr MessageRow kMessages[] = {
    {"no-backend", error, "No MXFP4 MoE backend supports the deployment configuration. weight_key={weights}, activation_key={activations}. Candidate backends were: {candidates}. Unsupported reasons: {reasons}. ",
     "Every backend of the automatic list refused the layer. The reasons behind it are those of each backend in turn; most only say that another device is needed.",
     "fp4moe explain MODEL --device NAME names the nearest backend and the flag, variable or package that makes it run. Without one, fp4moe itself computes the layer."},
    {"no-backend", error, "No MXFP4 MoE backend supports the deployment configuration.", "", ""},
    {"no-backend", error, "No NvFp4 MoE backend supports the deployment configuration.", "", ""},
    {"backend-refused", error, "Mxfp4 MoE backend '{backend}' does not support the deployment configuration since {reason}.",
     "A backend was requested explicitly (--moe-backend, or a variable), and its kernel refuses. The reason is that of the last kernel tried. At debug level the same line is written for every backend that automatic selection passes by.",
     "Leave --moe-backend or the variable out, or do what the reason's section says."},
    {"backend-refused", error, "NvFp4 MoE backend '{backend}' does not support the deployment configuration since {reason}.", "", ""},
    {"backend-refused", error, "NvFP4 MoE backend '{backend}' does not support the deployment configuration since {reason}.", "", ""},
    {"backend-refused", error, "Mxfp4 MoE backend '{backend}' does not support the deployment configuration.", "", ""},
    {"backend-refused", error, "NvFp4 MoE backend '{backend}' does not support the deployment configuration.", "", ""},
    {"backend-refused", error, "NvFP4 MoE backend '{backend}' does not support the deployment configuration.", "", ""},
    {"kernel-refused", error, "{class} does not support this MoE deployment since {reason}.",
     "The kernel was chosen, then checked once more with the layer's final sizes, and refuses.",
     "Choose another backend with --moe-backend, or another split; the reason's section says more."},
    {"unknown-name", error, "moe_backend='{backend}' is not supported for MXFP4 MoE. Expected one of {names}.",
     "--moe-backend has a word that this weight format does not know.",
     "Take a word of the list. fp4moe explain MODEL --device NAME says which of them run."},
    {"unknown-name", error, "moe_backend='{backend}' is not supported for NvFP4 MoE. Expected one of {names}.", "", ""},
    {"name-and-activation", error, "moe_backend='{backend}' does not support activation={activations}",
     "The checkpoint, or quantization_config.moe.activation, asks for quantized activations that this backend does not have.",
     "Take another --moe-backend, or remove the override of the activations."},
    {"activation-override", error, "checkpoint declares MoE activation={activations} but quantization_config.moe.activation={override}; remove the override or align it with the checkpoint.",
     "The checkpoint was calibrated for one form of activations and the configuration asks for another.",
     "Remove quantization_config.moe.activation, or give it the checkpoint's value."},
    {"activation-fallback", warning, "No Mxfp4 MoE backend supports activation={activations} for the deployment configuration. Falling back to '{backend}' with BF16 activations.",
     "The checkpoint asks for quantized activations; no kernel here has them, so they stay in 16 bits. Results are at least as exact, the speed is another.",
     "Nothing, unless the speed matters: fp4moe explain MODEL --device NAME lists what the kernels with quantized activations lack."},
    {"swiglu-clamp", error, "Model sets swiglu_limit={limit}, but the explicitly requested moe_backend='{backend}' does not apply the SwiGLU clamp.",
     "The model clamps SwiGLU; the named backend would leave that out and compute something else.",
     "Take one of the backends that the message lists, or leave --moe-backend out."},
    {"exchange-of-its-own", error, "moe_backend='{backend}' dispatches and combines itself and cannot be paired with all2all_backend='{exchange}'; leave --all2all-backend unset.",
     "This backend exchanges tokens between ranks by itself.", "Leave --all2all-backend out."},
    {"passthrough-chosen", info, "moe_backend='{backend}': using all2all_backend='passthrough'",
     "This backend exchanges tokens between ranks by itself, so that no other exchange is set up.", "Nothing."},
    {"passthrough", error, "all2all_backend='passthrough' is only valid with a moe_backend that dispatches and combines itself",
     "passthrough means that the backend exchanges tokens itself, which this one does not.",
     "Leave --all2all-backend out, or take one of the backends that the message lists."},
    {"mega-deep-gemm", error, "moe_backend='flashinfer_moe_ep_mega_deep_gemm' is only supported for DeepSeek-V4 models",
     "The backend computes the layers of one family of models.", "Leave --moe-backend out."},
    {"conversion", error, "Unsupported mxfp4_backend for Mxfp4MoEMethod: {backend}. Expected TRTLLM, FlashInfer CUTLASS, Triton, AITER, XPU, CPU, or emulation backend.",
     "The backend was selected, but there is no conversion of weights for it in this version.",
     "Take another --moe-backend."},
    {"conversion", error, "Unsupported mxfp4_backend: {backend}: should be one of:", "", ""},
    {"lora-platform", error, "Mxfp4 LoRA is currently only supported on CUDA.",
     "With LoRA on, this version of vLLM knows no MXFP4 backend outside CUDA.",
     "Serve without LoRA: fp4moe merge puts an adapter into the weights."},
    {"lora-platform", error, "Mxfp4 LoRA only supported on CUDA Platform.", "", ""},
    {"bf16-variable", error, "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16=1 is set but the current device capability is not supported.",
     "The variable insists on FlashInfer with 16-bit activations, which needs capability 9.0 or 10.x.",
     "Unset VLLM_USE_FLASHINFER_MOE_MXFP4_BF16."},
    {"flashinfer-variable", error, "Found VLLM_USE_FLASHINFER_MOE_FP4=1, but no FlashInfer NVFP4 MoE backend supports the configuration.",
     "The variable admits FlashInfer's backends alone, and none of them runs the layer here.",
     "Unset VLLM_USE_FLASHINFER_MOE_FP4."},
    {"flashinfer-backend", error, "Invalid value '{value}' for VLLM_FLASHINFER_MOE_BACKEND.",
     "The variable has a word that is none of its three.",
     "Set it to throughput, latency or masked_gemm, or unset it."},
    {"flashinfer-latency", info, "Flashinfer TRTLLM MOE backend is only supported on SM100 and later, using CUTLASS backend instead",
     "VLLM_FLASHINFER_MOE_BACKEND=latency means TRTLLM, which this device cannot run; CUTLASS is tried instead.",
     "Set VLLM_FLASHINFER_MOE_BACKEND=throughput, which means the same here."},
    {"not-a-number", error, "invalid literal for int() with base 10: '{value}'",
     "A VLLM_ variable that must be a whole number holds something else. The message does not name it.",
     "fp4moe doctor names the variable. Set it to 0 or 1, or unset it."},
    {"no-capability", error, "'<=' not supported between instances of 'tuple' and 'NoneType'",
     "vLLM of March 2026 compares the capability of a device that has none (a CPU or an XPU with triton_kernels installed).",
     "Remove the package triton_kernels there, or take a newer vLLM."},
    {"minimum-capability", error, "The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. Current capability: {capability}.",
     "vLLM checks the GPU's capability before it selects a backend: 80 is 8.0. MXFP4 needs 8.0, NVFP4 from ModelOpt 7.5.",
     "Another GPU. fp4moe itself computes the layers on the CPU."},
    {"dtype", error, "{dtype} is not supported for quantization method {method}. Supported dtypes: {dtypes}",
     "The model is loaded in a type that the quantization method refuses.", "Serve with --dtype bfloat16."},
    {"platform", error, "{method} quantization is currently not supported in {device}.",
     "vLLM's list of quantization methods for this platform does not have this one.",
     "Another platform. fp4moe itself computes the layers on the CPU."},
    {"exchange-removed", warning, "The '{exchange}' all2all backend has been removed. Falling back to '{instead}'.",
     "--all2all-backend names an exchange of older versions.", "Name another one, or leave it out."},
    {"exchange-activations", error, "The '{exchange}' all2all backend only supports nvfp4 activation quantization, but got quant_dtype={dtype}.",
     "FlashInfer's one-sided exchange sends NVFP4 activations alone; this layer's are of another type.",
     "Take another --all2all-backend, such as allgather_reducescatter."},
    {"exchange-activations", error, "flashinfer_nvlink_one_sided dispatch supports nvfp4, mxfp8,", "", ""},
    {"hidden-size", error, "Hidden Size {hidden} is greater than the maximum supported hidden size {most}",
     "DeepEP's low-latency exchange has kernels up to one hidden size.", "Take another --all2all-backend."},
    {"using", info, "Using '{backend}' Mxfp4 MoE backend.",
     "The selection is over; this backend computes the MoE layers.",
     "fp4moe explain MODEL --device NAME says why not another, and how to get it."},
    {"using", info, "Using '{backend}' NvFp4 MoE backend out of potential backends: {candidates}.", "", ""},
    {"using", info, "Using '{backend}' backend for NvFp4 MoE", "", ""},
    {"using-lora", info, "Using {backend} backend for mxfp4 lora",
     "LoRA is on, which decided before any name or variable did.",
     "Set VLLM_MXFP4_USE_MARLIN=0 for Triton's kernels where the device has them."},
    {"humming-gemm", info, "Using {kind} gemm for humming moe",
     "Which of HUMMING's three kinds of products is preferred.", "VLLM_HUMMING_MOE_GEMM_TYPE names another."},

    {"reason-device", reason, "kernel does not support current device",
     "The kernel needs another platform, another capability, a package or a variable: vLLM does not say which.",
     "fp4moe explain MODEL --device NAME -v says which, for every kernel."},
    {"reason-gate", reason, "kernel does not support no act_and_mul MLP layer",
     "The layer has no gate, and the kernel computes gated layers only.", "Another backend."},
    {"reason-scheme", reason, "kernel does not support quantization scheme",
     "The kernel does not compute this pair of weights and activations, at least not on this device.", "Another backend."},
    {"reason-parallel", reason, "kernel does not support parallel config",
     "The kernel cannot be used with this split: expert or data parallelism, load balancing (EPLB) or the exchange of tokens.",
     "Another --all2all-backend, no --enable-eplb, or tensor parallelism instead of --enable-expert-parallel."},
    {"reason-routing", reason, "kernel does not support routing method",
     "The kernel routes by itself and does not know the model's method.", "Another backend."},
    {"reason-routing", reason, "kernel does not support hash routing", "", ""},
    {"reason-routing", reason, "kernel does not support routes adjusted after routing", "", ""},
    {"reason-logits", reason, "kernel does not support router logits dtype {dtype}",
     "The kernel routes by itself and wants the router's logits in another type.", "Another backend."},
    {"reason-activation-format", reason, "activation format",
     "The exchange delivers tokens in batches per expert and the kernel wants them in order, or the other way round.",
     "Another --all2all-backend: deepep_low_latency and nixl_ep batch tokens, the others do not."},
    {"reason-batch-invariance", reason, "kernel does not support batch invariance",
     "VLLM_BATCH_INVARIANT is on, and the kernel's results depend on the batch.", "Unset VLLM_BATCH_INVARIANT."},
    {"reason-lora", reason, "kernel does not support LoRA",
     "LoRA is on, and the kernel has no path for adapters.",
     "Serve without --enable-lora: fp4moe merge puts an adapter into the weights."},
    {"reason-lora", reason, "expert LoRA is not supported with MXFP8 activations", "", ""},
    {"reason-bias", reason, "kernel does not support expert bias", "The experts have biases (gpt-oss has), the kernel has none.", "Another backend."},
    {"reason-bias", reason, "kernel does not support bias", "", ""},
    {"reason-package", reason, "kernel requires amd-quark package", "The emulation needs a package.", "Install amd-quark."},
    {"reason-size", reason, "MXFP4 requires the per-rank intermediate size to be divisible by 32",
     "The split cuts the experts at a place where the kernel's blocks do not end.",
     "Another --tensor-parallel-size: fp4moe plan MODEL --tp N names the possible ones."},
    {"reason-size", reason, "MXFP4 W4A8 requires hidden size divisible by 256", "", ""},
    {"reason-experts", reason, "kernel's moe_align_block_size requires fewer than 1024 padded experts",
     "The kernel sorts tokens for fewer experts than the model has.", "Another backend."},
    {"reason-variant", reason, "preferred gemm type {preferred} != supported gemm type {supported}",
     "HUMMING has three kernels, and VLLM_HUMMING_MOE_GEMM_TYPE prefers another one. The others are tried, too.",
     "Nothing, or unset VLLM_HUMMING_MOE_GEMM_TYPE."},
    {"reason-overlap", reason, "kernel does not support dual batch overlap", "The kernel cannot be used with two batches that overlap, nor with load balancing.",
     "Serve without them, or take another backend."},
    {"reason-activation", reason, "{activation} activation",
     "The kernel does not compute what the model has between GEMM1 and GEMM2.", "Another backend."},
    {"reason-activation", reason, "kernel does not support swigluoai_uninterleave with W4A8", "", ""},
    {"reason-activation", reason, "MXFP4 W4A8 supports only SiLU and SiTU", "", ""},
    {"reason-activation", reason, "kernel supports only SiTU beta=4 and linear_beta=25", "", ""},
    {"reason-other", reason, "kernel does not support {what}",
     "The kernel's own condition, which the sentence names.", "Another backend."},
};
// clang-format on

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warning", "information", "reason"};

struct FormToken {
  std::string_view literal;  // before the name
  std::string_view name;     // empty: the form ends
};

std::vector<FormToken> pieces_of(std::string_view form) {
  std::vector<FormToken> pieces;
  for (;;) {
    const std::size_t open = form.find('{');
    if (open == form.npos) break;
    const std::size_t close = form.find('}', open);
    pieces.push_back({form.substr(0, open), form.substr(open + 1, close - open - 1)});
    form.remove_prefix(close + 1);
  }
  pieces.push_back({form, {}});
  return pieces;
}

// The begin of a value before the first literal: names have no spaces.
std::size_t word_begin(std::string_view line, std::size_t end) {
  const std::size_t space = line.substr(0, end).find_last_of(" \t:");
  return space == line.npos ? 0 : space + 1;
}

std::optional<FoundMessage> match(const MessageRow& row, std::string_view line) {
  const std::vector<FormToken> pieces = pieces_of(row.form);
  FoundMessage found{.row = &row};
  std::size_t at = 0;
  std::string_view open = {};  // the name whose value begins at `at`
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [literal, name] = pieces[i];
    const bool is_last = i + 1 == pieces.size();
    // The last literal is looked for from behind, as values may hold it.
    const std::size_t place = literal.empty()            ? (is_last ? line.size() : at)
                              : is_last && !open.empty() ? line.rfind(literal)
                                                         : line.find(literal, at);
    if (place == line.npos || place < at) return std::nullopt;
    if (!open.empty()) {
      const std::size_t begin = i == 1 && pieces[0].literal.empty() ? word_begin(line, place) : at;
      if (begin >= place) return std::nullopt;
      found.values.emplace_back(open, std::string(line.substr(begin, place - begin)));
    }
    at = place + literal.size();
    open = name;
  }
  return found;
}

std::optional<FoundMessage> first_match(std::string_view line, bool reasons) {
  for (const MessageRow& row : kMessages) {
    if ((row.level == reason) != reasons) continue;
    std::optional<FoundMessage> found = match(row, line);
    if (!found) continue;
    found->about = std::ranges::find(kMessages, row.id, &MessageRow::id);
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::span<const MessageRow> messages() { return kMessages; }

std::string FoundMessage::value(std::string_view name) const {
  const auto found = std::ranges::find(values, name, [](const auto& pair) { return pair.first; });
  return found == values.end() ? std::string() : found->second;
}

std::optional<FoundMessage> find_message(std::string_view line) {
  std::optional<FoundMessage> found = first_match(line, false);
  // Who copies a sentence may leave out its full stop.
  return found ? found : first_match(std::string(line) + ".", false);
}

std::optional<FoundMessage> find_reason(std::string_view reason) {
  return first_match(reason, true);
}

std::string message_page() {
  std::string page =
      "# vLLM says ...\n\n"
      "What vLLM's sentences about MoE backends mean and what to do. Search this page for the "
      "words "
      "of your log, or let the program read it:\n\n"
      "```sh\n"
      "fp4moe explain --log vllm.log           # or a pipe: vllm serve ... 2>&1 | fp4moe explain "
      "--log -\n"
      "```\n\n"
      "`{...}` stands for what differs. Reasons follow the word \"since\", or stand in the list "
      "behind \"Unsupported reasons\".\n";
  std::string_view last;
  for (const MessageRow& row : kMessages) {
    if (row.id == last) continue;
    last = row.id;
    page += fmt::format("\n## {}\n\n{}:\n\n```text\n", row.id,
                        kLevelNames[static_cast<std::size_t>(row.level)]);
    for (const MessageRow& spelling : kMessages)
      if (spelling.id == row.id) page += fmt::format("{}\n", spelling.form);
    page += fmt::format("```\n\n{}\n\n**Do:** {}\n", row.means, row.todo);
  }
  page += "\nWritten by `fp4moe explain --messages`.\n";
  return page;
}

}  // namespace fp4moe::runtime
