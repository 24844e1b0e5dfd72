#include "fp4moe/tensor/files/atomic_file.hpp"

#include <csignal>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fp4moe/base/parallel.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace atomic_file_test {

using testing::bytes_of;
using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

constexpr int kSkip = 77;  // the child's environment does not allow the test

// The exit status of `work` done in a process of its own.
template <class Work>
int status_in_child(const Work& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class AtomicFileTest : public ::testing::TestWithParam<TemporaryName> {
 protected:
  Result<AtomicFile> create(const std::string& path, std::uint64_t size = 0) {
    return AtomicFile::create(path, size, GetParam());
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Names, AtomicFileTest,
                         ::testing::Values(TemporaryName::none_if_possible, TemporaryName::hidden),
                         [](const auto& variant) {
                           return variant.param == TemporaryName::hidden ? "Hidden" : "Nameless";
                         });

TEST_P(AtomicFileTest, AppearsAtCommitAndNotBefore) {
  Result<AtomicFile> file = create(folder_ / "a", 5);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write(0, bytes_of("hello")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(read_text(folder_ / "a"), "hello");
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"a"});
}

TEST_P(AtomicFileTest, ReplacesAnOlderFileAtCommit) {
  write_text(folder_ / "a", "old");
  Result<AtomicFile> file = create(folder_ / "a", 3);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write(0, bytes_of("new")));
  EXPECT_EQ(read_text(folder_ / "a"), "old");
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(read_text(folder_ / "a"), "new");
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"a"});
}

TEST_P(AtomicFileTest, LeavesNothingWithoutCommit) {
  {
    Result<AtomicFile> file = create(folder_ / "a", 100);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(0, bytes_of("hello")));
  }
  EXPECT_TRUE(folder_.names().empty());
}

TEST_P(AtomicFileTest, IsZeroWhereNothingWasWritten) {
  Result<AtomicFile> file = create(folder_ / "a", 4);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write(2, bytes_of("x")));
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(read_text(folder_ / "a"), std::string("\0\0x\0", 4));
}

