// Engine "cuda": rows of the host through a layer on a device. It uploads tokens, runs the kernels on
// its own stream and downloads the results. device_layer.hpp is for callers whose tokens are on the
// device.
//
// GEMMs take bf16: x in float32 or float64 is rounded to bf16 first. Results are computed in float32
// and rounded where the numerics say. They are the same on every run. Of the other tokens of a call
// only the number matters: it chooses the kernels.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

struct CudaOptions {
  int ordinal = 0;                                         // of the device
  std::uint64_t workspace_bytes = std::uint64_t{2} << 30;  // calls that need more go in passes
};

class CudaEngine : public Engine {
 public:
  // `pool`: for the reference engine.
  explicit CudaEngine(std::shared_ptr<ThreadPool> pool, CudaOptions options = {})
      : pool_(std::move(pool)), options_(options) {}
  std::string_view name() const override { return "cuda"; }
  // Numerics that round weights (NVFP4 emulation) are computed by the reference engine, and
  // kernel() says so. Errors: experts.*, scale.*, cuda.* (cuda.build, cuda.driver, cuda.device,
  // cuda.ordinal, cuda.architecture: this build or machine cannot; cuda.memory).
  Result<std::unique_ptr<Experts>> make(const ExpertsProblem& problem,
                                        const ExpertSource& source) const override;

 private:
  std::shared_ptr<ThreadPool> pool_;
  CudaOptions options_;
};

}  // namespace fp4moe::moe::cuda
