// The operations of each family, one row each: the golden case's layout name, and the plan.
#pragma once
#include <span>
#include <string_view>

#include "golden/layout_operations.hpp"

namespace fp4moe::golden {

using OperationPlan = Result<Operation>;
using Given = const LayoutCase&;
using From = const Matrices&;

struct OperationRow {
  std::string_view layout;
  OperationPlan (*plan)(Given given, From from);
};

inline OperationPlan operation_of(const layout::Map& map) { return Operation{.map = map}; }

std::span<const OperationRow> aiter_operations();
std::span<const OperationRow> deepgemm_operations();
std::span<const OperationRow> flashinfer_operations();
std::span<const OperationRow> marlin_operations();
std::span<const OperationRow> triton_operations();
std::span<const OperationRow> vllm_cpu_operations();

}  // namespace fp4moe::golden
