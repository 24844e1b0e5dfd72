// Operations of Marlin.
#include <fmt/format.h>

#include "fp4moe/backends/marlin/maps.hpp"
#include "golden/fields.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

OperationPlan permuted_scales(const LayoutCase& given, const Matrices& from) {
  const Result<std::uint64_t> k = number_param(*given.params, "size_k", 1, 1 << 30);
  if (!k) return k.why();
  const Result<std::uint64_t> group = number_param(*given.params, "group_size", 1, 1 << 30);
  if (!group) return group.why();
  const Result<bool> is_a_8bit = flag_param(*given.params, "is_a_8bit");
  if (!is_a_8bit) return is_a_8bit.why();
  if (*k != *group * from.rows)
    return malformed("size_k", fmt::format("{} groups of {}", from.rows, *group),
                     std::to_string(*k));
  const bool is_grouped = *group < *k && !*is_a_8bit;
  const Result<std::string> perm = word_param(*given.params, "perm");
  if (!perm) return perm.why();
  if (!perm->empty() && *perm != (is_grouped ? "group" : "single"))
    return malformed("perm", is_grouped ? "\"group\"" : "\"single\"", "\"" + *perm + "\"");
  return Operation{
      .map = is_grouped ? backends::marlin::scales_grouped() : backends::marlin::scales_single(),
      .is_transposed = true};
}

constexpr OperationRow kMarlinOperations[] = {
    {"op_marlin_repack_w4a16",
     [](Given, From) -> OperationPlan {
       return Operation{.map = backends::marlin::codes_w4a16(), .dtype = tensor::DType::i32};
     }},
    {"op_marlin_repack_w4a8",
     [](Given, From) -> OperationPlan {
       return Operation{.map = backends::marlin::codes_w4a8(), .dtype = tensor::DType::i32};
     }},
    {"op_marlin_permute_scales", permuted_scales},
};

}  // namespace

std::span<const OperationRow> marlin_operations() { return kMarlinOperations; }

}  // namespace fp4moe::golden
