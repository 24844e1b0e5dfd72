// DeepGEMM: weights as they come, four scales in a word and the words of a column together.
#include "fp4moe/backends/deepgemm/maps.hpp"
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::deepgemm {

std::vector<layout::Layout> layouts() {
  return {{.id = "deepgemm.mxfp4",
           .format = layout::WeightFormat::mxfp4,
           .order = {.as_loaded = true},
           .codes = layout::plain(),
           .scales = deepgemm::scales(),
           .scales_type = tensor::DType::i32,
           .reads = "DeepGEMM on SM100",
           .note = "DeepGEMM's kernel leaves the rows that pad to four as it finds them."}};
}

}  // namespace fp4moe::backends::deepgemm
