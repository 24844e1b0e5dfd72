// Every policy, made from the families' rows. To add a backend: a folder here, and its name in a
// list of policies.cpp.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/releases.hpp"

namespace fp4moe::backends {

// The policy with which this library runs layers itself.
inline constexpr std::string_view kNative = "native";

std::span<const oracle::Policy> policies();

// Which of vLLM's two entries a model with MXFP4 weights goes through; NVFP4 has one.
enum class Entry : std::uint8_t { gpt_oss, generic };
// gpt-oss has an entry of its own; an unknown family goes through the other.
Entry entry_of(std::string_view model_type);

// Null when there is none of that name for the format.
const oracle::Policy* find_policy(std::string_view name, oracle::WeightFormat format);
// The newest of vLLM.
const oracle::Policy& newest_vllm_policy(oracle::WeightFormat format, Entry entry = Entry::gpt_oss);

// A policy by the word that users write, and the release of vLLM that the word means, if any.
struct PolicyChoice {
  const oracle::Policy* policy = nullptr;
  std::optional<oracle::ReleaseChoice> release{};
};
// `word` is the name of a policy, "latest" for vLLM's newest, or "vllm:VERSION" with a version as
// oracle::choose_release takes it. The latter two choose the entry. Errors: policy.unknown, which
// lists the names for the format, and those of choose_release.
Result<PolicyChoice> choose_policy(std::string_view word, oracle::WeightFormat format,
                                   Entry entry = Entry::gpt_oss);
// The policy alone.
Result<const oracle::Policy*> require_policy(std::string_view word, oracle::WeightFormat format,
                                             Entry entry = Entry::gpt_oss);
// The word that choose_policy takes for --vllm VERSION.
std::string vllm_word(std::string_view version);

// The policies over other rows, for tests. `rows` outlives the result. An error with id
// policy.backend names a backend that a list asks for and no row provides.
Result<std::vector<oracle::Policy>> make_policies(std::span<const oracle::Backend* const> rows);
std::vector<const oracle::Backend*> all_rows();

}  // namespace fp4moe::backends
