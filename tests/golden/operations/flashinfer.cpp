// Operations of FlashInfer.
#include "fp4moe/backends/flashinfer_cutlass/maps.hpp"
#include "fp4moe/layout/maps.hpp"
#include "golden/fields.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

using layout::Map;

// "g2" or "g3".
Result<bool> is_third(const LayoutCase& given) {
  const Result<std::string> generation = string_field(*given.params, "generation");
  if (!generation) return generation.why();
  if (*generation != "g2" && *generation != "g3")
    return malformed("generation", "g2 or g3", "\"" + *generation + "\"");
  return *generation == "g3";
}

OperationPlan sm90_weights(const LayoutCase& given, const Matrices&) {
  const Result<bool> third = is_third(given);
  if (!third) return third.why();
  return operation_of(backends::flashinfer_cutlass::sm90_codes(*third));
}

OperationPlan sm90_scales(const LayoutCase& given, const Matrices&) {
  const Result<bool> third = is_third(given);
  if (!third) return third.why();
  return operation_of(*third ? backends::flashinfer_cutlass::sm90_scales_folded()
                             : backends::flashinfer_cutlass::sm90_scales());
}

constexpr OperationRow kFlashinferOperations[] = {
    {"op_block_scale_interleave_128x4",
     [](Given, From) -> OperationPlan {
       return Operation{.map = layout::scales_128x4(), .reported = Reported::flat};
     }},
    {"op_shuffle_rows_32",
     [](Given, From) -> OperationPlan {
       Map map = layout::plain();
       map.need_rows = 32;
       return Operation{.map = map, .shuffles_rows = true};
     }},
    {"op_sm90_interleave_weights", sm90_weights},
    {"op_sm90_interleave_scales", sm90_scales},
};

}  // namespace

std::span<const OperationRow> flashinfer_operations() { return kFlashinferOperations; }

}  // namespace fp4moe::golden
