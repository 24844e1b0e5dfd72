// Conversion on memory, for both formats: loaded tensors become a view of experts, the context and
// the backend a layout and sizes; fp4moe/convert does the rest.
#pragma once
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"

namespace fp4moe::vllm {

struct Converter {
  std::string_view backend{};
  const Context& context;
  const ConversionOptions& options;

  Result<KernelWeights> convert(const Mxfp4Tensors& tensors, checkpoint::RowOrder order) const;
  Result<NvFp4KernelWeights> convert(const NvFp4Tensors& tensors, checkpoint::RowOrder order) const;
  // Without memory and without a source.
  Result<KernelWeights> plan(const checkpoint::MoeShape& shape, tensor::DType bias_type) const;

 private:
  Result<KernelWeights> convert(const checkpoint::LayerWeights& given) const;
  checkpoint::RowOrder order_or(checkpoint::RowOrder usual) const;
  Result<convert::Recipe> recipe(WeightFormat format) const;
};

}  // namespace fp4moe::vllm
