// An error as programs read it: what `--json` prints and the C API hands out.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe {

// {"code": 2, "id": "...", "message": "...", "file", "tensor", "expected", "found", "remedy"}, the
// last five where they apply.
Json to_json(const Error& why);

}  // namespace fp4moe
