// Operations of AITER.
#include "fp4moe/backends/aiter/maps.hpp"
#include "golden/fields.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

using layout::Map;

// If gate and up rows are halves, blocks of `block` of each are interleaved.
OperationPlan gate_up(const LayoutCase& given, Map map, std::uint32_t block) {
  const Result<bool> flag = flag_param(*given.params, "gate_up");
  if (!flag) return flag.why();
  return Operation{.map = map, .block = *flag ? block : 0};
}

OperationPlan aiter_weights(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> lanes = number_param(*given.params, "NLane", 16, 1 << 16);
  if (!lanes) return lanes.why();
  if (*lanes != 16) return malformed("NLane", "16", std::to_string(*lanes));
  return gate_up(given, backends::aiter::codes(), 16);
}

OperationPlan aiter_weights_16x16(const LayoutCase& given, const Matrices&) {
  const auto tile = given.params->find("layout");
  if (tile != given.params->end() && *tile != Json::array({16, 16}))
    return malformed("layout", "[16,16]", tile->dump());
  return operation_of(backends::aiter::codes(32));
}

// Only the reference's name tells whether columns are filled up to eight.
OperationPlan aiter_scales(const LayoutCase& given, const Matrices&) {
  const bool pads = given.reference.find("889bfecdf7") == std::string::npos;
  return gate_up(given, backends::aiter::scales(pads), 16);
}

OperationPlan aiter_scales_n32k4(const LayoutCase& given, const Matrices&) {
  const Result<bool> alternates = flag_param(*given.params, "is_guinterleave");
  if (!alternates) return alternates.why();
  if (!*alternates) return operation_of(backends::aiter::scales_n32k4());
  return gate_up(given, backends::aiter::scales_n32k4(), 1);
}

constexpr OperationRow kAiterOperations[] = {
    {"aiter.shuffle_weight_a16w4", aiter_weights},
    {"aiter.shuffle_weight_16x16", aiter_weights_16x16},
    {"aiter.shuffle_scale_a16w4", aiter_scales},
    {"aiter.shuffle_scale_n32k4", aiter_scales_n32k4},
    {"aiter.e8m0_shuffle",
     [](Given, From) -> OperationPlan {
       return Operation{.map = backends::aiter::scales_all_experts(), .joins_experts = true};
     }},
};

}  // namespace

std::span<const OperationRow> aiter_operations() { return kAiterOperations; }

}  // namespace fp4moe::golden
