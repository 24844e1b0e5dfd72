#include "fp4moe/tensor/files/folder_tree.hpp"

#include <algorithm>
#include <cstdlib>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "fp4moe/tensor/files/posix.hpp"
#include "support/files.hpp"
#include "support/limits.hpp"

namespace fp4moe::tensor {
namespace folder_tree_test {

namespace fs = std::filesystem;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

Descriptor opened(const std::string& path) {
  return Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

TEST(FolderTree, RemovesEverythingInsideAndFollowsNoLink) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/a/b/c");
  write_text(folder / "in/a/b/c/file", "1");
  write_text(folder / "in/file", "2");
  fs::create_directory(folder / "precious");
  write_text(folder / "precious/file", "3");
  fs::create_symlink(folder / "precious", folder / "in/link");
  fs::create_symlink(folder / "precious", folder / "in/a/link");
  fs::create_symlink("nowhere", folder / "in/dangling");
  EXPECT_FALSE(remove_inside(opened(folder / "in").get()));
  EXPECT_TRUE(fs::is_empty(folder / "in"));
  EXPECT_EQ(read_text(folder / "precious/file"), "3");
}

TEST(FolderTree, StaysWithTheFolderWhenItsNameGoesElsewhere) {
  const TemporaryFolder folder;
  for (const char* name : {"in", "precious"}) {
    fs::create_directory(folder / name);
    write_text(folder / name + "/file", name);
  }
  const Descriptor in = opened(folder / "in");
  fs::rename(folder / "in", folder / "moved");
  fs::create_symlink(folder / "precious", folder / "in");
  EXPECT_FALSE(flush_tree(in.get()));
  EXPECT_FALSE(remove_inside(in.get()));
  EXPECT_TRUE(fs::is_empty(folder / "moved"));
  EXPECT_EQ(read_text(folder / "precious/file"), "precious");
}

TEST(FolderTree, KeepsTheNamesThatAreToStay) {
  const TemporaryFolder folder;
  for (const char* name : {"file", "journal", ".hidden"}) write_text(folder / name, "");
  EXPECT_FALSE(remove_inside(opened(folder.path()).get(), {"file", "absent"}));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"file"});
}

TEST(FolderTree, ListsAllNames) {
  const TemporaryFolder folder;
  for (const char* name : {"b", ".a", "..c"}) write_text(folder / name, "");
  std::vector<std::string> names;
  EXPECT_FALSE(list_names(opened(folder.path()).get(), names));
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"..c", ".a", "b"}));
}

TEST(FolderTree, SaysWhatFailed) {
  std::vector<std::string> names;
  EXPECT_EQ(list_names(-1, names)->why, EBADF);
  EXPECT_TRUE(remove_inside(-1));
  EXPECT_TRUE(flush_tree(-1));
}

TEST(FolderTree, RemovesAFolderOrAFileAndFollowsNoLink) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in/a");
  write_text(folder / "in/a/file", "1");
  fs::create_directory(folder / "precious");
  fs::create_symlink(folder / "precious", folder / "in/link");
  fs::create_symlink(folder / "precious", folder / "link");
  write_text(folder / "file", "2");
  for (const char* name : {"in", "link", "file", "absent"}) remove_folder(folder / name);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"precious"});
}

// The iterators of std::filesystem end the program here.
TEST(FolderTree, WithoutMemoryTheFolderStays) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer takes memory as it likes";
  const TemporaryFolder folder;
  const std::string path = folder / "in";
  fs::create_directory(path);
  for (int i = 0; i < 2000; ++i)
    write_text(
        path + "/a file with a name that is not stored in a string itself " + std::to_string(i),
        "");
  const int status = fp4moe::testing::status_in_child([&] {
    // Enough to open the folder, too little for the names in it.
    void* const kept = std::malloc(std::size_t{64} << 10);
    fp4moe::testing::limit_memory(0);
    void* volatile taken = kept;
    for (std::size_t size = std::size_t{1} << 20; size >= 16; size /= 2) {
      do {
        taken = std::malloc(size);
      } while (taken != nullptr);
    }
    std::free(kept);
    remove_folder(path);
    return access(path.c_str(), F_OK);
  });
  EXPECT_EQ(status, 0);
  remove_folder(path);
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace folder_tree_test
}  // namespace fp4moe::tensor
