// How tokens come to the experts that compute them, and how results come back: the first and the
// last stage of a modular or monolithic kernel.
//
//   tokens ── prepare ──► what the experts of this rank see
//                             │ experts
//                             ▼
//   [T, H] ◄── finalize ── their output
//
// An exchange keeps what it must remember between prepare and finalize; one call is under way at a
// time. Every rank of a group calls both, also with no tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/tokens.hpp"

namespace fp4moe::moe {

struct ExchangeTraits {
  std::string_view name{};  // "local", "gather", "all_to_all", ...
  TokenFormat format = TokenFormat::standard;
  std::optional<std::uint64_t> max_tokens_per_rank{};  // batched ones
  std::uint64_t dispatchers = 1;                       // ranks that send tokens here
  bool output_is_reduced = false;                      // finalize sums over ranks
  bool takes_unquantized = true;                       // lets experts quantize by themselves
  bool routes = true;                                  // carries logits to monolithic kernels
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual ExchangeTraits traits() const = 0;
  virtual Result<Prepared> prepare(const Tokens& tokens, const PrepareOptions& options) = 0;
  // `out` is [T, H] of the tokens given to prepare.
  virtual Result<Done> finalize(const ExpertsOutput& output, const MutableRows& out) = 0;
  // There will be no finalize, because the experts failed: ranks that wait for it are told why.
  virtual void abandon(const Error& why) = 0;
};

}  // namespace fp4moe::moe
