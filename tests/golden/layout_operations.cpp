#include "golden/layout_operations.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "fp4moe/layout/maps.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

using layout::Map;
using tensor::DType;

using Plan = Result<Operation>;

Plan with(Map map) { return Operation{.map = map}; }

Operation triton(Map map, std::uint64_t logical_per_col) {
  return {.map = map, .logical_per_col = logical_per_col};
}

// The axis of the blocks: -2 for weights, -1 for a left operand, whose storage is the same but
// reported as it lies.
Plan along_axis(const LayoutCase& given, Operation operation) {
  const auto axis = given.params->find("mx_axis");
  if (axis == given.params->end() || *axis == -2) return operation;
  if (*axis != -1) return malformed("mx_axis", "-2 or -1", axis->dump());
  operation.map.is_column_major = false;
  operation.is_left_operand = true;
  return operation;
}

Plan hopper_value(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> version = number_param(*given.params, "mma_version", 3, 3);
  if (!version) return version.why();
  if (*version < 2) return malformed("mma_version", "2 or 3", std::to_string(*version));
  const Result<std::uint64_t> rows = number_param(*given.params, "align_n", 16, 1 << 16);
  if (!rows) return rows.why();
  const Result<std::uint64_t> bytes = number_param(*given.params, "align_k_bytes", 32, 1 << 16);
  if (!bytes) return bytes.why();
  if (*rows % 16 != 0 || *bytes % 32 != 0)
    return malformed("align_n, align_k_bytes", "multiples of 16 and of 32",
                     fmt::format("{} and {}", *rows, *bytes));
  const Map map = layout::triton_hopper_value(
      static_cast<unsigned>(*version),
      {static_cast<std::uint32_t>(*rows), static_cast<std::uint32_t>(*bytes)});
  return along_axis(given, triton(map, 2));
}

Plan hopper_scale(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> warps = number_param(*given.params, "num_warps", 8, 32);
  if (!warps) return warps.why();
  if (!std::has_single_bit(*warps))
    return malformed("num_warps", "a power of two", std::to_string(*warps));
  const Map map = layout::triton_hopper_scale(static_cast<std::uint32_t>(*warps));
  return along_axis(given, triton(map, 1));
}

Plan strided(const LayoutCase& given, const Matrices&) {
  const auto major = given.params->find("major_dim");
  if (major != given.params->end() && *major != -2)
    return malformed("major_dim", "-2", major->dump());
  return triton(layout::triton_strided(), 2);
}

Plan shuffled_value(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> k = number_param(*given.params, "block_k", 128, 1 << 15);
  if (!k) return k.why();
  const Result<std::uint64_t> n = number_param(*given.params, "block_n", 256, 1 << 15);
  if (!n) return n.why();
  if (!std::has_single_bit(*k) || *k < 2 || !std::has_single_bit(*n))
    return malformed("block_k, block_n", "powers of two", fmt::format("{} and {}", *k, *n));
  return triton(layout::triton_blackwell_value_shuffled(static_cast<std::uint32_t>(*k),
                                                        static_cast<std::uint32_t>(*n)),
                2);
}

Plan cdna4_scale(const LayoutCase& given, const Matrices&) {
  const Result<bool> pads = flag_param(*given.params, "padded");
  if (!pads) return pads.why();
  return triton(layout::triton_cdna4_scale(*pads), 1);
}

Plan permuted_scales(const LayoutCase& given, const Matrices& from) {
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
      .map = is_grouped ? layout::marlin_scales_grouped() : layout::marlin_scales_single(),
      .is_transposed = true};
}

// "g2" or "g3".
Result<bool> is_third(const LayoutCase& given) {
  const Result<std::string> generation = string_field(*given.params, "generation");
  if (!generation) return generation.why();
  if (*generation != "g2" && *generation != "g3")
    return malformed("generation", "g2 or g3", "\"" + *generation + "\"");
  return *generation == "g3";
}

Plan sm90_weights(const LayoutCase& given, const Matrices&) {
  const Result<bool> third = is_third(given);
  if (!third) return third.why();
  return with(layout::sm90_weights(*third));
}

Plan sm90_scales(const LayoutCase& given, const Matrices&) {
  const Result<bool> third = is_third(given);
  if (!third) return third.why();
  return with(*third ? layout::sm90_scales_folded() : layout::sm90_scales());
}

// Where gate and up rows are halves, blocks of `block` of each take turns.
Plan gate_up(const LayoutCase& given, Map map, std::uint32_t block) {
  const Result<bool> flag = flag_param(*given.params, "gate_up");
  if (!flag) return flag.why();
  return Operation{.map = map, .block = *flag ? block : 0};
}

