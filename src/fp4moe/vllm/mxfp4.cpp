#include "fp4moe/vllm/mxfp4.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/vllm/converter.hpp"
#include "fp4moe/vllm/kernel_maker.hpp"
#include "fp4moe/vllm/rows.hpp"

namespace fp4moe::vllm {
namespace {

constexpr WeightFormat kMx = WeightFormat::mxfp4;

Result<Row> mxfp4_row(Mxfp4MoeBackend backend, const Context& context) {
  return require_row(to_string(backend), kMx, context);
}

Result<Mxfp4Selected> mxfp4_selected(const oracle::Policy& policy, const MoeConfig& config,
                                     oracle::Record* refused) {
  return selected_of(choose(policy, config, refused), kMxfp4MoeBackends, Mxfp4MoeBackend::NONE);
}

// The name under which the tables have a date's entry for DeepSeek-V4.
std::string deepseek_v4_name(std::string_view policy) {
  constexpr std::string_view kSuffix = "-deepseek-v4";
  return policy.ends_with(kSuffix) ? std::string(policy) : fmt::format("{}{}", policy, kSuffix);
}

// Backends that 0.33.0's conversion of gpt-oss weights does not know, though its list selects the
// first.
constexpr std::array kNotConvertedFor033{
    Mxfp4MoeBackend::CUTLASS_MXFP4_MXFP4, Mxfp4MoeBackend::B12X_MXFP4_MXFP8,
    Mxfp4MoeBackend::B12X_MXFP4_BF16, Mxfp4MoeBackend::FLASHINFER_MOE_EP_CUTEDSL,
    Mxfp4MoeBackend::FLASHINFER_MOE_EP_DEEP_GEMM};
// Members of other dates, another name of a member, and ours: not in 0.33.0's enumeration.
constexpr std::array kNotIn033{Mxfp4MoeBackend::CK, Mxfp4MoeBackend::AITER,
                               Mxfp4MoeBackend::NATIVE_SM90, Mxfp4MoeBackend::NATIVE_SM80};

// As Python prints the enumeration and its members.
Error not_converted(Mxfp4MoeBackend backend) {
  std::string members;
  for (std::size_t i = 0; i < kMxfp4MoeBackends.size(); ++i) {
    const auto member = static_cast<Mxfp4MoeBackend>(i);
    if (std::ranges::find(kNotIn033, member) != kNotIn033.end()) continue;
    members += fmt::format("{}<Mxfp4MoeBackend.{}: '{}'>", members.empty() ? "" : ", ",
                           member == Mxfp4MoeBackend::NONE ? "NONE" : to_string(member),
                           to_string(member));
  }
  return error(ErrorCode::no_backend, "vllm.refused",
               fmt::format("Unsupported mxfp4_backend: Mxfp4MoeBackend.{}: should be one of: [{}].",
                           to_string(backend), members))
      .try_this("take strict mode, which converts to the layout of this backend");
}

bool is_not_converted(Mxfp4MoeBackend backend, const Context& context) {
  const auto policy = policy_of(context, kMx);
  return policy && context.mode == oracle::Mode::compat &&
         (*policy)->policy_date == oracle::PolicyDate::vllm_033 &&
         std::ranges::find(kNotConvertedFor033, backend) != kNotConvertedFor033.end();
}

}  // namespace

Result<Mxfp4MoeBackend> parse_mxfp4_moe_backend(std::string_view value) {
  return parse_member<Mxfp4MoeBackend>(value, kMxfp4MoeBackends);
}

Result<Mxfp4Selected> select_mxfp4_moe_backend(const MoeConfig& config,
                                               std::optional<ActivationKey> activation_key,
                                               oracle::Record* refused) {
  const auto policy = policy_of(config.context, kMx);
  if (!policy) return policy.why();
  MoeConfig asked = config;
  if (activation_key) asked.activation_key = *activation_key;
  return mxfp4_selected(**policy, asked, refused);
}

Result<Mxfp4Selected> select_gpt_oss_mxfp4_moe_backend(const MoeConfig& config,
                                                       std::optional<ActivationKey> activation_key,
                                                       oracle::Record* refused) {
  return select_mxfp4_moe_backend(config, activation_key, refused);
}

Result<Mxfp4Selected> select_deepseek_v4_mxfp4_moe_backend(const MoeConfig& config,
                                                           oracle::Record* refused) {
  const auto policy = policy_of(config.context, kMx);
  if (!policy) return policy.why();
  const oracle::Policy* own = backends::find_policy(deepseek_v4_name((*policy)->name), kMx);
  if (own != nullptr) return mxfp4_selected(*own, config, refused);
  return usage("vllm.entry", fmt::format("policy {} has no entry for DeepSeek-V4", (*policy)->name))
      .expects("a policy since 2026-08-22", (*policy)->name);
}

Result<std::vector<Mxfp4MoeBackend>> get_priority_backends(const MoeConfig& config) {
  const auto rows = priority_rows(config, kMx);
  if (!rows) return rows.why();
  return members_of<Mxfp4MoeBackend>(*rows, kMxfp4MoeBackends);
}

Result<std::optional<ActivationKey>> backend_activation_key(Mxfp4MoeBackend backend,
                                                            const Context& context) {
  const auto row = mxfp4_row(backend, context);
  if (!row) return row.why();
  const ActivationKey key = (*row)->activation;
  return key == ActivationKey::none ? std::optional<ActivationKey>() : key;
}

Result<std::vector<Mxfp4MoeBackend>> map_mxfp4_backend(std::string_view runner_backend,
                                                       const Context& context) {
  const auto rows = named_rows(runner_backend, kMx, context);
  if (!rows) return rows.why();
  return members_of<Mxfp4MoeBackend>(*rows, kMxfp4MoeBackends);
}

Result<std::vector<ExpertsClass>> backend_to_kernel_cls(Mxfp4MoeBackend backend,
                                                        const Context& context) {
  const auto row = mxfp4_row(backend, context);
  if (!row) return row.why();
  return experts_classes(*row);
}

Result<oracle::Sizes> mxfp4_round_up_hidden_size_and_intermediate_size(
    Mxfp4MoeBackend backend, std::uint64_t hidden_size, std::uint64_t intermediate_size,
    const Context& context, std::optional<Activation> activation) {
  const auto row = mxfp4_row(backend, context);
  if (!row) return row.why();
  return oracle::round_sizes(**row, context.device, activation, {hidden_size, intermediate_size});
}

Result<KernelWeights> convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
    Mxfp4MoeBackend backend, const Mxfp4Tensors& tensors, const Context& context,
    const ConversionOptions& options) {
  if (is_not_converted(backend, context)) return not_converted(backend);
  return Converter{to_string(backend), context, options}.convert(tensors,
                                                                 checkpoint::RowOrder::interleaved);
}

