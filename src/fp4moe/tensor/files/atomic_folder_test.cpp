#include <csignal>
#include <utility>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fp4moe/tensor/files/atomic_file.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace atomic_folder_test {

using testing::bytes_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

TEST(AtomicFolder, AppearsWholeAtCommit) {
  const TemporaryFolder folder;
  Result<AtomicFolder> made = AtomicFolder::create(folder / "out/");
  ASSERT_TRUE(made);
  ASSERT_TRUE(write_file(made->staging() + "/a", bytes_of("1")));
  std::filesystem::create_directory(made->staging() + "/sub");
  ASSERT_TRUE(write_file(made->staging() + "/sub/b", bytes_of("2")));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  ASSERT_TRUE(made->commit());
  EXPECT_EQ(read_text(folder / "out/a"), "1");
  EXPECT_EQ(read_text(folder / "out/sub/b"), "2");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
  EXPECT_EQ(made->commit().why().id, "folder.closed");
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(made);
    write_text(made->staging() + "/a", "1");
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFolder, KeepsWhatItMadeForALaterRunWhenAsked) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(made);
    write_text(made->staging() + "/a", "1");
    made->keep_staging(true);
  }
  {
    Result<AtomicFolder> again = AtomicFolder::create(folder / "out", Leftovers::keep);
    ASSERT_TRUE(again);
    EXPECT_EQ(read_text(again->staging() + "/a"), "1");
    EXPECT_EQ(AtomicFolder::create(folder / "out", Leftovers::keep).why().id, "folder.busy");
    ASSERT_TRUE(again->clear());
    EXPECT_FALSE(std::filesystem::exists(again->staging() + "/a"));
    write_text(again->staging() + "/b", "2");
    ASSERT_TRUE(again->commit());
  }
  EXPECT_EQ(read_text(folder / "out/b"), "2");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
}

TEST(AtomicFolder, RemovesLeftoversUnlessTheyAreAskedFor) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(made);
    write_text(made->staging() + "/a", "1");
    made->keep_staging(true);
  }
  const Result<AtomicFolder> again = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(again);
  EXPECT_FALSE(std::filesystem::exists(again->staging() + "/a"));
}

TEST(AtomicFolder, ReplacesAnEmptyFolderOnly) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "out");
  Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(made);
  ASSERT_TRUE(made->commit());
  write_text(folder / "out/a", "1");
  const Result<AtomicFolder> again = AtomicFolder::create(folder / "out");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.why().id, "folder.exists");
  EXPECT_FALSE(again.why().remedy.empty());
  EXPECT_EQ(read_text(folder / "out/a"), "1");
}

TEST(AtomicFolder, RefusesATargetThatIsAFileOrLink) {
  const TemporaryFolder folder;
  write_text(folder / "file", "1");
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_symlink(folder / "real", folder / "link");
  EXPECT_EQ(AtomicFolder::create(folder / "file").why().id, "folder.exists");
  EXPECT_EQ(AtomicFolder::create(folder / "link").why().id, "folder.exists");
}

TEST(AtomicFolder, RefusesToCommitOverWhatCameMeanwhile) {
  const TemporaryFolder folder;
  Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(made);
  std::filesystem::create_directory(folder / "out");
  write_text(folder / "out/theirs", "1");
  EXPECT_EQ(made->commit().why().id, "folder.exists");
  EXPECT_EQ(read_text(folder / "out/theirs"), "1");
}

TEST(AtomicFolder, CannotCommitWhenItsFilesAreGone) {
  const TemporaryFolder folder;
  Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(made);
  std::filesystem::remove_all(made->staging());
  EXPECT_EQ(made->commit().why().id, "folder.flush");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(AtomicFolder, NeedsANameAndAPlace) {
  const TemporaryFolder folder;
  for (const char* path : {"", ".", "..", "/", "a/.."})
    EXPECT_EQ(AtomicFolder::create(path).why().id, "folder.name") << path;
  EXPECT_EQ(AtomicFolder::create(folder / "absent/out").why().id, "folder.create");
}

TEST(AtomicFolder, RefusesASecondWriter) {
  const TemporaryFolder folder;
  Result<AtomicFolder> first = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(first);
  write_text(first->staging() + "/a", "1");
  const Result<AtomicFolder> second = AtomicFolder::create(folder / "out");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.why().id, "folder.busy");
  EXPECT_FALSE(second.why().remedy.empty());
  ASSERT_TRUE(first->commit());
  EXPECT_EQ(read_text(folder / "out/a"), "1");
}

TEST(AtomicFolder, DoesNotFollowALinkInPlaceOfTheStagingFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "precious");
  write_text(folder / "precious/a", "1");
  std::filesystem::create_symlink(folder / "precious", folder / ".out.partial");
  EXPECT_EQ(AtomicFolder::create(folder / "out").why().id, "folder.create");
  EXPECT_EQ(read_text(folder / "precious/a"), "1");
}

TEST(AtomicFolder, Moves) {
  const TemporaryFolder folder;
  Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(made);
  AtomicFolder second;
  second = *std::move(made);
  AtomicFolder third(std::move(second));
  ASSERT_TRUE(third.commit());
  EXPECT_TRUE(std::filesystem::is_directory(folder / "out"));
}

TEST(AtomicFolder, OfAKilledWriterIsAbsentAndItsRestsAreRemoved) {
  SplitMix64 random(3);
  for (int round = 0; round < 20; ++round) {
    const TemporaryFolder folder;
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    if (child == 0) {
      Result<AtomicFolder> made = AtomicFolder::create(folder / "out");
      if (!made) _exit(1);
      for (int i = 0; i < 10; ++i) {
        if (!write_file(made->staging() + "/" + std::to_string(i), bytes_of("x"))) _exit(1);
        if (::write(progress[1], "", 1) != 1) _exit(1);
      }
      if (!made->commit()) _exit(1);
      if (::write(progress[1], "", 1) != 1) _exit(1);
      pause();
    }
    close(progress[1]);
    const std::uint64_t steps = random.next() % 11;
    char step = 0;
    for (std::uint64_t i = 0; i <= steps; ++i) ASSERT_EQ(read(progress[0], &step, 1), 1);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    close(progress[0]);
    ASSERT_TRUE(WIFSIGNALED(status));
    // The child may have come further than the last step that was read.
    const bool exists = std::filesystem::exists(folder / "out");
    EXPECT_TRUE(exists || steps < 10) << "it was committed";
    if (exists) {
      for (int i = 0; i < 10; ++i) EXPECT_EQ(read_text(folder / ("out/" + std::to_string(i))), "x");
    } else {
      Result<AtomicFolder> next = AtomicFolder::create(folder / "out");
      ASSERT_TRUE(next) << text(next.why());
      EXPECT_TRUE(std::filesystem::is_empty(next->staging())) << "what the dead left is gone";
      ASSERT_TRUE(next->commit());
    }
  }
}

}  // namespace atomic_folder_test
}  // namespace fp4moe::tensor
