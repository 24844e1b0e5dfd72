// Weights in memory, as they were loaded and as a backend's kernel reads them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/tensor.hpp"
#include "fp4moe/vllm/moe_config.hpp"

namespace fp4moe::vllm {

using tensor::TensorView;

// Loaded tensors of a layer on one rank, dense and row-major; E experts, H hidden, I intermediate.
// With a gate w13 has 2 I rows, without one I.
struct Mxfp4Tensors {
  TensorView w13_weight{};        // U8 [E, rows, H / 2]
  TensorView w2_weight{};         // U8 [E, H, I / 2]
  TensorView w13_weight_scale{};  // U8 or F8_E8M0 [E, rows, H / 32]
  TensorView w2_weight_scale{};   // U8 or F8_E8M0 [E, H, I / 32]
  TensorView w13_bias{};          // BF16, F16 or F32 [E, rows]; without a shape: none
  TensorView w2_bias{};           // [E, H]
};

// w13_scale_2 multiplies (ModelOpt's weight_scale_2; compressed-tensors stores its reciprocal).
struct NvFp4Tensors {
  TensorView w13{};          // U8 [E, rows, H / 2]
  TensorView w13_scale{};    // F8_E4M3 or U8 [E, rows, H / 16]
  TensorView w13_scale_2{};  // F32 [E], or [E, 2]: gate's and up's
  TensorView a13_scale{};    // F32 [E'], [E', 1] or [E', 2]; without a shape: none
  TensorView w2{};           // U8 [E, H, I / 2]
  TensorView w2_scale{};     // F8_E4M3 or U8 [E, H, I / 16]
  TensorView w2_scale_2{};   // F32 [E]
  TensorView a2_scale{};     // F32 [E']
};

// The options of a conversion beside the tensors and the context.
struct ConversionOptions {
  bool is_act_and_mul = true;                        // w13 has a gate
  std::optional<checkpoint::RowOrder> w13_order{};   // instead of the one the function is for
  std::optional<Activation> activation{};            // some backends round sizes by it
  std::uint64_t tp_size = 1;                         // decides the layout on gfx950
  std::string generation{};                          // of the layout; empty: the policy's
  tensor::DType params_dtype = tensor::DType::bf16;  // Marlin's global scales
  std::size_t threads = 1;                           // the result does not depend on them
  // A backend whose library lays weights out by itself gets them as loaded; else it is an error.
  bool takes_external = false;
  // Hidden columns and rows in use, where the tensors are padded already; 0: all.
  std::uint64_t hidden = 0;
  // Memory of the caller's, in the order of kernel_format()'s tensors, which outlives the result and
  // what is made of it. None: the result has its own.
  std::span<const std::span<std::byte>> out{};
};

class KernelWeights {
 public:
  // Names, types and shapes. As the kernel sees a tensor: `kernel`'s extents and strides.
  std::span<const convert::PackedTensorSpec> tensors() const { return state_->packer.tensors(); }
  // Without bytes: the layout has none of this name, or only the format was asked for.
  TensorView tensor(std::string_view name) const;
  // The numbers of a small one, or of a bias.
  std::vector<float> numbers(std::string_view name) const;

  const layout::Layout& layout() const { return state_->packer.layout(); }
  const convert::LayerPacker& packer() const { return state_->packer; }
  std::span<const std::span<const std::byte>> views() const { return state_->views; }
  // Keeps the tensors' memory, but for the caller's own.
  std::shared_ptr<const void> owner() const { return state_; }

 private:
  friend struct Converter;
  struct State {
    convert::LayerPacker packer;
    std::vector<tensor::Buffer> memory{};
    std::vector<std::span<std::byte>> targets{};
    std::vector<std::span<const std::byte>> views{};
  };
  explicit KernelWeights(convert::LayerPacker packer)
      : state_(std::make_shared<State>(State{.packer = std::move(packer)})) {}

  std::shared_ptr<State> state_;
};

// NVFP4's eight tensors: four of `packed` (w13, w13_scale, w2, w2_scale) and the numbers beside.
struct NvFp4KernelWeights {
  KernelWeights packed;
  std::vector<float> w13_scale_2{}, w2_scale_2{};  // [E]
  std::vector<float> a13_scale{}, a2_scale{};      // [E], one number for all, or none
};

// The layer's shape that the tensors show: sizes, the order of w13's rows, biases. Errors:
// vllm.tensor.
Result<checkpoint::MoeShape> shape_of(const Mxfp4Tensors& tensors, checkpoint::RowOrder order);
Result<checkpoint::MoeShape> shape_of(const NvFp4Tensors& tensors, checkpoint::RowOrder order);

// The result of a conversion of weights of this shape, without memory: for callers that bring
// their own.
Result<KernelWeights> kernel_format(std::string_view backend, const checkpoint::MoeShape& shape,
                                    const Context& context, const ConversionOptions& options = {},
                                    tensor::DType bias_type = tensor::DType::bf16);

}  // namespace fp4moe::vllm
