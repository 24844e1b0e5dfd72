// How the chosen kernel is put together: who brings the tokens to it and takes them away (prepare
// and finalize), whether it may overwrite its input, who holds the shared experts. What the
// reference asserts here is an error with an id; reference_error() says which exception it raises.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::oracle {

struct PrepareFinalize {
  std::string_view name;  // the reference's class
  bool monolithic = false;
  TokenFormat format = TokenFormat::standard;
  std::optional<std::uint64_t> max_tokens_per_rank{};
  std::uint64_t dispatchers = 1;   // ranks that send tokens here
  bool is_async = false;           // overlaps with computing
  bool output_is_reduced = false;  // the sum over ranks is its work
  std::string_view index_type{};   // of the chosen experts' numbers: "i64"; empty: any
  std::vector<std::string> log{};  // at information level
};

struct PrepareRequest {
  Parallel parallel{};
  PolicyDate policy_date{};
  bool monolithic = false;                          // of the experts
  ActivationKey activations = ActivationKey::none;  // quantized on the way
  std::uint64_t max_num_tokens = 256;
  std::uint64_t hidden = 0;  // rounded; 0: not known, then not checked
  ScalarType tokens = ScalarType::bfloat16;
};

// Errors: assembly.exchange when the policy date has no class for the exchange, assembly.one_sided
// and assembly.unpacked when FlashInfer's one-sided exchange does not carry these activations.
Result<PrepareFinalize> prepare_finalize(const PrepareRequest& request);

struct KernelPlan {
  bool has_kernel = false;  // else `note` says what runs instead
  bool monolithic = false;
  PrepareFinalize prepare{};
  bool quantizes_input = false;       // prepare does, before tokens travel
  bool inplace = false;               // the output may take the input's place
  bool holds_shared_experts = false;  // the kernel runs them while tokens travel
  bool passes_expert_map = false;
  bool routing_tables = false;  // when experts are sharded to the ranks in turn
  std::string note{};
  std::vector<std::string> log{};       // at information level
  std::vector<std::string> warnings{};  // ours: what the reference would have done instead
};

// The plan for the backend and experts that a selection chose; null ones are what the reference
// calls NONE and "no class". Further errors: assembly.mori, assembly.not_gated, assembly.eplb,
// assembly.no_class, assembly.not_valid, assembly.token_format, assembly.kinds and, in compat mode,
// assembly.inplace.
Result<KernelPlan> assemble(const Policy& policy, Mode mode, const Request& request,
                            const Backend* backend, const ExpertsClass* experts);

// "ValueError", "NotImplementedError" or "AssertionError" for an error of this file or of
// sizes.hpp; empty for others.
std::string_view reference_error(const Error& why);

}  // namespace fp4moe::oracle
