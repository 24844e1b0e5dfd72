// Golden cases about one operation on one tensor: which map it is, in which order rows come, and
// how the result is reported.
#pragma once
#include <cstdint>
#include <optional>

#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/index_map.hpp"
#include "golden/layout_data.hpp"

namespace fp4moe::golden {

enum class Reported : std::uint8_t { as_the_kernel_sees_it, flat };

struct Operation {
  layout::Map map{};
  bool shuffles_rows = false;  // in blocks of 32
  std::uint32_t block = 0;  // not 0: rows are halves, of which blocks of this size are interleaved
  bool joins_experts = false;  // their rows make one matrix
  bool is_transposed = false;  // the input is [columns, rows], its elements of any size
  Reported reported = Reported::as_the_kernel_sees_it;
  std::optional<tensor::DType> dtype{};  // of the result; none: the input's
  std::uint64_t logical_per_col = 0;     // logical elements in a column; 0: no logical shape
  bool is_left_operand = false;          // whose logical shape is not transposed
};

// A tensor of rank 2 or 3 as matrices, one for each expert. Columns are the tensor's last axis.
struct Matrices {
  std::uint64_t experts = 1, rows = 0, cols = 0;
  bool has_expert_axis = false;
};

// Nothing when no operation has the case's layout name. Errors: golden.malformed.
std::optional<Result<Operation>> plan_operation(const LayoutCase& given, const Matrices& from);

}  // namespace fp4moe::golden