TEST_P(AtomicFileTest, RespectsTheUmask) {
  const mode_t before = umask(027);
  Result<AtomicFile> file = create(folder_ / "a");
  umask(before);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->commit());
  struct stat status {};
  ASSERT_EQ(stat((folder_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_P(AtomicFileTest, TakesWritesFromManyThreads) {
  constexpr std::size_t kPieces = 256, kPiece = 4093;
  const std::vector<std::byte> data = testing::random_bytes(kPieces * kPiece, 5);
  Result<AtomicFile> file = create(folder_ / "a", data.size());
  ASSERT_TRUE(file);
  ASSERT_TRUE(parallel_for(8, kPieces, [&](std::size_t i) {
    const std::size_t piece = (i * 101) % kPieces;
    return file->write(piece * kPiece, std::span(data).subspan(piece * kPiece, kPiece));
  }));
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(bytes_of(read_text(folder_ / "a")), data);
}

TEST_P(AtomicFileTest, IsClosedAfterCommit) {
  Result<AtomicFile> file = create(folder_ / "a");
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(file->commit().why().id, "file.closed");
  EXPECT_EQ(file->write(0, bytes_of("x")).why().id, "file.closed");
}

TEST_P(AtomicFileTest, Moves) {
  Result<AtomicFile> created = create(folder_ / "a", 1);
  ASSERT_TRUE(created);
  AtomicFile first = *std::move(created);
  AtomicFile second;
  second = std::move(first);
  ASSERT_TRUE(second.write(0, bytes_of("x")));
  ASSERT_TRUE(second.commit());
  EXPECT_EQ(read_text(second.path()), "x");
}

TEST_P(AtomicFileTest, RefusesPlacesThatAreNotFree) {
  EXPECT_EQ(create(folder_.path()).why().id, "file.not_regular");
  EXPECT_EQ(create(folder_.path() + "/").why().id, "file.not_regular");
  EXPECT_EQ(create("/dev/full").why().id, "file.not_regular");
  EXPECT_EQ(create("").why().id, "file.not_regular");
  EXPECT_EQ(create(folder_ / "absent/a").why().id, "file.create");
  EXPECT_EQ(create(folder_ / std::string(300, 'n')).why().id, "file.create");
}

TEST_P(AtomicFileTest, MayHaveTheLongestName) {
  const std::string path = folder_ / std::string(255, 'n');
  for (int i = 0; i < 2; ++i) {
    Result<AtomicFile> file = create(path);
    ASSERT_TRUE(file) << text(file.why());
    ASSERT_TRUE(file->commit());
  }
}

TEST_P(AtomicFileTest, FailsToCommitWhenTheFolderIsGone) {
  const std::string sub = folder_ / "sub";
  std::filesystem::create_directory(sub);
  Result<AtomicFile> file = create(sub + "/a");
  ASSERT_TRUE(file);
  std::filesystem::remove_all(sub);
  EXPECT_EQ(file->commit().why().id, "file.commit");
}

TEST_P(AtomicFileTest, FailsToCommitOntoAFolder) {
  Result<AtomicFile> file = create(folder_ / "a");
  ASSERT_TRUE(file);
  std::filesystem::create_directory(folder_ / "a");
  EXPECT_EQ(file->commit().why().id, "file.commit");
  file = AtomicFile();
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"a"}) << "no hidden file remains";
}

TEST_P(AtomicFileTest, SaysThatTheDiskIsFull) {
  const int status = status_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const Result<AtomicFile> reserved = create(folder_ / "a", 200'000);
    if (reserved || reserved.why().id != "file.disk_full") return 1;
    if (reserved.why().code != ErrorCode::exhausted) return 2;
    Result<AtomicFile> grown = create(folder_ / "b");
    if (!grown) return 3;
    const Result<Done> written = grown->write(0, std::vector<std::byte>(200'000));
    if (written || written.why().id != "file.disk_full") return 4;
    return written.why().code == ErrorCode::exhausted ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
}

// Mounts a file system of `kind` in a name space of its own and works there.
template <class Work>
int status_on(const char* kind, const char* options, const std::string& where, const Work& work) {
  return status_in_child([&] {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", where.c_str(), kind, 0, options) != 0)
      return kSkip;
    return work();
  });
}

TEST_P(AtomicFileTest, NoticesATinyDiskBeforeAnyWork) {
  const int status = status_on("tmpfs", "size=1m", folder_.path(), [&] {
    const Result<AtomicFile> reserved = create(folder_ / "a", 2 << 20);
    if (reserved || reserved.why().id != "file.disk_full") return 1;
    Result<AtomicFile> grown = create(folder_ / "b");
    if (!grown) return 2;
    const Result<Done> written = grown->write(0, std::vector<std::byte>(2 << 20));
    if (written || written.why().id != "file.disk_full") return 3;
    if (written.why().code != ErrorCode::exhausted) return 4;
    grown = AtomicFile();
    return std::filesystem::is_empty(folder_.path()) ? 0 : 5;
  });
  if (status == kSkip) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(status, 0);
}

TEST_P(AtomicFileTest, WorksWhereSpaceCannotBeReserved) {
  const int status = status_on("ramfs", nullptr, folder_.path(), [&] {
    Result<AtomicFile> file = create(folder_ / "a", 8);
    if (!file || !file->write(0, bytes_of("12345")) || !file->commit()) return 1;
    return read_text(folder_ / "a") == std::string("12345\0\0\0", 8) ? 0 : 2;
  });
  if (status == kSkip) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(status, 0);
}

// A child writes version after version and reports each step; it is killed after a random one.
TEST_P(AtomicFileTest, IsWholeOrAbsentWhenTheWriterIsKilled) {
  constexpr std::size_t kPieces = 8, kPiece = 20'000;
  SplitMix64 random(11);
  for (int round = 0; round < 40; ++round) {
    const TemporaryFolder folder;
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    if (child == 0) {
      for (int version = 'a';; version = version == 'z' ? 'a' : version + 1) {
        Result<AtomicFile> file = create(folder / "target", kPieces * kPiece);
        const std::vector<std::byte> piece(kPiece, static_cast<std::byte>(version));
        for (std::size_t i = 0; i < kPieces; ++i) {
          if (!file->write(i * kPiece, piece) || ::write(progress[1], "", 1) != 1) _exit(1);
        }
        if (!file->commit() || ::write(progress[1], "", 1) != 1) _exit(1);
      }
    }
    close(progress[1]);
    const std::uint64_t steps = random.next() % 60;
    char step = 0;
    for (std::uint64_t i = 0; i <= steps; ++i) ASSERT_EQ(read(progress[0], &step, 1), 1);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    close(progress[0]);
    ASSERT_TRUE(WIFSIGNALED(status));
    for (const std::string& name : folder.names())
      ASSERT_TRUE(name == "target" || name.starts_with('.')) << name;
    // The child may have come further than the last step that was read.
    const bool exists = std::filesystem::exists(folder / "target");
    ASSERT_TRUE(exists || steps < kPieces) << "it was committed";
    if (exists) {
      const std::string content = read_text(folder / "target");
      ASSERT_EQ(content, std::string(kPieces * kPiece, content.at(0)));
    } else if (GetParam() == TemporaryName::none_if_possible) {
      ASSERT_TRUE(folder.names().empty()) << "a nameless file leaves nothing at all";
    }
    // The next writer clears up.
    ASSERT_TRUE(create(folder / "target")->commit());
    ASSERT_EQ(folder.names(), std::vector<std::string>{"target"});
  }
}

TEST_P(AtomicFileTest, LeavesTheHiddenFilesOfLivingWritersAlone) {
  Result<AtomicFile> first = AtomicFile::create(folder_ / "a", 1, TemporaryName::hidden);
  ASSERT_TRUE(first);
  Result<AtomicFile> second = create(folder_ / "a", 1);
  ASSERT_TRUE(second);
  ASSERT_TRUE(second->write(0, bytes_of("2")));
  ASSERT_TRUE(second->commit());
  ASSERT_TRUE(first->write(0, bytes_of("1")));
  ASSERT_TRUE(first->commit());
  EXPECT_EQ(read_text(folder_ / "a"), "1");
}

TEST(WriteFile, WritesWholeFiles) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder / "a", bytes_of("text")));
  EXPECT_EQ(read_text(folder / "a"), "text");
  ASSERT_TRUE(write_file(folder / "a", {}));
  EXPECT_EQ(read_text(folder / "a"), "");
  EXPECT_FALSE(write_file(folder / "absent/a", bytes_of("x")));
}

}  // namespace atomic_file_test
}  // namespace fp4moe::tensor
