// Operations of DeepGEMM.
#include "fp4moe/backends/deepgemm/maps.hpp"
#include "golden/operations/operations.hpp"

namespace fp4moe::golden {
namespace {

constexpr OperationRow kDeepgemmOperations[] = {
    {"deepgemm.sf_mn_major_ue8m0_int32",
     [](Given, From) -> OperationPlan {
       return Operation{.map = backends::deepgemm::scales(), .dtype = tensor::DType::i32};
     }},
};

}  // namespace

std::span<const OperationRow> deepgemm_operations() { return kDeepgemmOperations; }

}  // namespace fp4moe::golden
