#include "fp4moe/tensor/files/mapped_file.hpp"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.hpp"

namespace fp4moe::tensor {
namespace mapped_file_test {

using testing::read_text;
using testing::TemporaryFolder;
using testing::write_text;

std::size_t resident_file_bytes() {
  std::size_t total = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared;
  return shared * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Touches every page.
std::uint64_t sum_of(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 512)
    sum = sum * 31 + std::to_integer<std::uint64_t>(bytes[i]);
  return sum;
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TemporaryFolder folder;
  write_text(folder / "a", "hello");
  const Result<MappedFile> file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->path(), folder / "a");
  EXPECT_TRUE(std::ranges::equal(file->bytes(), testing::bytes_of("hello")));
}

TEST(MappedFile, OfAnEmptyFileHasNoBytes) {
  const TemporaryFolder folder;
  write_text(folder / "a", "");
  const Result<MappedFile> file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->bytes().empty());
  file->drop(file->bytes());
  file->prefetch(file->bytes());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& [path, kind] :
       {std::pair(folder.path(), "a folder"), std::pair(folder / "pipe", "a pipe"),
        std::pair(std::string("/dev/zero"), "a device")}) {
    const Result<MappedFile> file = MappedFile::open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.why().id, "file.not_regular");
    EXPECT_EQ(file.why().found, kind);
    EXPECT_EQ(file.why().path, path);
  }
}

TEST(MappedFile, SaysWhenThereIsNone) {
  const Result<MappedFile> file = MappedFile::open("/nonexistent/file");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.why().id, "file.open");
}

TEST(MappedFile, SaysWhenThereIsNoRoomToMap) {
  constexpr std::uintmax_t kSize = std::uintmax_t{4} << 40;
  const TemporaryFolder folder;
  write_text(folder / "a", "");
  std::error_code code;
  std::filesystem::resize_file(folder / "a", kSize, code);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (code || pages > (kSize >> 14)) GTEST_SKIP() << "no such file here, or a sanitizer's memory";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{kSize / 2, kSize / 2};
    setrlimit(RLIMIT_AS, &limit);
    const Result<MappedFile> file = MappedFile::open(folder / "a");
    _exit(!file && file.why().id == "file.map" && file.why().code == ErrorCode::exhausted ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(MappedFile, StaysReadableAfterTheFileIsRemoved) {
  const TemporaryFolder folder;
  write_text(folder / "a", std::string(100'000, 'x'));
  const Result<MappedFile> file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file);
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(file->bytes()[99'999], std::byte{'x'});
}

TEST(MappedFile, Moves) {
  const TemporaryFolder folder;
  write_text(folder / "a", "aaaa");
  write_text(folder / "b", "bb");
  MappedFile first = *MappedFile::open(folder / "a");
  MappedFile second = *MappedFile::open(folder / "b");
  second = std::move(first);
  EXPECT_EQ(second.bytes().size(), 4u);
  const MappedFile third(std::move(second));
  EXPECT_EQ(third.bytes()[0], std::byte{'a'});
  EXPECT_EQ(third.path(), folder / "a");
}

TEST(MappedFile, DropLowersResidentMemoryAndKeepsTheData) {
  constexpr std::size_t kSize = std::size_t{64} << 20;
  const TemporaryFolder folder;
  {
    std::ofstream out(folder / "a", std::ios::binary);
    const std::vector<std::byte> mebibyte = testing::random_bytes(1 << 20, 1);
    for (std::size_t i = 0; i < kSize >> 20; ++i)
      out.write(reinterpret_cast<const char*>(mebibyte.data()), 1 << 20);
  }
  const Result<MappedFile> file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file);
  file->prefetch(file->bytes());
  const std::uint64_t sum = sum_of(file->bytes());
  const std::size_t full = resident_file_bytes();
  ASSERT_GT(full, kSize * 3 / 4);
  file->drop(file->bytes());
  EXPECT_LT(resident_file_bytes(), full - kSize * 3 / 4);
  EXPECT_EQ(sum_of(file->bytes()), sum);
}

TEST(MappedFile, DropKeepsPagesThatAreOnlyPartlyInside) {
  const TemporaryFolder folder;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  write_text(folder / "a", std::string(4 * page + 10, 'x'));
  const Result<MappedFile> file = MappedFile::open(folder / "a");
  ASSERT_TRUE(file);
  sum_of(file->bytes());
  file->drop(file->bytes().subspan(1, page));             // no whole page
  file->drop(file->bytes().subspan(page, 0));             // nothing
  file->drop(file->bytes().subspan(page + 1, 2 * page));  // one page
  file->drop(file->bytes().last(20));                     // the end
  std::vector<std::byte> foreign(10 * page);
  foreign.back() = std::byte{7};
  file->drop(foreign);  // not of this file: left alone
  EXPECT_EQ(foreign.back(), std::byte{7});
  EXPECT_TRUE(std::ranges::all_of(file->bytes(), [](std::byte b) { return b == std::byte{'x'}; }));
}

}  // namespace mapped_file_test
}  // namespace fp4moe::tensor
