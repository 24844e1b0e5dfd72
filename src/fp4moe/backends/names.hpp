// Backends by the names that users write: their own (FLASHINFER_TRTLLM_MXFP4_BF16, as logs print
// them) and the words of vLLM's --moe-backend (flashinfer_trtllm). Case does not count, nor does
// '-' for '_'.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"

namespace fp4moe::backends {

// Null where the policy has none of that name. Of a word that stands for several it is the first.
const oracle::Backend* find_by_any_name(const oracle::Policy& policy, std::string_view word);

// Error choice.backend: none of these policies, which are of one format, has the backend. It says
// why: the backend computes other weights, other policies have it, or the name is unknown.
Error unknown_backend(std::span<const oracle::Policy* const> asked, std::string_view word);

// The names of the policy's backends, without the value that stands for none.
std::vector<std::string_view> backend_names(const oracle::Policy& policy);

// vLLM's words that lead to a backend, those that lead nowhere else first. Empty: it is reached by
// variables or automatically alone.
std::vector<std::string_view> words_for(const oracle::Policy& policy,
                                        const oracle::Backend& backend);

}  // namespace fp4moe::backends
