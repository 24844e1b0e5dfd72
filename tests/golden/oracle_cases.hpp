// Golden data of the oracle: one case is one question about selection, sizes, parallel layouts or
// the exchange of tokens.
#pragma once
#include "golden/report.hpp"
#include "golden/schemas.hpp"

namespace fp4moe::golden {

// Schema fp4moe.oracle_cases.v1.
Result<Done> run_oracle_cases(const Json& document, Report& report);

// Both modes: compat against `expect` with its trace and log, strict against `expect_strict` or,
// where that is missing, against the result in `expect`.
Outcome check_select(const Json& item);
Outcome check_round(const Json& item);
Outcome check_layer_size(const Json& item);
Outcome check_parallel(const Json& item);
Outcome check_prepare_finalize(const Json& item);
// Compat against `expect`, strict only against an `expect_strict`.
Outcome check_validate(const Json& item);

}  // namespace fp4moe::golden
