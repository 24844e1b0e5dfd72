#include "golden/oracle_cases.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

struct CaseKind {
  std::string_view name;
  Outcome (*check)(const Json& item);
};
constexpr std::array<CaseKind, 6> kKinds{{
    {"select", check_select},
    {"round", check_round},
    {"layer_size", check_layer_size},
    {"parallel", check_parallel},
    {"prepare_finalize", check_prepare_finalize},
    {"validate", check_validate},
}};

Outcome check(const Json& item) {
  const Result<std::string> kind = string_field(item, "kind");
  if (!kind) return kind.why();
  const auto found = std::ranges::find(kKinds, *kind, &CaseKind::name);
  if (found == kKinds.end())
    return malformed("kind", "select, round, layer_size, parallel, prepare_finalize or validate",
                     "\"" + *kind + "\"");
  return found->check(item);
}

std::string case_name(const Json& item, std::size_t index) {
  const Result<std::string> id = string_field(item, "id");
  return id ? *id : "cases[" + std::to_string(index) + "]";
}

}  // namespace

Result<Done> run_oracle_cases(const Json& document, Report& report) {
  const auto cases = document.find("cases");
  if (cases == document.end() || !cases->is_array())
    return malformed("cases", "an array of cases",
                     cases == document.end() ? "none" : cases->type_name());
  for (std::size_t i = 0; i < cases->size(); ++i)
    report.add(case_name((*cases)[i], i), check((*cases)[i]));
  return Done{};
}

}  // namespace fp4moe::golden
