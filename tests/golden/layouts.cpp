#include "golden/layouts.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/parallel.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {

Outcome refused(const LayoutCase& given, const Error& why) {
  if (given.expects_refusal) return std::optional<Mismatch>();
  return std::optional<Mismatch>({"the sizes are refused", "a packed tensor", text(why)});
}

Outcome not_refused() {
  return std::optional<Mismatch>({"the sizes should be refused", "an error", "a packed tensor"});
}

Outcome check_layout(const Json& item) {
  if (!item.is_object()) return malformed("the case", "an object", item.type_name());
  const Result<LayoutCase> given = read_layout_case(item);
  if (!given) return given.why();
  if (std::optional<Outcome> outcome = check_layout_operation(*given)) return std::move(*outcome);
  if (std::optional<Outcome> outcome = check_layout_layer(*given)) return std::move(*outcome);
  return malformed("layout", "the name of a known layout", fmt::format("\"{}\"", given->layout));
}

Result<Done> run_layouts(const Json& document, Report& report) {
  if (const auto order = document.find("byte_order"); order != document.end())
    if (!order->is_string() || *order != "little")
      return malformed("byte_order", "\"little\"", order->dump());
  const auto cases = document.find("cases");
  if (cases == document.end() || !cases->is_array())
    return malformed("cases", "a list of cases",
                     cases == document.end() ? "none" : cases->type_name());
  if (const Result<Done> good = check_generators(document); !good)
    report.add("generators", good.why());

  // Cases are independent; each needs memory only while it runs.
  std::vector<Outcome> outcomes(cases->size(), std::optional<Mismatch>());
  Result<Done> ran = parallel_for(available_threads(), cases->size(), [&](std::size_t i) {
    outcomes[i] = check_layout((*cases)[i]);
    return Result<Done>(Done{});
  });
  if (!ran) return ran;
  for (std::size_t i = 0; i < cases->size(); ++i) {
    const Result<std::string> id = string_field((*cases)[i], "id");
    report.add(id ? *id : fmt::format("cases[{}]", i), id ? outcomes[i] : Outcome(id.why()));
  }
  return Done{};
}

}  // namespace fp4moe::golden
