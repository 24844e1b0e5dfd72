// B12X packs weights itself while it loads them. What it is handed are the checkpoint's rows with
// the sign of every zero cleared.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::b12x {

std::vector<layout::Layout> layouts() {
  return {{.id = "b12x.mxfp4",
           .format = layout::WeightFormat::mxfp4,
           .order = {.as_loaded = true},
           .codes = layout::plain(),
           .scales = layout::plain(),
           .has_no_negative_zero = true,
           .reads = "vLLM's hand-over to the b12x library",
           .note = "The library's own packing, made at load time, is not covered."}};
}

}  // namespace fp4moe::backends::b12x
