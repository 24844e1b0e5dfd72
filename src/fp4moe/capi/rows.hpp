// The caller's rows and routes as library types, checked as far as possible.
#pragma once
#include <cstdint>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/fp4moe.h"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace fp4moe::capi {

// Errors: rows.type.
Result<tensor::DType> dtype_of(std::uint64_t given, std::string_view what);

// Errors: struct.*, rows.*.
Result<moe::ConstRows> take_rows(const fp4moe_rows* given, const char* what);
Result<moe::MutableRows> take_rows(const fp4moe_output* given, const char* what);

// Tokens and outputs, as many of one as of the other; both have the layer's width.
struct Sides {
  moe::ConstRows x{};
  moe::MutableRows out{};
};
Result<Sides> take_sides(const runtime::MoeLayer& layer, const fp4moe_rows* x,
                         const fp4moe_output* out);

// For so many tokens of a layer. Errors: struct.*, rows.count, routes.*, argument.null.
Result<fp4moe_routes> take_routes(const runtime::MoeLayer& layer, const fp4moe_routes* given,
                                  std::uint64_t tokens);
Result<moe::ConstRows> take_logits(const runtime::MoeLayer& layer, const fp4moe_rows* given,
                                   std::uint64_t tokens);

// Arrays of 4-byte numbers: null only where they are empty, aligned, not larger than any memory.
// Errors: routes.memory, argument.null.
Result<Done> check_numbers(const void* data, std::uint64_t rows, std::uint64_t columns,
                           const char* what);

}  // namespace fp4moe::capi
