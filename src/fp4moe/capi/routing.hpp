// A router in C's words.
#pragma once
#include "fp4moe/base/result.hpp"
#include "fp4moe/fp4moe.h"
#include "fp4moe/moe/routing/router.hpp"

namespace fp4moe::capi {

// `experts` and `top_k` of a description may be 0: then `otherwise_experts` and `otherwise_top_k`
// are taken. Errors: struct.*, argument.*, routing.method (an unknown name), routing.size,
// routing.renormalize, routes.memory.
Result<moe::routing::RouterOptions> take_routing(const fp4moe_routing* given,
                                                 std::uint64_t otherwise_experts,
                                                 std::uint64_t otherwise_top_k);

}  // namespace fp4moe::capi
