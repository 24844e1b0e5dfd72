#include "golden/schemas.hpp"

#include "fp4moe/base/text.hpp"
#include "golden/formats.hpp"
#include "golden/layouts.hpp"
#include "golden/moe.hpp"
#include "golden/oracle_cases.hpp"

namespace fp4moe::golden {
namespace {

constexpr Schema kSchemas[] = {
    {"fp4moe-golden-formats/1", "number formats, block quantization, activations", run_formats},
    {"fp4moe.oracle_cases.v1", "selection, sizes, parallel layouts, token exchange",
     run_oracle_cases},
    {"fp4moe-golden-layouts/1", "weight layouts of every backend, and operations they are made of",
     run_layouts},
    {"fp4moe-golden-moe/1", "routing, permutation, quantized activations, whole MoE layers",
     run_moe, run_moe_by},
};

std::string known_names() {
  std::string names;
  for (const Schema& schema : kSchemas) {
    if (!names.empty()) names += ", ";
    names += schema.name;
  }
  return names;
}

// Golden files of layers say "format" where the others say "schema".
Result<std::string> schema_name(const Json& document) {
  if (!document.is_object())
    return invalid("golden.document", "a golden file is a JSON object")
        .expects("an object", document.type_name());
  for (const char* key : {"schema", "format"}) {
    const auto found = document.find(key);
    if (found != document.end() && found->is_string()) return found->string();
  }
  return invalid("golden.schema", "the file does not say what kind of golden data it holds")
      .expects("a string field \"schema\"", "none");
}

}  // namespace

std::span<const Schema> schemas() { return kSchemas; }

Result<Report> run_golden(const Json& document, const moe::Engine* engine) {
  const Result<std::string> name = schema_name(document);
  if (!name) return name.why();
  for (const Schema& schema : kSchemas) {
    if (schema.name != *name) continue;
    Report report{.schema = *name};
    if (engine != nullptr && schema.run_by == nullptr)
      return usage("golden.engine", "no engine computes this kind of golden data")
          .expects("layers (fp4moe-golden-moe/1)", *name)
          .try_this("leave --engine out");
    const Result<Done> ran =
        engine == nullptr ? schema.run(document, report) : schema.run_by(document, *engine, report);
    if (!ran) return ran.why();
    if (report.passed + report.failed == 0)
      return invalid("golden.empty", "the golden file holds no cases")
          .expects("at least one case", "none");
    return report;
  }
  return invalid("golden.unknown_schema", "no such kind of golden data is known here")
      .expects("one of " + known_names(), *name);
}

Result<Report> run_golden_file(std::string_view path, const moe::Engine* engine) {
  const Result<Json> document = read_json_file(path);
  if (!document) return document.why();
  Result<Report> report = run_golden(*document, engine);
  if (!report) return Error(report.why()).in(path);
  report->path = path;
  return report;
}

}  // namespace fp4moe::golden
