// Oddities of the environment: variables that are never read, values without meaning, switches that
// cancel each other. Only reported; nothing is changed or refused here.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/platform/environment.hpp"

namespace fp4moe::platform {

enum class Severity : std::uint8_t {
  note,     // true, and perhaps not what was meant
  warning,  // very likely a mistake
};
constexpr std::string_view name(Severity severity) {
  return severity == Severity::warning ? "warning" : "note";
}

struct Finding {
  Severity severity = Severity::note;
  std::string variable{};
  std::string sentence{};  // begins with what follows the variable's name: "is not known"
  std::string remedy{};    // may be empty
};
std::string text(const Finding& finding);  // "VARIABLE sentence; remedy"

// The variables that a policy looks at; the caller knows the policy.
struct PolicyVariables {
  std::string_view policy;
  EnumSet<Variable> reads{};
};

// Names of all variables of this process.
std::vector<std::string> environment_names();

// `names` are all names that are set; of them only FP4MOE_* and VLLM_* matter. With a policy, also
// those it does not look at are named, and conflicts only among those it does.
std::vector<Finding> environment_findings(std::span<const std::string> names,
                                          const Environment& environment,
                                          const PolicyVariables* policy = nullptr);

}  // namespace fp4moe::platform
