// Memory of the engine's calls. It grows and is never freed, so that calls of a size seen before
// allocate nothing; and it belongs to the pool of threads, so that a model's layers, which compute
// one after the other, share one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/moe/cpu/stored.hpp"
#include "fp4moe/moe/cpu/units.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::moe::cpu {

inline constexpr std::size_t kFirstRows = 2 * kernels::cpu::kChunk;  // of a task of GEMM1
// GEMM2's outputs of all assignments are kept for all rows if they take at most kNearBytes, else
// for kMinKeptRows rows at a time. Totals are summed in the buffer of a GEMM's sums.
inline constexpr std::size_t kNearBytes = std::size_t{2} << 20;
inline constexpr std::size_t kMinKeptRows = 1024;
inline constexpr std::size_t kMaxKeptRows = kernels::cpu::kGemmTokens * kFirstRows;

// Tokens of all units in the kernel's form, for one of the two GEMMs.
struct Panels {
  tensor::Buffer panels{}, half_steps{};
  struct UnitOffsets {
    std::size_t panel = 0, step = 0;  // bytes, numbers
  };
  std::vector<UnitOffsets> places{};  // of each unit
  std::size_t chunks = 0;

  std::byte* panel(std::size_t unit) { return panels.data() + places[unit].panel; }
  float* steps(std::size_t unit) { return half_steps.as<float>().data() + places[unit].step; }
  kernels::cpu::GemmTokens tokens(std::size_t unit, std::size_t count) {
    return {.panel = panel(unit), .half_steps = steps(unit), .tokens = count};
  }
};

// Memory of one thread.
struct Scratch {
  tensor::Buffer sums{};                // [kGemmTokens][kFirstRows], or fewer tokens and more rows
  tensor::Buffer values{};              // a row of either GEMM, of whole chunks
  tensor::Buffer rounded{}, ordered{};  // the same as integers, and in the tiles' order
  tensor::Buffer steps{};
  tensor::Buffer codes{}, scales{};  // tiles that are cut at use
};

// The sizes that a call asks for beside its assignments.
struct Needs {
  bool keeps_middle = false;  // h as numbers, for what needs whole rows of it
  std::size_t rank = 0;       // of low-rank additions
  std::size_t kept_rows = 0;  // of GEMM2 at a time; 0: nothing is summed
  std::size_t limbs = 2;
};

struct Workspace {
  Pass pass{};
  Panels x{}, h{};
  tensor::Buffer middle{};  // [assignments][columns of whole chunks]
  tensor::Buffer low{};     // [assignments][gate, up, down][rank]
  tensor::Buffer kept{};    // [assignments][kept rows]
  std::vector<Scratch> threads{};
  struct Task {
    std::uint32_t unit = 0, chunk = 0;
  };
  std::vector<Task> tasks{};             // of GEMM1
  std::vector<std::uint32_t> by_size{};  // units, those of the largest experts first

  // For any call of such a layer on so many threads. Errors: memory.exhausted.
  Result<Done> make(const CpuWeights& weights, std::size_t count);
  // For the pass that was grouped. Errors: memory.exhausted.
  Result<Done> reserve(const kernels::cpu::GemmKernel& kernel, const Needs& needs);

 private:
  Result<Done> place(const kernels::cpu::GemmKernel& kernel, std::size_t limbs, Panels& to);
};

// The workspaces of a pool of threads: a call takes one that is free, or a new one, and brings it
// back. There are as many as calls ran at the same time.
class Workspaces {
 public:
  // One object for each pool as long as it is in use.
  static std::shared_ptr<Workspaces> of(const std::shared_ptr<ThreadPool>& pool);

  Workspace take();
  void give(Workspace space) noexcept;

 private:
  std::mutex mutex_{};
  std::vector<Workspace> free_{};
  std::size_t made_ = 0;
};

}  // namespace fp4moe::moe::cpu
