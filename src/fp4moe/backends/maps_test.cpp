// The maps of all layouts together.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"

namespace fp4moe::backends {
namespace maps_test {

// What a map is, but for its widths: axes of its digits, and whether its codes are scattered.
std::string kind_of(const layout::Map& map) {
  std::string result = map.code == nullptr ? "" : std::string(map.code->name);
  for (const layout::Digit& digit : map.digits)
    result += digit.axis == layout::Axis::row ? 'n' : 'k';
  return result + (map.is_column_major ? "'" : "");
}

// The same map may come in several widths; two different ones must not share a name.
TEST(Maps, HaveNamesOfTheirOwn) {
  std::map<std::string, std::string> kinds;
  for (const layout::Layout& row : layouts()) {
    std::vector<layout::Map> maps{row.codes, row.scales};
    if (row.one_group_scales) maps.push_back(*row.one_group_scales);
    for (const layout::Map& map : maps) {
      const auto known = kinds.emplace(map.name, kind_of(map)).first;
      EXPECT_EQ(known->second, kind_of(map)) << row.id << " " << map.name;
    }
  }
  EXPECT_GT(kinds.size(), 20u);
}

}  // namespace maps_test
}  // namespace fp4moe::backends
