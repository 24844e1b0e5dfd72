#include "golden/moe.hpp"

#include <string>

#include <fmt/format.h>

#include "golden/fields.hpp"
#include "golden/moe_layers.hpp"

namespace fp4moe::golden {
namespace {

// Sections that a file lacks have no cases.
Result<const Json*> section_of(const Json& document, std::string_view name) {
  static const Json kNone = Json::array();
  const auto found = document.find(name);
  if (found == document.end()) return &kNone;
  if (!found->is_array()) return malformed(name, "a list of cases", found->type_name());
  return &*found;
}

void run_section(const Json& cases, std::string_view section, Outcome (*check)(const Json&),
                 Report& report) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json& item = cases[i];
    const Result<std::string> name =
        item.is_object()
            ? string_field(item, "name")
            : Result<std::string>(malformed("the case", "an object", item.type_name()));
    report.add(name ? fmt::format("{}/{}", section, *name) : fmt::format("{}[{}]", section, i),
               name ? check(item) : Outcome(name.why()));
  }
}

Result<Done> run_sections(const Json& document, const moe::Engine* engine, Report& report) {
  const Result<const Json*> routing = section_of(document, "routing");
  if (!routing) return routing.why();
  const Result<const Json*> auxiliary = section_of(document, "auxiliary");
  if (!auxiliary) return auxiliary.why();
  const Result<const Json*> layers = section_of(document, "layers");
  if (!layers) return layers.why();
  run_section(**routing, "routing", check_moe_routing, report);
  run_section(**auxiliary, "auxiliary", check_moe_auxiliary, report);
  run_moe_layers(**layers, engine, report);
  return Done{};
}

}  // namespace

Result<Done> run_moe(const Json& document, Report& report) {
  return run_sections(document, nullptr, report);
}

Result<Done> run_moe_by(const Json& document, const moe::Engine& engine, Report& report) {
  return run_sections(document, &engine, report);
}

}  // namespace fp4moe::golden
