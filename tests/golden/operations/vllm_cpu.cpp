// Operations of vLLM's CPU kernels.
#include "fp4moe/backends/vllm_cpu/maps.hpp"
#include "golden/fields.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

using layout::Map;

OperationPlan vllm_cpu(const LayoutCase& given, Map map) {
  const Result<std::uint64_t> block = number_param(*given.params, "block_n", 32, 1 << 16);
  if (!block) return block.why();
  if (*block != 32) return malformed("block_n", "32", std::to_string(*block));
  return operation_of(map);
}

constexpr OperationRow kVllmCpuOperations[] = {
    {"cpu.mxfp4_weight_vnni2",
     [](Given given, From) { return vllm_cpu(given, backends::vllm_cpu::codes()); }},
    {"cpu.mxfp4_scale_blocked",
     [](Given given, From) { return vllm_cpu(given, backends::vllm_cpu::scales()); }},
};

}  // namespace

std::span<const OperationRow> vllm_cpu_operations() { return kVllmCpuOperations; }

}  // namespace fp4moe::golden
