#include "fp4moe/base/at_path.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace at_path_test {

using testing::TemporaryFolder;
using testing::write_text;

TEST(AtPath, FollowsLinksAndTellsWhatIsThere) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  std::filesystem::create_directory_symlink(folder.path(), folder / "link");
  std::filesystem::create_symlink(folder / "gone", folder / "dangling");
  EXPECT_EQ(at_path(folder.path()), AtPath::folder);
  EXPECT_EQ(at_path(folder / "link"), AtPath::folder);
  EXPECT_EQ(at_path(folder / "file"), AtPath::file);
  EXPECT_EQ(at_path("/dev/null"), AtPath::file);
  for (const char* name : {"gone", "dangling", "file/below", ""})
    EXPECT_EQ(at_path(*name == 0 ? std::string() : folder / name), AtPath::nothing) << name;
}

TEST(AtPath, DoesNotCallAbsentWhatCannotBeLookedAt) {
  const TemporaryFolder folder;
  EXPECT_EQ(at_path(folder / std::string(5000, 'x')), AtPath::unknown);
}

}  // namespace at_path_test
}  // namespace fp4moe
