#include "fp4moe/moe/cpu/workspace.hpp"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace fp4moe::moe::cpu {
namespace workspace_test {

TEST(Workspaces, BelongToAPoolAsLongAsAnyoneHoldsThem) {
  const auto one = std::make_shared<ThreadPool>(1), other = std::make_shared<ThreadPool>(1);
  auto first = Workspaces::of(one);
  EXPECT_EQ(Workspaces::of(one), first);
  EXPECT_NE(Workspaces::of(other), first);
  const std::weak_ptr<Workspaces> seen = first;
  first.reset();
  EXPECT_TRUE(seen.expired());
  EXPECT_NE(Workspaces::of(one), nullptr);
}

TEST(Workspaces, AreLentToOneCallAtATimeAndKeepTheirMemory) {
  const auto pool = std::make_shared<ThreadPool>(1);
  const auto spaces = Workspaces::of(pool);
  Workspace space = spaces->take();
  auto memory = tensor::Buffer::allocate(1000);
  ASSERT_TRUE(memory);
  space.kept = std::move(*memory);
  const std::byte* at = space.kept.data();
  Workspace meanwhile = spaces->take();
  EXPECT_EQ(meanwhile.kept.size(), 0u);
  spaces->give(std::move(meanwhile));
  spaces->give(std::move(space));
  EXPECT_EQ(spaces->take().kept.data(), at);
}

}  // namespace workspace_test
}  // namespace fp4moe::moe::cpu
