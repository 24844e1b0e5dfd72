#include "fp4moe/vllm/mxfp4_moe_method.hpp"

#include <utility>

namespace fp4moe::vllm {

Result<Mxfp4MoeMethod> Mxfp4MoeMethod::make(MoeConfig moe, MethodOptions options,
                                            oracle::Record* refused) {
  Result<Mxfp4Selected> found = select_mxfp4_moe_backend(moe, {}, refused);
  if (!found) return found.why();
  Mxfp4MoeMethod result(std::move(moe), std::move(options));
  result.mxfp4_backend_ = found->backend;
  const oracle::Backend* backend = found->record.selection.backend;
  if (const auto done = result.chosen(backend, found->experts_cls, std::move(found->record)); !done)
    return done.why();
  return result;
}

Result<FusedMoeQuantConfig> Mxfp4MoeMethod::quant_config(const KernelWeights& weights) const {
  return make_mxfp4_moe_quant_config(mxfp4_backend_,
                                     {.w1_scale = weights.tensor("w13_scale"),
                                      .w2_scale = weights.tensor("w2_scale"),
                                      .w1_bias = weights.tensor("w13_bias"),
                                      .w2_bias = weights.tensor("w2_bias")},
                                     moe_);
}

Result<FusedMoeQuantConfig> Mxfp4MoeMethod::get_fused_moe_quant_config() const {
  if (weights_) return quant_config(*weights_);
  return usage("vllm.order", "scales are asked for before weights are processed")
      .expects("process_weights_after_loading() first", "no processed weights");
}

Result<Done> Mxfp4MoeMethod::process_weights_after_loading() {
  if (backend_ == nullptr || backend_->experts.empty()) return Done{};
  if (const auto fine = check_created(); !fine) return fine.why();
  const Mxfp4Tensors loaded{.w13_weight = view("w13_weight"),
                            .w2_weight = view("w2_weight"),
                            .w13_weight_scale = view("w13_weight_scale"),
                            .w2_weight_scale = view("w2_weight_scale"),
                            .w13_bias = view("w13_bias"),
                            .w2_bias = view("w2_bias")};
  Result<KernelWeights> packed = moe_.activation == Activation::swigluoai
                                     ? convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
                                           mxfp4_backend_, loaded, moe_.context, conversion())
                                     : convert_weight_to_mxfp4_moe_kernel_format(
                                           mxfp4_backend_, loaded, moe_.context, conversion());
  if (!packed) return packed.why();
  if (experts_cls_ != nullptr) {
    const auto quant = quant_config(*packed);
    if (!quant) return quant.why();
    Result<MoeKernel> kernel =
        make_mxfp4_moe_kernel(*quant, moe_, experts_cls_, mxfp4_backend_, *packed, options_.kernel);
    if (!kernel) return kernel.why();
    kernel_ = *std::move(kernel);
  }
  weights_ = *std::move(packed);
  return Done{};
}

}  // namespace fp4moe::vllm
