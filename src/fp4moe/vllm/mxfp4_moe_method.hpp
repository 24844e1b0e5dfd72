// vLLM's MXFP4 layer method (Mxfp4MoEMethod, GptOssMxfp4MoEMethod) on weights in memory.
//
//   auto method = Mxfp4MoeMethod::make(config);
//   method->create_weights();
//   ... fill method->parameter("w13_weight")->bytes(), w13_weight_scale, w13_bias, w2_...
//   method->process_weights_after_loading();
//   method->apply(x, topk_weights, topk_ids, out);
#pragma once
#include "fp4moe/vllm/moe_method.hpp"
#include "fp4moe/vllm/mxfp4.hpp"

namespace fp4moe::vllm {

class Mxfp4MoeMethod : public MoeMethod {
 public:
  // Chooses the backend. Errors: those of select_mxfp4_moe_backend, sizes.*.
  static Result<Mxfp4MoeMethod> make(MoeConfig moe, MethodOptions options = {},
                                     oracle::Record* refused = nullptr);

  Mxfp4MoeBackend mxfp4_backend() const { return mxfp4_backend_; }

  // Packs the parameters, prepares scales, makes the kernel; again whenever parameters changed. The
  // old kernel stays where this fails. Where no backend was chosen nothing is done. Errors:
  // vllm.order, those of convert_gpt_oss_weight_to_mxfp4_moe_kernel_format and
  // make_mxfp4_moe_kernel.
  Result<Done> process_weights_after_loading();
  // The quant config of the processed weights. Errors: vllm.order.
  Result<FusedMoeQuantConfig> get_fused_moe_quant_config() const;
  const std::optional<KernelWeights>& kernel_weights() const { return weights_; }

 private:
  using MoeMethod::MoeMethod;
  Result<FusedMoeQuantConfig> quant_config(const KernelWeights& weights) const;

  Mxfp4MoeBackend mxfp4_backend_{};
};

}  // namespace fp4moe::vllm
