// The CPU engine: whole layers by the GEMM kernels of this machine (kernels/cpu/gemm.hpp), in
// one pool of threads.
//
//   x ─ rounded to integers, placed in its experts' panels
//     ─► GEMM1, 64 columns of h a task: sums, bias, activation, h rounded and placed
//     ─► GEMM2, an expert and some output rows a task: weighted, kept, summed behind
//
// Activations are rounded to 16 bits per 64 columns (numerics `fast`: to 8), sums of a block are
// exact, all else is float32 and rounds where the backend's numerics say. Every value is a function
// of its row and token alone: neither threads, batches nor instruction sets change a bit.
#pragma once
#include <memory>
#include <optional>
#include <utility>

#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::moe::cpu {

// Weights are read where they lie: in the tiles of the kernel's layout (cpu_native of its
// generation), or row by row where views stay and `home` is mapped. Others are cut into tiles
// once, in memory of the engine's own.
struct CpuOptions {
  WeightsHome home = WeightsHome::packed;
  std::optional<EnumSet<platform::CpuFeature>> features{};  // none: this machine's
};

class CpuEngine : public Engine {
 public:
  explicit CpuEngine(std::shared_ptr<ThreadPool> pool, CpuOptions options = {})
      : pool_(std::move(pool)), options_(options) {}
  std::string_view name() const override { return "cpu"; }
  // Numerics that round weights (NVFP4 emulation) are computed by the reference engine, and
  // kernel() says so. Errors: experts.* (experts.scales also for block or global scales that are
  // not numbers), experts.layout (packed tensors that do not fit the shape), memory.exhausted.
  Result<std::unique_ptr<Experts>> make(const ExpertsProblem& problem,
                                        const ExpertSource& source) const override;

 private:
  std::shared_ptr<ThreadPool> pool_;
  CpuOptions options_;
};

}  // namespace fp4moe::moe::cpu
