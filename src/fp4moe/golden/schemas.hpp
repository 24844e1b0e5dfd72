// The kinds of golden files. To add one: write golden/<kind>.cpp with its run function and add its
// row to golden/schemas.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/golden/report.hpp"

namespace fp4moe::golden {

struct Schema {
  std::string_view name;     // the file's "schema" (or "format") field
  std::string_view summary;  // one line
  // Adds one outcome per case. An error when the document as a whole is not of the schema.
  Result<Done> (*run)(const Json& document, Report& report);
};

std::span<const Schema> schemas();

// Runs every case of a golden document, recognised by its schema field. Cases that differ or are
// malformed are in the report; an error means that there is no such schema or nothing to run.
Result<Report> run_golden(const Json& document);
Result<Report> run_golden_file(std::string_view path);

}  // namespace fp4moe::golden
