#include <csignal>
#include <utility>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "support/files.hpp"
#include "support/limits.hpp"

namespace fp4moe::tensor {
namespace atomic_folder_test {

using testing::bytes_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

TEST(AtomicFolder, AppearsWholeAtCommit) {
  const TemporaryFolder folder;
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out/");
  ASSERT_TRUE(result);
  ASSERT_TRUE(write_file(result->staging() + "/a", bytes_of("1")));
  std::filesystem::create_directory(result->staging() + "/sub");
  ASSERT_TRUE(write_file(result->staging() + "/sub/b", bytes_of("2")));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  ASSERT_TRUE(result->commit());
  EXPECT_EQ(read_text(folder / "out/a"), "1");
  EXPECT_EQ(read_text(folder / "out/sub/b"), "2");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
  EXPECT_EQ(result->commit().why().id, "folder.closed");
}

TEST(AtomicFolder, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    write_text(result->staging() + "/a", "1");
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(AtomicFolder, KeepsWhatItMadeForALaterRunWhenAsked) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    write_text(result->staging() + "/a", "1");
    result->keep_staging(true);
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
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    write_text(result->staging() + "/a", "1");
    result->keep_staging(true);
  }
  const Result<AtomicFolder> again = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(again);
  EXPECT_FALSE(std::filesystem::exists(again->staging() + "/a"));
}

TEST(AtomicFolder, ReplacesAnEmptyFolderOnly) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "out");
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  ASSERT_TRUE(result->commit());
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
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  std::filesystem::create_directory(folder / "out");
  write_text(folder / "out/theirs", "1");
  EXPECT_EQ(result->commit().why().id, "folder.exists");
  EXPECT_EQ(read_text(folder / "out/theirs"), "1");
}

TEST(AtomicFolder, CannotCommitWhenItsFilesAreGone) {
  const TemporaryFolder folder;
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  std::filesystem::remove_all(result->staging_name());
  EXPECT_EQ(result->commit().why().id, "folder.commit");
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

TEST(AtomicFolder, IsClosedToOthersUntilItIsWhole) {
  const TemporaryFolder folder;
  struct stat status {};
  for (const mode_t mask : {022, 002, 077}) {
    const mode_t before = umask(mask);
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    ASSERT_EQ(stat(result->staging_name().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700);
    ASSERT_TRUE(result->commit());
    umask(before);
    ASSERT_EQ(stat((folder / "out").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0777 & ~mask) << "as mkdir makes it";
    EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
    std::filesystem::remove(folder / "out");
  }
}

TEST(AtomicFolder, RefusesAStagingFolderThatOthersMayWriteTo) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0777, 0770, 0702}) {
    ASSERT_EQ(mkdir((folder / ".out.partial").c_str(), 0700), 0);
    write_text(folder / ".out.partial/theirs", "1");
    ASSERT_EQ(chmod((folder / ".out.partial").c_str(), mode), 0);
    for (const Leftovers leftovers : {Leftovers::remove, Leftovers::keep}) {
      const Result<AtomicFolder> result = AtomicFolder::create(folder / "out", leftovers);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.why().id, "folder.foreign");
      EXPECT_EQ(result.why().found, "one that others may write to");
    }
    EXPECT_EQ(read_text(folder / ".out.partial/theirs"), "1");
    std::filesystem::remove_all(folder / ".out.partial");
  }
}

TEST(AtomicFolder, RefusesAStagingFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 01777), 0);
  ASSERT_EQ(mkdir((folder / ".out.partial").c_str(), 0700), 0);
  ASSERT_EQ(chown((folder / ".out.partial").c_str(), 65534, 65534), 0);
  const auto refused = [&] {
    const Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    return !result && result.why().id == "folder.foreign" &&
           result.why().found == "one of another user";
  };
  EXPECT_TRUE(refused());
  const int as_somebody = fp4moe::testing::status_in_child([&] {
    if (setgid(1000) != 0 || setuid(1000) != 0) return 2;
    return refused() ? 0 : 1;
  });
  EXPECT_EQ(as_somebody, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / ".out.partial"));
  EXPECT_EQ(folder.names().size(), 1u) << "nothing was made in their folder or beside it";
}

TEST(AtomicFolder, StaysInItsFolderWhenTheNameLeadsElsewhere) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "precious");
  write_text(folder / "precious/a", "1");
  {
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    std::filesystem::rename(folder / ".out.partial", folder / "moved");
    std::filesystem::create_symlink(folder / "precious", folder / ".out.partial");
    ASSERT_TRUE(write_file(result->staging() + "/b", bytes_of("2")));
    EXPECT_EQ(read_text(folder / "moved/b"), "2");
    ASSERT_TRUE(result->clear());
    EXPECT_TRUE(std::filesystem::is_empty(folder / "moved"));
    ASSERT_TRUE(write_file(result->staging() + "/c", bytes_of("3")));
    EXPECT_EQ(result->commit().why().id, "folder.commit");
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "moved"));
  EXPECT_EQ(read_text(folder / "precious/a"), "1");
  EXPECT_FALSE(std::filesystem::exists(folder / "precious/b"));
}

