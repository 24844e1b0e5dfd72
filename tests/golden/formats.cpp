#include "golden/formats.hpp"

#include <algorithm>
#include <string>

#include "fp4moe/formats/mx_scale.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

// A list of cases; `id_key` names them where they have names.
struct Section {
  std::string_view key;
  std::string_view id_key;
  Outcome (*check)(const Json& item);
};

constexpr Section kSections[] = {
    {"encode", {}, check_encode},
    {"blocks", "id", check_block},
    {"block_scales", {}, check_block_scales},
    {"nvfp4", "id", check_nvfp4},
    {"activations", {}, check_activation},
};

std::string case_name(const Section& section, const Json& item, std::size_t index) {
  std::string name = std::string(section.key) + "[" + std::to_string(index) + "]";
  const auto append = [&](std::string_view key) {
    if (!item.is_object()) return;
    const auto found = item.find(key);
    if (found != item.end() && found->is_string()) name += " " + found->string();
  };
  if (!section.id_key.empty()) {
    append(section.id_key);
  } else {
    append("format");
    append("rule");
  }
  return name;
}

Outcome check_item(const Section& section, const Json& item) {
  if (!section.id_key.empty())
    if (const Result<std::string> id = string_field(item, section.id_key); !id) return id.why();
  return section.check(item);
}

Result<Done> run_section(const Section& section, const Json& document, Report& report) {
  const auto items = document.find(section.key);
  if (items == document.end()) return Done{};
  if (!items->is_array()) return malformed(section.key, "an array of cases", items->type_name());
  for (std::size_t i = 0; i < items->size(); ++i)
    report.add(case_name(section, (*items)[i], i), check_item(section, (*items)[i]));
  return Done{};
}

Result<Done> run_tables(const Json& document, Report& report) {
  const auto tables = document.find("tables");
  if (tables == document.end()) return Done{};
  if (!tables->is_object()) return malformed("tables", "an object", tables->type_name());
  for (const auto& [format, values] : tables->items())
    report.add("tables." + format, check_table(format, values));
  return Done{};
}

// The GPU's approximate reciprocals, which the FlashInfer rules stand on. Not a case of its own:
// only a disagreement is reported.
void check_reciprocals(const Json& document, Report& report) {
  const auto constants = document.find("rcp_approx_ftz");
  if (constants == document.end() || !constants->is_object()) return;
  const auto compare = [&](std::string_view key, float ours) {
    if (!constants->contains(key)) return;
    const Result<float> theirs = float_field(*constants, key);
    if (!theirs)
      report.add("rcp_approx_ftz", theirs.why());
    else if (formats::float_bits(*theirs) != formats::float_bits(ours))
      report.add("rcp_approx_ftz",
                 std::optional<Mismatch>({std::string(key), show(*theirs), show(ours)}));
  };
  compare("six", formats::kReciprocalOf6);
  compare("four_four_eight", formats::kReciprocalOf448);
}

// A misspelled section must not pass as an absent one.
Result<Done> refuse_unknown_lists(const Json& document) {
  for (const auto& [key, value] : document.items()) {
    const bool known =
        std::any_of(std::begin(kSections), std::end(kSections),
                    [&, &name = key](const Section& section) { return section.key == name; });
    if (value.is_array() && !known)
      return malformed(key, "one of encode, blocks, block_scales, nvfp4, activations",
                       "an unknown list of cases");
  }
  return Done{};
}

}  // namespace

Result<Done> run_formats(const Json& document, Report& report) {
  if (Result<Done> known = refuse_unknown_lists(document); !known) return known;
  check_reciprocals(document, report);
  if (Result<Done> ran = run_tables(document, report); !ran) return ran;
  for (const Section& section : kSections)
    if (Result<Done> ran = run_section(section, document, report); !ran) return ran;
  return Done{};
}

}  // namespace fp4moe::golden
