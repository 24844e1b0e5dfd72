#include "fp4moe/vllm/nvfp4.hpp"

#include <utility>

#include <fmt/format.h>

#include "fp4moe/vllm/converter.hpp"
#include "fp4moe/vllm/kernel_maker.hpp"
#include "fp4moe/vllm/rows.hpp"

namespace fp4moe::vllm {
namespace {

constexpr WeightFormat kNv = WeightFormat::nvfp4;

Result<Row> nvfp4_row(NvFp4MoeBackend backend, const Context& context) {
  return require_row(to_string(backend), kNv, context);
}

}  // namespace

Result<NvFp4MoeBackend> parse_nvfp4_moe_backend(std::string_view value) {
  return parse_member<NvFp4MoeBackend>(value, kNvFp4MoeBackends);
}

Result<NvFp4Selected> select_nvfp4_moe_backend(const MoeConfig& config, WeightFormat weight_key,
                                               std::optional<ActivationKey> activation_key,
                                               oracle::Record* refused) {
  if (weight_key != kNvfp4Static)
    return usage("vllm.key", "the weights are of another format")
        .expects("kNvfp4Static", formats::name(weight_key));
  const auto policy = policy_of(config.context, kNv);
  if (!policy) return policy.why();
  MoeConfig asked = config;
  asked.activation_key = activation_key.value_or(ActivationKey::none);
  return selected_of(choose(**policy, asked, refused), kNvFp4MoeBackends,
                     NvFp4MoeBackend::EMULATION);
}

Result<std::vector<NvFp4MoeBackend>> get_available_nvfp4_backends(const MoeConfig& config) {
  const auto rows = priority_rows(config, kNv);
  if (!rows) return rows.why();
  return members_of<NvFp4MoeBackend>(*rows, kNvFp4MoeBackends);
}

Result<std::vector<NvFp4MoeBackend>> flashinfer_nvfp4_moe_backends(const Context& context) {
  const auto policy = policy_of(context, kNv);
  if (!policy) return policy.why();
  std::vector<NvFp4MoeBackend> result;
  for (std::size_t i = 0; i < kNvFp4MoeBackends.size(); ++i) {
    const Row row = oracle::find_backend(**policy, kNvFp4MoeBackends[i]);
    if (row != nullptr && row->global_activation_scales)
      result.push_back(static_cast<NvFp4MoeBackend>(i));
  }
  return result;
}

Result<bool> is_global_sf_supported_for_nvfp4_backend(NvFp4MoeBackend backend,
                                                      const Context& context) {
  const auto row = nvfp4_row(backend, context);
  if (!row) return row.why();
  return (*row)->global_activation_scales;
}

Result<NvFp4MoeBackend> map_nvfp4_backend(std::string_view runner_backend, const Context& context) {
  const auto rows = named_rows(runner_backend, kNv, context);
  if (!rows) return rows.why();
  return members_of<NvFp4MoeBackend>(*rows, kNvFp4MoeBackends).front();
}

Result<std::vector<ExpertsClass>> backend_to_kernel_cls(NvFp4MoeBackend backend,
                                                        const Context& context) {
  const auto row = nvfp4_row(backend, context);
  if (!row) return row.why();
  return experts_classes(*row);
}

Result<ExpertsClass> backend_2_kernel_cls(NvFp4MoeBackend backend, const Context& context) {
  const auto classes = backend_to_kernel_cls(backend, context);
  if (!classes) return classes.why();
  return classes->front();
}

Result<NvFp4KernelWeights> convert_to_nvfp4_moe_kernel_format(NvFp4MoeBackend backend,
                                                              const NvFp4Tensors& tensors,
                                                              bool is_act_and_mul,
                                                              const Context& context,
                                                              const ConversionOptions& options) {
  ConversionOptions with_gate = options;
  with_gate.is_act_and_mul = is_act_and_mul;
  return Converter{to_string(backend), context, with_gate}.convert(tensors,
                                                                   checkpoint::RowOrder::halves);
}

Result<FusedMoeQuantConfig> make_nvfp4_moe_quant_config(NvFp4MoeBackend backend,
                                                        const NvFp4Scales& scales,
                                                        const MoeConfig& config) {
  const auto row = nvfp4_row(backend, config.context);
  if (!row) return row.why();
  return quant_config_of(**row, scales, config);
}

Result<MoeKernel> make_nvfp4_moe_kernel(const FusedMoeQuantConfig& moe_quant_config,
                                        const MoeConfig& moe_config, ExpertsClass experts_cls,
                                        NvFp4MoeBackend backend, const NvFp4KernelWeights& weights,
                                        const KernelOptions& options) {
  const auto row = nvfp4_row(backend, moe_config.context);
  if (!row) return row.why();
  return KernelMaker{**row, moe_quant_config, moe_config, experts_cls, options}.make(
      weights.packed);
}

}  // namespace fp4moe::vllm