Plan aiter_weights(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> lanes = number_param(*given.params, "NLane", 16, 1 << 16);
  if (!lanes) return lanes.why();
  if (*lanes != 16) return malformed("NLane", "16", std::to_string(*lanes));
  return gate_up(given, layout::aiter_weights(), 16);
}

Plan aiter_weights_16x16(const LayoutCase& given, const Matrices&) {
  const auto tile = given.params->find("layout");
  if (tile != given.params->end() && *tile != Json::array({16, 16}))
    return malformed("layout", "[16,16]", tile->dump());
  return with(layout::aiter_weights(32));
}

// Only the reference's name tells whether columns are filled up to eight.
Plan aiter_scales(const LayoutCase& given, const Matrices&) {
  const bool pads = given.reference.find("889bfecdf7") == std::string::npos;
  return gate_up(given, layout::aiter_scales(pads), 16);
}

Plan aiter_scales_n32k4(const LayoutCase& given, const Matrices&) {
  const Result<bool> alternates = flag_param(*given.params, "is_guinterleave");
  if (!alternates) return alternates.why();
  if (!*alternates) return with(layout::aiter_scales_n32k4());
  return gate_up(given, layout::aiter_scales_n32k4(), 1);
}

Plan vllm_cpu(const LayoutCase& given, Map map) {
  const Result<std::uint64_t> block = number_param(*given.params, "block_n", 32, 1 << 16);
  if (!block) return block.why();
  if (*block != 32) return malformed("block_n", "32", std::to_string(*block));
  return with(map);
}

struct Row {
  std::string_view layout;
  Plan (*plan)(const LayoutCase& given, const Matrices& from);
};
using Given = const LayoutCase&;
using From = const Matrices&;
constexpr Row kOperations[] = {
    {"op_marlin_repack_w4a16",
     [](Given, From) -> Plan {
       return Operation{.map = layout::marlin_w4a16(), .dtype = DType::i32};
     }},
    {"op_marlin_repack_w4a8",
     [](Given, From) -> Plan {
       return Operation{.map = layout::marlin_w4a8(), .dtype = DType::i32};
     }},
    {"op_marlin_permute_scales", permuted_scales},
    {"op_block_scale_interleave_128x4",
     [](Given, From) -> Plan {
       return Operation{.map = layout::scales_128x4(), .reported = Reported::flat};
     }},
    {"op_shuffle_rows_32",
     [](Given, From) -> Plan {
       Map map = layout::plain();
       map.need_rows = 32;
       return Operation{.map = map, .shuffles_rows = true};
     }},
    {"op_sm90_interleave_weights", sm90_weights},
    {"op_sm90_interleave_scales", sm90_scales},
    {"triton.strided", strided},
    {"triton.hopper_value", hopper_value},
    {"triton.hopper_scale", hopper_scale},
    {"triton.blackwell_value",
     [](Given, From) -> Plan { return triton(layout::triton_blackwell_value(), 2); }},
    {"triton.blackwell_value_shuffled", shuffled_value},
    {"triton.blackwell_scale",
     [](Given, From) -> Plan { return triton(layout::triton_blackwell_scale(), 1); }},
    {"triton.cdna4_scale", cdna4_scale},
    {"triton.gfx1250_scale",
     [](Given, From from) -> Plan { return triton(layout::triton_gfx1250_scale(from.cols), 1); }},
    {"aiter.shuffle_weight_a16w4", aiter_weights},
    {"aiter.shuffle_weight_16x16", aiter_weights_16x16},
    {"aiter.shuffle_scale_a16w4", aiter_scales},
    {"aiter.shuffle_scale_n32k4", aiter_scales_n32k4},
    {"aiter.e8m0_shuffle",
     [](Given, From) -> Plan {
       return Operation{.map = layout::aiter_scales_all_experts(), .joins_experts = true};
     }},
    {"cpu.mxfp4_weight_vnni2",
     [](Given given, From) { return vllm_cpu(given, layout::vllm_cpu_weights()); }},
    {"cpu.mxfp4_scale_blocked",
     [](Given given, From) { return vllm_cpu(given, layout::vllm_cpu_scales()); }},
    {"deepgemm.sf_mn_major_ue8m0_int32",
     [](Given, From) -> Plan {
       return Operation{.map = layout::deepgemm_scales(), .dtype = DType::i32};
     }},
};

}  // namespace

std::optional<Result<Operation>> plan_operation(const LayoutCase& given, const Matrices& from) {
  const auto* row = std::ranges::find(kOperations, given.layout, &Row::layout);
  if (row == std::end(kOperations)) return std::nullopt;
  return row->plan(given, from);
}

}  // namespace fp4moe::golden
