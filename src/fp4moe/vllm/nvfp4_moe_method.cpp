#include "fp4moe/vllm/nvfp4_moe_method.hpp"

#include <utility>

#include "fp4moe/vllm/tensor_check.hpp"

namespace fp4moe::vllm {
namespace {

// A parameter of float32 as factors, whichever of the two its checkpoint stores.
struct Factors {
  std::vector<float> values{};
  tensor::Shape shape{};

  TensorView view() const { return {tensor::DType::f32, shape, std::as_bytes(std::span(values))}; }
};

Result<Factors> factors_of(std::string_view name, const TensorView& from, bool inverts) {
  Result<std::vector<float>> values = floats_of(name, from);
  if (!values) return values.why();
  if (inverts)
    for (float& value : *values) value = 1.0f / value;
  return Factors{*std::move(values), from.shape};
}

}  // namespace

Result<NvFp4MoeMethod> NvFp4MoeMethod::make(MoeConfig moe,
                                            std::optional<ActivationKey> activation_key,
                                            MethodOptions options, oracle::Record* refused) {
  moe.activation_key = activation_key.value_or(ActivationKey::none);
  Result<NvFp4Selected> found =
      select_nvfp4_moe_backend(moe, kNvfp4Static, activation_key, refused);
  if (!found) return found.why();
  NvFp4MoeMethod result(std::move(moe), std::move(options));
  result.nvfp4_backend_ = found->backend;
  const oracle::Backend* backend = found->record.selection.backend;
  if (const auto done = result.chosen(backend, found->experts_cls, std::move(found->record)); !done)
    return done.why();
  return result;
}

Result<FusedMoeQuantConfig> NvFp4MoeMethod::get_fused_moe_quant_config() const {
  if (nvfp4_weights_)
    return make_nvfp4_moe_quant_config(nvfp4_backend_, scales_of(*nvfp4_weights_), moe_);
  return usage("vllm.order", "scales are asked for before weights are processed")
      .expects("process_weights_after_loading() first", "no processed weights");
}

Result<Done> NvFp4MoeMethod::process_weights_after_loading() {
  if (const auto fine = check_created(); !fine) return fine.why();
  const bool packs = options_.names == oracle::BufferNames::compressed_tensors;
  const std::string_view suffix = packs ? "_packed" : "";
  const auto factors = [&](std::string_view modelopt, std::string_view packed) {
    const std::string_view name = packs ? packed : modelopt;
    return factors_of(name, view(name), packs);
  };
  const auto global13 = factors("w13_weight_scale_2", "w13_weight_global_scale");
  const auto global2 = factors("w2_weight_scale_2", "w2_weight_global_scale");
  const auto input13 = factors("w13_input_scale", "w13_input_global_scale");
  const auto input2 = factors("w2_input_scale", "w2_input_global_scale");
  for (const auto* read : {&global13, &global2, &input13, &input2})
    if (!*read) return read->why();
  const bool has_inputs = moe_.activation_key != ActivationKey::none;
  const NvFp4Tensors loaded{.w13 = view(std::string("w13_weight").append(suffix)),
                            .w13_scale = view("w13_weight_scale"),
                            .w13_scale_2 = global13->view(),
                            .a13_scale = has_inputs ? input13->view() : TensorView{},
                            .w2 = view(std::string("w2_weight").append(suffix)),
                            .w2_scale = view("w2_weight_scale"),
                            .w2_scale_2 = global2->view(),
                            .a2_scale = has_inputs ? input2->view() : TensorView{}};
  Result<NvFp4KernelWeights> packed = convert_to_nvfp4_moe_kernel_format(
      nvfp4_backend_, loaded, moe_.is_act_and_mul, moe_.context, conversion());
  if (!packed) return packed.why();
  if (experts_cls_ != nullptr) {
    const auto quant = make_nvfp4_moe_quant_config(nvfp4_backend_, scales_of(*packed), moe_);
    if (!quant) return quant.why();
    Result<MoeKernel> kernel =
        make_nvfp4_moe_kernel(*quant, moe_, experts_cls_, nvfp4_backend_, *packed, options_.kernel);
    if (!kernel) return kernel.why();
    kernel_ = *std::move(kernel);
  }
  weights_ = packed->packed;
  nvfp4_weights_ = *std::move(packed);
  return Done{};
}

}  // namespace fp4moe::vllm
