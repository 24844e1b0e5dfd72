#include "fp4moe/base/folder_names.hpp"

#include <cerrno>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/limits.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace folder_names_test {

using Names = std::vector<std::string>;
using testing::TemporaryFolder;
using testing::write_text;

TEST(FolderNames, AreAllOfThemSorted) {
  const TemporaryFolder folder;
  for (const char* name : {"b", ".hidden", "a"}) write_text(folder / name, "");
  Names names{"before"};
  EXPECT_EQ(add_names_in(folder.path(), names), 0);
  EXPECT_EQ(names, (Names{"before", ".hidden", "a", "b"}));
}

TEST(FolderNames, OfADescriptorAreReadFromTheFirstEachTime) {
  const TemporaryFolder folder;
  write_text(folder / "one", "");
  const int opened = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 2; ++i) {
    Names names;
    EXPECT_EQ(add_names_in(opened, names), 0);
    EXPECT_EQ(names, Names{"one"});
  }
  close(opened);
}

TEST(FolderNames, SayWhyTheyCannotBeRead) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  Names names;
  EXPECT_EQ(add_names_in(folder / "nothing", names), ENOENT);
  EXPECT_EQ(add_names_in(folder / "file", names), ENOTDIR);
  EXPECT_EQ(add_names_in(-1, names), EBADF);
  EXPECT_TRUE(names.empty());
}

TEST(FolderNames, ThrowWhereThereIsNoMemory) {
  if (!testing::has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  const TemporaryFolder folder;
  for (int i = 0; i < 1000; ++i)
    write_text(folder / (std::string(200, 'x') + std::to_string(i)), "");
  const int status = testing::status_in_child([&] {
    std::vector<Names> all;
    testing::limit_memory(16 << 20);
    try {
      while (add_names_in(folder.path(), all.emplace_back()) == 0) continue;
      return 1;
    } catch (const std::bad_alloc&) {
      return 0;
    }
  });
  EXPECT_EQ(status, 0);
}

}  // namespace folder_names_test
}  // namespace fp4moe
