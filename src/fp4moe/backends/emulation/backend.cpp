// Weights dequantized on the fly: slow, and right on every device. The reference's two classes and,
// for our own policy, this library's emulator, which needs no package and no GPU.
#include <string>

#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/own_kernels.hpp"

namespace fp4moe::backends::emulation {
namespace {

using oracle::Asked;
using oracle::Reason;
using oracle::Rule;

constexpr EnumSet<PlatformKind> kGpus{PlatformKind::cuda, PlatformKind::rocm, PlatformKind::xpu};
constexpr DeviceNeed kDevices[] = {{.kinds = kGpus}};
constexpr DeviceNeed kEverywhere[] = {{}};
constexpr Scheme kNvfp4[] = {{WeightFormat::nvfp4, {ActivationKey::nvfp4}}};

constexpr ExpertsClass kMxfp4Experts{
    .name = "OCP_MXQuantizationEmulationTritonExperts",
    .devices = kDevices,
    .not_gated = true,
    .activations = kGenericActivationsBeforeAugust2026,
    .schemes = kEverything,
    .limits = kNoFlashinferExchange,
    .batch_invariant = true,
    .takes_unquantized = true,
    .expert_map = true,
};
constexpr ExpertsClass kNvfp4Experts = [] {
  ExpertsClass result = kMxfp4Experts;
  result.name = "Nvfp4QuantizationEmulationTritonExperts";
  result.schemes = kNvfp4;
  return result;
}();

// The generic Triton kernels sort tokens by expert in one block of threads.
constexpr std::uint64_t kMaxExperts = 1024;
std::uint64_t padded_experts(const Asked& asked) {
  return (asked.request.layer.num_experts + 31) / 32 * 32;
}
constexpr Rule kExpertCount{
    .reason = Reason::expert_count,
    .after = true,
    .holds =
        [](const Asked& asked) {
          const PlatformKind kind = asked.request.device.kind;
          const bool counts = kind == PlatformKind::cuda || kind == PlatformKind::rocm;
          return !counts || padded_experts(asked) < kMaxExperts;
        },
    .reference =
        [](const Asked&) {
          return std::string(
              "kernel's moe_align_block_size requires fewer than 1024 padded experts");
        },
    .requirement = [](const Asked&) { return std::string("needs fewer than 1024 experts"); },
    .fact =
        [](const Asked& asked) {
          return "padded to 32 there are " + std::to_string(padded_experts(asked));
        },
};
constexpr Rule kQuark{
    .reason = Reason::library,
    .holds = [](const Asked& a) { return a.request.device.libraries.contains(Library::quark); },
    .reference = [](const Asked&) { return std::string("kernel requires amd-quark package"); },
    .requirement = [](const Asked&) { return std::string("needs the package quark"); },
    .fact = [](const Asked&) { return std::string("it is not installed"); },
};
constexpr Rule kNoLora{
    .reason = Reason::lora,
    .holds = [](const Asked& asked) { return !asked.request.layer.lora; },
    .reference = [](const Asked&) { return std::string("kernel does not support LoRA"); },
    .requirement = [](const Asked&) { return std::string("has no LoRA path"); },
    .fact = [](const Asked&) { return std::string("the deployment has LoRA on"); },
};
constexpr Rule kNoBias{
    .reason = Reason::bias,
    .holds = [](const Asked& asked) { return !asked.request.layer.has_bias; },
    .reference = [](const Asked&) { return std::string("kernel does not support bias"); },
    .requirement = [](const Asked&) { return std::string("computes no biases"); },
    .fact = [](const Asked&) { return std::string("the layer has them"); },
};
constexpr Rule kMxfp4Rules[] = {kQuark, kExpertCount};
constexpr Rule kNvfp4Rules[] = {kNoLora, kNoBias, kExpertCount};

constexpr ExpertsClass august(ExpertsClass experts, std::span<const Rule> rules, bool lora) {
  experts.activations = kGenericActivationsSinceAugust2026;
  experts.rules = rules;
  experts.lora = lora;
  return experts;
}
constexpr ExpertsClass kMxfp4August = august(kMxfp4Experts, kMxfp4Rules, true);
constexpr ExpertsClass kNvfp4August =
    august(kNvfp4Experts, kNvfp4Rules, true);  // its own rule refuses

// Since release 0.33.0 weights may be expanded to BF16 once, when they are loaded.
constexpr ExpertsClass kMxfp4Expanding = [] {
  ExpertsClass result = kMxfp4August;
  result.reads = {Variable::emulation_dequant_at_load};
  return result;
}();

constexpr ExpertsClass kOwn = own_kernel("Emulator", kEverywhere);
constexpr ExpertsClass kOwnBatched =
    own_kernel("BatchedEmulator", kEverywhere, TokenFormat::batched);

constexpr const ExpertsClass* kMxfp4List[] = {&kMxfp4Experts};
constexpr const ExpertsClass* kMxfp4AugustList[] = {&kMxfp4August};
constexpr const ExpertsClass* kMxfp4ExpandingList[] = {&kMxfp4Expanding};
constexpr const ExpertsClass* kNvfp4List[] = {&kNvfp4Experts};
constexpr const ExpertsClass* kNvfp4AugustList[] = {&kNvfp4August};
constexpr const ExpertsClass* kOwnList[] = {&kOwn, &kOwnBatched};

constexpr Rounding kBlocks[] = {{.intermediate = 32, .hidden = 32}};

constexpr Backend row(WeightFormat format, PolicyDates policy_dates,
                      std::span<const ExpertsClass* const> experts,
                      std::span<const Rounding> rounding, QuantScheme scheme) {
  return {.name = "EMULATION",
          .family = "emulation",
          .format = format,
          .policy_dates = policy_dates,
          .experts = experts,
          .rounding = rounding,
          .scheme = scheme,
          .numerics = policy_dates == PolicyDates{native} ? "native"
                      : format == WeightFormat::mxfp4     ? "unfused"
                                                          : "nvfp4_emulation",
          .any_activation = true};
}

constexpr Backend kBackends[] = {
    row(WeightFormat::mxfp4, kApril2026, kMxfp4List, kOtherRounding, QuantScheme::ocp_mx_mxfp4),
    row(WeightFormat::mxfp4, kAugust2026, kMxfp4AugustList, kBlocks, QuantScheme::ocp_mx_mxfp4),
    row(WeightFormat::mxfp4, kVllm033, kMxfp4ExpandingList, kBlocks, QuantScheme::ocp_mx_mxfp4),
    row(WeightFormat::nvfp4, kApril2026, kNvfp4List, {}, QuantScheme::nvfp4),
    row(WeightFormat::nvfp4, kSinceAugust2026, kNvfp4AugustList, {}, QuantScheme::nvfp4),
    row(WeightFormat::mxfp4, {native}, kOwnList, kBlocks, QuantScheme::mxfp4_w4a16),
    row(WeightFormat::nvfp4, {native}, kOwnList, {}, QuantScheme::nvfp4),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::emulation
