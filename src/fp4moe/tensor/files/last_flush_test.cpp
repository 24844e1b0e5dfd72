// The flush of the folder around an output comes after its name. This program's own fsync can fail.
#include <cerrno>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fp4moe/tensor/files/atomic_file.hpp"
#include "support/files.hpp"

namespace {

thread_local int folders_flushed_before_failure = -1;  // none fails

}  // namespace

// Stands before the C library's.
extern "C" int fsync(int fd) {
  struct stat status {};
  if (folders_flushed_before_failure >= 0 && fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) &&
      folders_flushed_before_failure-- == 0) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace fp4moe::tensor {
namespace last_flush_test {

using testing::bytes_of;
using testing::read_text;
using testing::TemporaryFolder;

void expect_truth(const Result<Done>& done, std::string_view id) {
  ASSERT_FALSE(done);
  EXPECT_EQ(done.why().id, id);
  EXPECT_EQ(done.why().code, ErrorCode::exhausted);
  EXPECT_NE(done.why().message.find("complete and has its name"), std::string::npos)
      << text(done.why());
  EXPECT_EQ(text(done.why()).find("nothing was written"), std::string::npos) << text(done.why());
}

TEST(LastFlush, OfAFileSaysThatTheFileStands) {
  const TemporaryFolder folder;
  folders_flushed_before_failure = 0;
  const Result<Done> done = write_file(folder / "a", bytes_of("1"));
  folders_flushed_before_failure = -1;
  expect_truth(done, "file.flush");
  EXPECT_EQ(read_text(folder / "a"), "1");
}

TEST(LastFlush, OfAFolderSaysThatTheFolderStands) {
  const TemporaryFolder folder;
  Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  ASSERT_TRUE(write_file(result->staging() + "/a", bytes_of("1")));
  folders_flushed_before_failure = 1;  // the staging folder itself can be flushed
  const Result<Done> done = result->commit();
  folders_flushed_before_failure = -1;
  expect_truth(done, "folder.flush");
  EXPECT_EQ(read_text(folder / "out/a"), "1");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
}

TEST(LastFlush, OfAFileInAFolderWithoutItsNameDoesNotSayThatTheOutputStands) {
  const TemporaryFolder folder;
  const Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
  ASSERT_TRUE(result);
  folders_flushed_before_failure = 0;
  const Result<Done> done = write_file(result->staging() + "/a", bytes_of("1"));
  folders_flushed_before_failure = -1;
  ASSERT_FALSE(done);
  const Error told = result->explain(done.why());
  EXPECT_EQ(told.code, ErrorCode::exhausted);
  EXPECT_EQ(told.path, folder / ".out.partial/a");
  EXPECT_TRUE(told.message.starts_with("its folder cannot be flushed")) << text(told);
  EXPECT_NE(told.remedy.find("nothing was written"), std::string::npos) << text(told);
}

TEST(LastFlush, OfTheStagingFolderLeavesNothing) {
  const TemporaryFolder folder;
  {
    Result<AtomicFolder> result = AtomicFolder::create(folder / "out");
    ASSERT_TRUE(result);
    ASSERT_TRUE(write_file(result->staging() + "/a", bytes_of("1")));
    folders_flushed_before_failure = 0;
    const Result<Done> done = result->commit();
    folders_flushed_before_failure = -1;
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "file.disk_full");
  }
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace last_flush_test
}  // namespace fp4moe::tensor
