// Every policy, made from the families' rows. To add a backend: a folder here, and its name in a
// list of policies.cpp.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"

namespace fp4moe::backends {

// The policy with which this library runs layers itself.
inline constexpr std::string_view kNative = "native";

std::span<const oracle::Policy> policies();

// Null when there is none of that name for the format.
const oracle::Policy* find_policy(std::string_view name, oracle::WeightFormat format);
// The same, or an error with id policy.unknown that lists the names for the format.
Result<const oracle::Policy*> require_policy(std::string_view name, oracle::WeightFormat format);

// The policies over other rows, for tests. `rows` outlives the result. An error with id
// policy.backend names a backend that a list asks for and no row provides.
Result<std::vector<oracle::Policy>> make_policies(std::span<const oracle::Backend* const> rows);
std::vector<const oracle::Backend*> all_rows();

}  // namespace fp4moe::backends
