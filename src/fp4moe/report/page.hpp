// A report as one HTML file: no script, no request, figures inline. It draws facts and has none of
// its own:
//
//   path, name, kind ("checkpoint" or "converted"), version, date
//   inspect, lint or verify: answers
//   scales: to_json(LayerScales), or {"error"}
//   devices: [{"device", "explain": answer, "plan": answer}]
//   numerics: [{"backend", "diff": answer}]
//   bench: {"layer": answer, "records": [{"file", "report"}]}, or null
//
// An answer is what a command of the program says: {"command": "fp4moe lint ...", "status",
// "result": its --json} or, where it failed, "error" instead of the result.
#pragma once
#include <string>

#include "fp4moe/base/json.hpp"

namespace fp4moe::report {

std::string page(const Json& facts);

}  // namespace fp4moe::report
