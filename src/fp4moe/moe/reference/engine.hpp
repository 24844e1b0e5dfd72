// The reference engine: any backend's numerics, computed as ground truth. Sums are float64,
// rounding happens exactly where the backend's Numerics say, and nothing else is rounded.
// Multi-threaded and blocked, so that whole layers of real models can be checked in seconds.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::reference {

// The stages of one assignment, to see where two computations differ.
struct Trace {
  std::uint64_t assignment = 0;  // row * top_k + choice; for batched tokens the row
  bool is_seen = false;          // the assignment was computed
  std::vector<double> first{};   // GEMM1 with its bias, [gates; ups]
  std::vector<double> middle{};  // the activation, before it is quantized
  std::vector<double> second{};  // what goes into the sum, with its weight
};

class ReferenceExperts : public Experts {
 public:
  // Filled by the next calls of compute; null: not wanted.
  virtual void watch(Trace* trace) = 0;
};

class ReferenceEngine : public Engine {
 public:
  explicit ReferenceEngine(std::shared_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}
  std::string_view name() const override { return "reference"; }
  Result<std::unique_ptr<Experts>> make(const ExpertsProblem& problem,
                                        const ExpertSource& source) const override;
  Result<std::unique_ptr<ReferenceExperts>> make_reference(const ExpertsProblem& problem,
                                                           const ExpertSource& source) const;

 private:
  std::shared_ptr<ThreadPool> pool_;
};

}  // namespace fp4moe::moe::reference
