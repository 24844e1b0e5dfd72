#include "fp4moe/capi/rows.hpp"

#include <array>
#include <cstddef>
#include <type_traits>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/capi/border.hpp"

namespace fp4moe::capi {
namespace {

using moe::ConstRows;
using moe::MutableRows;
using runtime::MoeLayer;
using tensor::DType;

template <class Rows, class Given>
Result<Rows> rows_of(const Given* pointer, const char* what) {
  const Result<Given> given = take_struct(pointer, what);
  if (!given) return given.why();
  const Result<DType> dtype = dtype_of(given->dtype, what);
  if (!dtype) return dtype.why();
  const std::uint64_t element = moe::element_bytes(*dtype);
  const auto dense = checked_multiply(given->columns, element);
  const std::uint64_t stride = given->stride != 0 ? given->stride : dense.value_or(0);
  const auto whole = checked_multiply(given->rows, stride);
  if (!dense || !whole || *whole > PTRDIFF_MAX)
    return usage("rows.size", fmt::format("{} are larger than any memory", what))
        .expects("less than 2^63 bytes",
                 fmt::format("{} rows of {} columns, {} bytes from row to row", given->rows,
                             given->columns, given->stride));
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(given->data) % element == 0;
  if (!is_aligned || stride % element != 0)
    return usage("rows.alignment", fmt::format("{} are not aligned as their type is", what))
        .expects(fmt::format("multiples of {} bytes", element),
                 fmt::format("address {}, {} bytes from row to row", given->data, stride));
  using Byte = std::remove_pointer_t<decltype(Rows::data)>;
  const Rows result{static_cast<Byte*>(given->data), *dtype, given->rows, given->columns, stride};
  if (const auto fine = moe::check_rows(result, what, result.columns); !fine) return fine.why();
  return result;
}

Result<Done> check_count(std::uint64_t expected, std::uint64_t found, std::string_view what) {
  if (expected == found) return Done{};
  return usage("rows.count", fmt::format("wrong number of {}", what))
      .expects(fmt::format("{} rows", expected), fmt::format("{}", found));
}

}  // namespace

Result<DType> dtype_of(std::uint64_t given, std::string_view what) {
  constexpr std::array kTypes{DType::bf16, DType::f16, DType::f32, DType::f64};
  if (given >= FP4MOE_BF16 && given <= FP4MOE_F64) return kTypes[given - FP4MOE_BF16];
  return usage("rows.type", fmt::format("{} have a type that is not computed with", what))
      .expects("FP4MOE_BF16 (1), F16 (2), F32 (3) or F64 (4)", fmt::format("{}", given));
}

Result<ConstRows> take_rows(const fp4moe_rows* given, const char* what) {
  return rows_of<ConstRows>(given, what);
}
Result<MutableRows> take_rows(const fp4moe_output* given, const char* what) {
  return rows_of<MutableRows>(given, what);
}

Result<Sides> take_sides(const MoeLayer& layer, const fp4moe_rows* x, const fp4moe_output* out) {
  const auto tokens = take_rows(x, "tokens");
  if (!tokens) return tokens.why();
  const auto outputs = take_rows(out, "outputs");
  if (!outputs) return outputs.why();
  if (const auto same = check_count(tokens->rows, outputs->rows, "outputs"); !same)
    return same.why();
  const std::uint64_t hidden = layer.problem().shape.hidden;
  if (const auto fine = moe::check_rows(*tokens, "tokens", hidden); !fine) return fine.why();
  if (const auto fine = moe::check_rows(*outputs, "outputs", hidden); !fine) return fine.why();
  return Sides{*tokens, *outputs};
}

Result<Done> check_numbers(const void* data, std::uint64_t rows, std::uint64_t columns,
                           const char* what) {
  const auto count = checked_multiply(rows, columns);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(data) % 4 == 0;
  if (!count || *count > PTRDIFF_MAX / 4 || !is_aligned)
    return usage("routes.memory", fmt::format("unreadable memory: {}", what))
        .expects("arrays that are aligned to 4 bytes",
                 fmt::format("{} of each", count.value_or(UINT64_MAX)));
  if (*count != 0 && data == nullptr) return null_argument(what);
  return Done{};
}

Result<fp4moe_routes> take_routes(const MoeLayer& layer, const fp4moe_routes* given,
                                  std::uint64_t tokens) {
  const auto routes = take_struct(given, "fp4moe_routes");
  if (!routes) return routes.why();
  if (const auto same = check_count(tokens, routes->tokens, "routes"); !same) return same.why();
  const std::uint64_t experts = layer.facts().model.shape.experts;
  if (routes->top_k == 0 || routes->top_k > experts)
    return usage("routes.top_k", "invalid top_k")
        .expects(fmt::format("1 to {}", experts), fmt::format("{}", routes->top_k));
  if (const auto fine = check_numbers(routes->ids, tokens, routes->top_k, "the routes' ids"); !fine)
    return fine.why();
  if (const auto fine =
          check_numbers(routes->weights, tokens, routes->top_k, "the routes' weights");
      !fine)
    return fine.why();
  return *routes;
}

Result<ConstRows> take_logits(const MoeLayer& layer, const fp4moe_rows* given,
                              std::uint64_t tokens) {
  const auto logits = take_rows(given, "logits");
  if (!logits) return logits.why();
  if (const auto same = check_count(tokens, logits->rows, "logits"); !same) return same.why();
  const moe::routing::RouterOptions& router = layer.facts().router;
  const std::uint64_t columns = router.experts + router.zero_experts;
  if (const auto fine = moe::check_rows(*logits, "logits", columns); !fine) return fine.why();
  return *logits;
}

}  // namespace fp4moe::capi
