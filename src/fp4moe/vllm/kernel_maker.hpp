// Shared by the two oracles: making quant configs and kernels.
#pragma once
#include "fp4moe/base/result.hpp"
#include "fp4moe/vllm/moe_kernel.hpp"
#include "fp4moe/vllm/moe_quant_config.hpp"

namespace fp4moe::vllm {

Result<FusedMoeQuantConfig> quant_config_of(const oracle::Backend& backend,
                                            const Mxfp4Scales& scales, const MoeConfig& config);
Result<FusedMoeQuantConfig> quant_config_of(const oracle::Backend& backend,
                                            const NvFp4Scales& scales, const MoeConfig& config);

struct KernelMaker {
  const oracle::Backend& backend;
  const FusedMoeQuantConfig& quant_config;
  const MoeConfig& config;
  ExpertsClass experts_cls;
  const KernelOptions& options;

  Result<MoeKernel> make(const KernelWeights& weights) const;

 private:
  Result<Done> check(const KernelWeights& weights) const;
  Result<runtime::LayerFacts> facts(const KernelWeights& weights) const;
};

}  // namespace fp4moe::vllm