Result<KernelWeights> convert_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend backend,
                                                         const Mxfp4Tensors& tensors,
                                                         const Context& context,
                                                         const ConversionOptions& options) {
  return convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(backend, tensors, context, options);
}

Result<KernelWeights> convert_weight_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend backend,
                                                                const Mxfp4Tensors& tensors,
                                                                const Context& context,
                                                                const ConversionOptions& options) {
  return Converter{to_string(backend), context, options}.convert(tensors,
                                                                 checkpoint::RowOrder::halves);
}

Result<FusedMoeQuantConfig> make_mxfp4_moe_quant_config(Mxfp4MoeBackend backend,
                                                        const Mxfp4Scales& scales,
                                                        const MoeConfig& config) {
  const auto row = mxfp4_row(backend, config.context);
  if (!row) return row.why();
  return quant_config_of(**row, scales, config);
}

Result<MoeKernel> make_mxfp4_moe_kernel(const FusedMoeQuantConfig& moe_quant_config,
                                        const MoeConfig& moe_config, ExpertsClass experts_cls,
                                        Mxfp4MoeBackend mxfp4_backend, const KernelWeights& weights,
                                        const KernelOptions& options) {
  const auto row = mxfp4_row(mxfp4_backend, moe_config.context);
  if (!row) return row.why();
  return KernelMaker{**row, moe_quant_config, moe_config, experts_cls, options}.make(weights);
}

}  // namespace fp4moe::vllm
