// Exchange and experts put together: the modular kernel, which is given experts' ids and weights,
// and the monolithic one, which routes by itself. What does not fit together is refused when they
// are made.
//
//   modular      prepare(x, ids, weights) ─► experts ─► finalize
//   monolithic   prepare(x, logits) ─► route ─► experts ─► finalize
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/moe/routing/router.hpp"
#include "fp4moe/oracle/experts.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::moe {

// The properties of a backend's experts.
struct ExpertsRole {
  oracle::Kind kind = oracle::Kind::modular;
  oracle::TokenFormat format = oracle::TokenFormat::standard;
  bool leaves_weights = false;     // finalize applies the router's weights and sums ("delegate")
  bool takes_unquantized = false;  // quantizes its input itself, prepare must not
  std::optional<std::uint64_t> max_tokens{}, dispatchers{};  // batched ones must have both
};

struct KernelOptions {
  bool weight_on_input = false;  // the router's weight multiplies x, once, before all else
  std::uint64_t chunk = 0;       // tokens at once; 0: all. Changes no bit
};

// The most tokens TRT-LLM's kernels take at once: their grid has 65535 rows.
std::uint64_t trtllm_chunk(checkpoint::WeightFormat format, std::uint64_t experts,
                           std::uint64_t top_k);

// Optional inputs of a call.
struct CallOptions {
  std::span<const std::int32_t> expert_map{};  // global id -> local position or -1; none: the same
  LoraView lora{};
};

class ModularKernel {
 public:
  // Errors: kernel.kind (a part that routes and one that does not), kernel.format (token formats
  // differ), kernel.limits (max_tokens and dispatchers where they do not belong, or not),
  // kernel.quantiser (experts with scales of their own cannot be fed quantized rows),
  // kernel.chunk (chunks between ranks).
  static Result<ModularKernel> make(std::unique_ptr<Exchange> exchange,
                                    std::shared_ptr<Experts> experts, const ExpertsRole& role,
                                    const KernelOptions& options = {});

  const Experts& experts() const { return *experts_; }
  Experts& experts() { return *experts_; }
  const ExpertsRole& role() const { return role_; }

  // out: [T, H] in any activation type. T may be 0: collectives are joined all the same.
  // Errors: kernel.on_input (more than one expert per token), those of exchange and experts.
  Result<Done> apply(const Tokens& tokens, const MutableRows& out, const CallOptions& call = {});

 private:
  friend class MonolithicKernel;
  ModularKernel() = default;
  Result<Done> apply_once(const Tokens& tokens, const MutableRows& out, const CallOptions& call);
  Result<Done> compute(const Prepared& prepared, const MutableRows& out, const CallOptions& call,
                       ExpertsOutput& result);
  PrepareOptions prepare_options() const;
  OutputForm form() const;

  std::unique_ptr<Exchange> exchange_{};
  std::shared_ptr<Experts> experts_{};
  ExpertsRole role_{};
  KernelOptions options_{};
  tensor::Buffer space_{};  // what experts leave for finalize; made once, grows
};

// Local experts are the range [first_expert, first_expert + local experts).
struct MonolithicOptions {
  KernelOptions kernel{};
  std::uint64_t first_expert = 0;
};

class MonolithicKernel {
 public:
  // Further errors: kernel.routing (llama4 routing without weights on the input, or other routing
  // with them).
  static Result<MonolithicKernel> make(std::unique_ptr<Exchange> exchange,
                                       std::shared_ptr<Experts> experts, routing::Router router,
                                       const ExpertsRole& role, const MonolithicOptions& options);

  const Experts& experts() const { return kernel_.experts(); }
  Experts& experts() { return kernel_.experts(); }
  const routing::Router& router() const { return router_; }

  // tokens.logits are read, ids and weights are not. `replay`, [rows the experts see, assignments], takes
  // the chosen ids; empty: not wanted. Errors: kernel.lora (adapters need a modular kernel),
  // kernel.replay, routing.*.
  Result<Done> apply(const Tokens& tokens, const MutableRows& out, ThreadPool& pool,
                     std::span<std::int16_t> replay = {});

 private:
  MonolithicKernel(ModularKernel kernel, routing::Router router)
      : kernel_(std::move(kernel)), router_(std::move(router)) {}
  Result<Prepared> prepare(const Tokens& tokens, ThreadPool& pool);

  ModularKernel kernel_;
  routing::Router router_;
  MonolithicOptions options_{};
  std::vector<std::int32_t> expert_map_{};
  std::vector<std::int32_t> ids_{};
  std::vector<float> weights_{};
};

}  // namespace fp4moe::moe
