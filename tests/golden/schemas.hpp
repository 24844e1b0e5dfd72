// The kinds of golden files. To add one: write golden/<kind>.cpp with its run function and add its
// row to golden/schemas.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/experts.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

struct Schema {
  std::string_view name;     // the file's "schema" (or "format") field
  std::string_view summary;  // one line
  // Adds one outcome per case. An error when the document as a whole is not of the schema.
  Result<Done> (*run)(const Json& document, Report& report);
  // The same with the layers computed by an engine; null where nothing is.
  Result<Done> (*run_by)(const Json& document, const moe::Engine& engine, Report& report) = nullptr;
};

std::span<const Schema> schemas();

// Runs every case of a golden document, recognized by its schema field. Cases that differ or are
// malformed are in the report; an error means that there is no such schema or nothing to run, or
// (golden.engine) that an engine is given for data that none computes. Without one the reference
// engine computes layers.
Result<Report> run_golden(const Json& document, const moe::Engine* engine = nullptr);
Result<Report> run_golden_file(std::string_view path, const moe::Engine* engine = nullptr);

}  // namespace fp4moe::golden
