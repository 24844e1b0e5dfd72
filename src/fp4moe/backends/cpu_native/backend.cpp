// Our own kernels on the CPU, Arm or x86, for every layer this library knows. They run on
// the host of any device.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/own_kernels.hpp"

namespace fp4moe::backends::cpu_native {
namespace {

constexpr DeviceNeed kDevices[] = {{}};

constexpr ExpertsClass kMonolithic = [] {
  ExpertsClass result = own_monolithic(
      "CpuExpertsMonolithic", kDevices,
      {Routing::softmax_topk, Routing::renormalize, Routing::deepseek_v3, Routing::llama4,
       Routing::renormalize_naive, Routing::topk, Routing::sigmoid_renorm, Routing::minimax2,
       Routing::sigmoid, Routing::deepseek_v4, Routing::simulated});
  result.hash_routing = true;
  return result;
}();
constexpr ExpertsClass kModular = own_kernel("CpuExperts", kDevices);
constexpr ExpertsClass kBatched = own_kernel("BatchedCpuExperts", kDevices, TokenFormat::batched);
constexpr const ExpertsClass* kList[] = {&kMonolithic, &kModular, &kBatched};

constexpr Rounding kRounding[] = {{.intermediate = 32, .hidden = 32}};

constexpr Backend kBackends[] = {
    own_backend("CPU", "cpu_native", WeightFormat::mxfp4, kList, kRounding, "cpu_native.mxfp4"),
    own_backend("CPU", "cpu_native", WeightFormat::nvfp4, kList, kRounding, "cpu_native.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::cpu_native
