// Operations of Triton.
#include <bit>

#include <fmt/format.h>

#include "fp4moe/backends/triton/maps.hpp"
#include "golden/fields.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

using layout::Map;

Operation triton(Map map, std::uint64_t logical_per_col) {
  return {.map = map, .logical_per_col = logical_per_col};
}

// The axis of the blocks: -2 for weights, -1 for a left operand, whose storage is the same but
// reported as it lies.
OperationPlan along_axis(const LayoutCase& given, Operation operation) {
  const auto axis = given.params->find("mx_axis");
  if (axis == given.params->end() || *axis == -2) return operation;
  if (*axis != -1) return malformed("mx_axis", "-2 or -1", axis->dump());
  operation.map.is_column_major = false;
  operation.is_left_operand = true;
  return operation;
}

OperationPlan hopper_value(const LayoutCase& given, const Matrices&) {
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
  const Map map = backends::triton::hopper_value(
      static_cast<unsigned>(*version),
      {static_cast<std::uint32_t>(*rows), static_cast<std::uint32_t>(*bytes)});
  return along_axis(given, triton(map, 2));
}

OperationPlan hopper_scale(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> warps = number_param(*given.params, "num_warps", 8, 32);
  if (!warps) return warps.why();
  if (!std::has_single_bit(*warps))
    return malformed("num_warps", "a power of two", std::to_string(*warps));
  const Map map = backends::triton::hopper_scale(static_cast<std::uint32_t>(*warps));
  return along_axis(given, triton(map, 1));
}

OperationPlan strided(const LayoutCase& given, const Matrices&) {
  const auto major = given.params->find("major_dim");
  if (major != given.params->end() && *major != -2)
    return malformed("major_dim", "-2", major->dump());
  return triton(backends::triton::strided(), 2);
}

OperationPlan shuffled_value(const LayoutCase& given, const Matrices&) {
  const Result<std::uint64_t> k = number_param(*given.params, "block_k", 128, 1 << 15);
  if (!k) return k.why();
  const Result<std::uint64_t> n = number_param(*given.params, "block_n", 256, 1 << 15);
  if (!n) return n.why();
  if (!std::has_single_bit(*k) || *k < 2 || !std::has_single_bit(*n))
    return malformed("block_k, block_n", "powers of two", fmt::format("{} and {}", *k, *n));
  return triton(backends::triton::blackwell_value_shuffled(static_cast<std::uint32_t>(*k),
                                                           static_cast<std::uint32_t>(*n)),
                2);
}

OperationPlan cdna4_scale(const LayoutCase& given, const Matrices&) {
  const Result<bool> pads = flag_param(*given.params, "padded");
  if (!pads) return pads.why();
  return triton(backends::triton::cdna4_scale(*pads), 1);
}

constexpr OperationRow kTritonOperations[] = {
    {"triton.strided", strided},
    {"triton.hopper_value", hopper_value},
    {"triton.hopper_scale", hopper_scale},
    {"triton.blackwell_value",
     [](Given, From) -> OperationPlan { return triton(backends::triton::blackwell_value(), 2); }},
    {"triton.blackwell_value_shuffled", shuffled_value},
    {"triton.blackwell_scale",
     [](Given, From) -> OperationPlan { return triton(backends::triton::blackwell_scale(), 1); }},
    {"triton.cdna4_scale", cdna4_scale},
    {"triton.gfx1250_scale",
     [](Given, From from) -> OperationPlan {
       return triton(backends::triton::gfx1250_scale(from.cols), 1);
     }},
};

}  // namespace

std::span<const OperationRow> triton_operations() { return kTritonOperations; }

}  // namespace fp4moe::golden
