#include "fp4moe/platform/memory_nodes.hpp"

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace fp4moe::platform {
namespace memory_nodes_test {

using Numbers = std::vector<std::uint32_t>;

TEST(MemoryNodes, ListsAreReadAsTheSystemWritesThem) {
  EXPECT_EQ(parse_number_list("0\n"), Numbers{0});
  EXPECT_EQ(parse_number_list("0-2,7"), (Numbers{0, 1, 2, 7}));
  EXPECT_EQ(parse_number_list("4,1-2,2"), (Numbers{1, 2, 4}));
  for (const char* bad : {"", "\n", "x", "1-", "3-1", "1,", "1 2", "-1", "0-4000000000", "99999"})
    EXPECT_EQ(parse_number_list(bad), Numbers{}) << bad;
}

TEST(MemoryNodes, AMachineThatSaysNothingHasOne) {
  EXPECT_EQ(memory_nodes("/nowhere/at/all"), Numbers{0});
}

TEST(MemoryNodes, AreThoseWithMemory) {
  const fp4moe::testing::TemporaryFolder folder;
  fp4moe::testing::write_text(folder / "has_memory", "0,2-3\n");
  EXPECT_EQ(memory_nodes(folder.path()), (Numbers{0, 2, 3}));
}

TEST(MemoryNodes, OneNodeIsNothingToSpreadOver) {
  std::vector<std::byte> memory(1 << 20);
  EXPECT_FALSE(spread_over(Numbers{0}, memory));
  EXPECT_FALSE(spread_over(Numbers{0, 1}, {}));
}

// Node 1000 is on no machine this runs on: the system refuses, and the memory is as usable as ever.
TEST(MemoryNodes, ARefusedWishDoesNoHarm) {
  std::vector<std::byte> memory(1 << 20);
  EXPECT_FALSE(spread_over(Numbers{999, 1000}, memory));
  memory.back() = std::byte{1};
  EXPECT_EQ(memory.back(), std::byte{1});
}

}  // namespace memory_nodes_test
}  // namespace fp4moe::platform
