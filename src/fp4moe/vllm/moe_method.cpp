#include "fp4moe/vllm/moe_method.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/oracle/sizes.hpp"

namespace fp4moe::vllm {
namespace {

using tensor::DType;

// Types as oracle/vllm/buffers.hpp spells them.
DType dtype_of(std::string_view name) {
  if (name == "bf16") return DType::bf16;
  if (name == "f32") return DType::f32;
  return name == "f8_e4m3" ? DType::f8_e4m3 : DType::u8;
}

}  // namespace

Result<Done> MoeMethod::chosen(const oracle::Backend* backend, ExpertsClass experts_cls,
                               oracle::Record record) {
  backend_ = backend;
  experts_cls_ = experts_cls;
  record_ = std::move(record);
  sizes_ = {moe_.hidden_dim, moe_.intermediate_size_per_partition};
  if (backend_ == nullptr) return Done{};
  const auto policy = policy_of(moe_.context, backend_->format);
  if (!policy) return policy.why();
  const auto rounded = oracle::layer_sizes(
      *backend_, moe_.context.device, oracle::rounding_activation(**policy, layer_of(moe_)),
      moe_.moe_parallel_config, (*policy)->policy_date, moe_.in_dtype, sizes_);
  if (!rounded) return rounded.why();
  sizes_ = *rounded;
  return Done{};
}

bool MoeMethod::skip_forward_padding() const {
  return backend_ != nullptr && backend_->conversion.pads_input;
}

bool MoeMethod::is_monolithic() const {
  return experts_cls_ != nullptr && experts_cls_->kind == oracle::Kind::monolithic;
}

Result<Done> MoeMethod::create_weights() {
  const WeightFormat format = record_.selection.policy->format;
  const auto buffers = oracle::weight_buffers(
      {.format = format,
       .names = options_.names,
       .sizes = sizes_,
       .local_experts = moe_.num_local_experts,
       .experts = moe_.num_experts,
       .gated = moe_.is_act_and_mul,
       .has_bias = moe_.has_bias,
       .global_activation_scales = backend_ != nullptr && backend_->global_activation_scales});
  if (!buffers) return buffers.why();
  std::vector<Parameter> result;
  for (const oracle::Buffer& buffer : *buffers) {
    Result<tensor::Tensor> memory = tensor::Tensor::allocate(dtype_of(buffer.dtype), buffer.shape);
    if (!memory) return memory.why();
    result.push_back({std::string(buffer.name), *std::move(memory)});
  }
  parameters_ = std::move(result);
  return Done{};
}

tensor::Tensor* MoeMethod::parameter(std::string_view name) {
  const auto found = std::ranges::find(parameters_, name, &Parameter::name);
  return found == parameters_.end() ? nullptr : &found->tensor;
}

TensorView MoeMethod::view(std::string_view name) const {
  const auto found = std::ranges::find(parameters_, name, &Parameter::name);
  return found == parameters_.end() ? TensorView{} : found->tensor.view();
}

Result<Done> MoeMethod::check_created() const {
  if (!parameters_.empty()) return Done{};
  return usage("vllm.order", "weights are processed before they are created")
      .expects("create_weights() first", "no parameters");
}

// Rows and columns of the hidden size that are padding are never read. The intermediate size is
// rounded, too, but ranks may hold more of it than their even share.
ConversionOptions MoeMethod::conversion() const {
  const std::uint64_t block = checkpoint::block_size(backend_->format);
  return {.is_act_and_mul = moe_.is_act_and_mul,
          .w13_order = options_.w13_order,
          .activation = oracle::rounding_activation(*record_.selection.policy, layer_of(moe_)),
          .tp_size = static_cast<std::uint64_t>(std::max(1, moe_.moe_parallel_config.tp_size)),
          .threads = std::max<std::size_t>(1, options_.kernel.threads),
          .takes_external = true,
          .hidden = moe_.hidden_dim % block == 0 ? moe_.hidden_dim : 0};
}

Result<MoeKernel*> MoeMethod::processed() {
  if (kernel_) return &*kernel_;
  if (backend_ != nullptr && experts_cls_ == nullptr && weights_)
    return error(ErrorCode::no_backend, "vllm.no_class",
                 fmt::format("{} has no class of experts", backend_->name))
        .expects("a backend with a kernel object", "a function of the reference")
        .try_this("take another policy or backend");
  if (backend_ == nullptr || backend_->experts.empty())
    return error(ErrorCode::no_backend, "vllm.no_kernel", "no backend runs this layer")
        .expects("a backend with a kernel", "None")
        .try_this("policy native always has one");
  return usage("vllm.order", "a layer is applied before its weights are processed")
      .expects("create_weights(), then process_weights_after_loading()", "neither or one");
}

Result<Done> MoeMethod::apply(const moe::ConstRows& x, std::span<const float> topk_weights,
                              std::span<const std::int32_t> topk_ids, const moe::MutableRows& out) {
  const auto kernel = processed();
  if (!kernel) return kernel.why();
  return (*kernel)->apply(x, topk_weights, topk_ids, out);
}

Result<Done> MoeMethod::apply_monolithic(const moe::ConstRows& x,
                                         const moe::ConstRows& router_logits,
                                         const moe::MutableRows& out) {
  const auto kernel = processed();
  if (!kernel) return kernel.why();
  return (*kernel)->apply_monolithic(x, router_logits, out);
}

std::vector<std::string> MoeMethod::warnings() const {
  return weights_ ? weights_->packer().warnings() : std::vector<std::string>{};
}

}  // namespace fp4moe::vllm
