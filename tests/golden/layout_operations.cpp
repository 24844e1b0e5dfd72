#include "golden/layout_operations.hpp"

#include <algorithm>

#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

// A family's operations stand in operations/<family>.cpp.
constexpr std::span<const OperationRow> (*kFamilies[])() = {
    aiter_operations,  //
    deepgemm_operations, flashinfer_operations, marlin_operations,
    triton_operations,   vllm_cpu_operations,
};

}  // namespace

std::optional<Result<Operation>> plan_operation(const LayoutCase& given, const Matrices& from) {
  for (const auto operations : kFamilies)
    for (const OperationRow& row : operations())
      if (row.layout == given.layout) return row.plan(given, from);
  return std::nullopt;
}

}  // namespace fp4moe::golden
