#include "fp4moe/layout/maps.hpp"

#include "fp4moe/layout/digits.hpp"

namespace fp4moe::layout {

Map plain(std::uint32_t pad_cols) {
  using namespace digits;
  return {.name = "plain", .pad_cols = pad_cols, .digits = {n(1, 0, cols(1)), k(1, 0, at(1))}};
}

Map column_major(Element element) {
  using namespace digits;
  return {.name = "column_major",
          .element = element,
          .digits = {n(1, 0, cols(1)), k(1, 0, at(1))},
          .is_column_major = true};
}

Map scales_128x4(std::uint32_t pad_cols) {
  using namespace digits;
  return {.name = "scales_128x4",
          .pad_rows = 128,
          .pad_cols = pad_cols,
          .digits = {k(1, 4, at(1)), n(32, 4, at(4)), n(1, 32, at(16)), k(4, 0, at(512)),
                     n(128, 0, cols(128))}};
}

Map scales_32x8(bool pads) {
  using namespace digits;
  Map result{.name = "scales_32x8",
             .digits = {n(16, 2, at(1)), k(4, 2, at(2)), n(1, 16, at(4)), k(1, 4, at(64)),
                        k(8, 0, at(256)), n(32, 0, cols(32))}};
  (pads ? result.pad_rows : result.need_rows) = 32;
  (pads ? result.pad_cols : result.need_cols) = 8;
  return result;
}

Map named(std::string_view name, Map map) {
  map.name = name;
  return map;
}

}  // namespace fp4moe::layout