TEST(AtomicFolder, LeavesNothingWhenItCannotBeOpened) {
  const TemporaryFolder folder;
  constexpr int kMade = 100;
  for (const unsigned descriptors : {0u, 1u, 2u}) {
    const int status = fp4moe::testing::status_in_child([&] {
      fp4moe::testing::limit_descriptors(descriptors);
      const Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
      return result ? kMade : static_cast<int>(result.why().code);
    });
    EXPECT_EQ(status, descriptors < 2 ? static_cast<int>(ErrorCode::exhausted) : kMade);
    EXPECT_TRUE(folder.names().empty()) << descriptors;
  }
}

TEST(AtomicFolder, ExplainsErrorsInNamesThatPeopleKnow) {
  const TemporaryFolder folder;
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  const Error why = result->explain(error(ErrorCode::failed, "a.b", "cannot")
                                        .in(result->staging() + "/x")
                                        .expects("it in " + result->staging(), "nothing"));
  EXPECT_EQ(why.path, folder / ".out.partial/x");
  EXPECT_EQ(why.expected, "it in " + (folder / ".out.partial"));
  EXPECT_EQ(AtomicFolder().explain(why).path, why.path);
}

TEST(AtomicFolder, IsNotCommittedWhenASourceBecameShorter) {
  const TemporaryFolder folder;
  const MappingGuard guard;
  write_text(folder / "source", std::string(100'000, 'x'));
  const Result<MappedFile> source = MappedFile::open(folder / "source");
  ASSERT_TRUE(source);
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  std::filesystem::resize_file(folder / "source", 10);
  const std::byte behind = *static_cast<const volatile std::byte*>(&source->bytes()[50'000]);
  EXPECT_EQ(behind, std::byte{0});
  EXPECT_EQ(write_file(result->staging() + "/a", bytes_of("1")).why().id, "file.changed");
  EXPECT_EQ(result->commit().why().id, "file.changed");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(AtomicFolder, Moves) {
  const TemporaryFolder folder;
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  AtomicFolder second;
  second = *std::move(result);
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
      Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
      if (!result) _exit(1);
      for (int i = 0; i < 10; ++i) {
        if (!write_file(result->staging() + "/" + std::to_string(i), bytes_of("x"))) _exit(1);
        if (::write(progress[1], "", 1) != 1) _exit(1);
      }
      if (!result->commit()) _exit(1);
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

TEST(ParentFolder, GoesAgainWhereNothingCameOfIt) {
  const TemporaryFolder folder;
  { ASSERT_TRUE(ParentFolder::create(folder / "out/")); }
  EXPECT_TRUE(folder.names().empty());
  {
    const Result<ParentFolder> result = ParentFolder::create(folder / "out");
    ASSERT_TRUE(result);
    write_text(folder / "out/a", "1");
  }
  EXPECT_EQ(read_text(folder / "out/a"), "1");
  std::filesystem::create_directory(folder / "before");
  { ASSERT_TRUE(ParentFolder::create(folder / "before")); }
  EXPECT_TRUE(std::filesystem::exists(folder / "before")) << "it was there before";
}

TEST(ParentFolder, SaysWhyItCannotBeMade) {
  const TemporaryFolder folder;
  const auto nowhere = ParentFolder::create(folder / "a/b");
  EXPECT_EQ(nowhere.why().id, "folder.create");
  EXPECT_NE(nowhere.why().message.find("No such file or directory"), std::string::npos);
  EXPECT_TRUE(folder.names().empty());
  write_text(folder / "file", "1");
  EXPECT_EQ(ParentFolder::create(folder / "file").why().id, "folder.exists");
  std::filesystem::create_directory(folder / "precious");
  std::filesystem::create_symlink(folder / "precious", folder / "link");
  EXPECT_EQ(ParentFolder::create(folder / "link").why().id, "folder.exists");
}

TEST(ParentFolder, RefusesAFolderThatOthersMayChange) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkdir((folder / "out").c_str(), 0700), 0);
  for (const mode_t mode : {0777, 01777, 0770, 0702}) {
    ASSERT_EQ(chmod((folder / "out").c_str(), mode), 0);
    const auto refused = ParentFolder::create(folder / "out");
    EXPECT_EQ(refused.why().id, "folder.foreign") << mode;
    EXPECT_EQ(refused.why().found, "one that others may write to");
  }
  ASSERT_EQ(chmod((folder / "out").c_str(), 0755), 0);
  EXPECT_TRUE(ParentFolder::create(folder / "out"));
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown((folder / "out").c_str(), 65534, 65534), 0);
  for (const mode_t mode : {0755, 0700}) {
    ASSERT_EQ(chmod((folder / "out").c_str(), mode), 0);
    EXPECT_EQ(ParentFolder::create(folder / "out").why().found, "one of another user");
  }
}

// With this umask folders are made for the whole group.
TEST(ParentFolder, IsTakenAgainWhateverTheUmask) {
  const TemporaryFolder folder;
  const mode_t before = umask(0);
  const bool is_new = static_cast<bool>(ParentFolder::create(folder / "out"));
  EXPECT_TRUE(is_new);
  {
    const Result<ParentFolder> result = ParentFolder::create(folder / "out");
    std::filesystem::create_directory(folder / "out/rank-0");
  }
  EXPECT_TRUE(ParentFolder::create(folder / "out"));
  umask(before);
}

}  // namespace atomic_folder_test
}  // namespace fp4moe::tensor
