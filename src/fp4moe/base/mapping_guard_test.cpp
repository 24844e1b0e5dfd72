#include "fp4moe/base/mapping_guard.hpp"

#include <csignal>
#include <cstddef>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fp4moe/base/interrupt.hpp"
#include "support/limits.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe {
namespace mapping_guard_test {

using testing::status_in_child;
using testing::TemporaryFolder;

// A file of four pages, mapped.
class Mapping {
 public:
  explicit Mapping(std::string path) : path_(std::move(path)) {
    testing::write_text(path_, std::string(kBytes, 'x'));
    const int fd = open(path_.c_str(), O_RDONLY);
    data_ = static_cast<const char*>(mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0));
    close(fd);
  }
  ~Mapping() { munmap(const_cast<char*>(data_), kBytes); }
  void shorten() const { ASSERT_EQ(truncate(path_.c_str(), kPage), 0); }
  char at(std::size_t byte) const { return *static_cast<const volatile char*>(data_ + byte); }
  WatchedMapping watched() const { return {data_, kBytes, path_}; }
  const char* data() const { return data_; }

  static inline const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  static inline const std::size_t kBytes = 4 * kPage;

 private:
  std::string path_;
  const char* data_ = nullptr;
};

TEST(MappingGuard, TurnsAReadBehindTheNewEndIntoAnError) {
  const TemporaryFolder folder;
  const MappingGuard guard;
  const Mapping file(folder / "a");
  const WatchedMapping watched = file.watched();
  ASSERT_TRUE(check_mappings());
  file.shorten();
  EXPECT_EQ(file.at(0), 'x');
  EXPECT_TRUE(check_mappings()) << "nothing was read there yet";
  EXPECT_EQ(file.at(2 * Mapping::kPage), '\0');
  EXPECT_EQ(file.at(Mapping::kBytes - 1), '\0');
  const Result<Done> same = check_mappings();
  ASSERT_FALSE(same);
  EXPECT_EQ(same.why().id, "file.changed");
  EXPECT_EQ(same.why().code, ErrorCode::invalid_input);
  EXPECT_EQ(same.why().path, folder / "a");
  EXPECT_EQ(check_interrupt().why().id, "file.changed") << "long work asks between its steps";
}

TEST(MappingGuard, ForgetsWithTheLastOfThem) {
  const TemporaryFolder folder;
  {
    const MappingGuard guard;
    const Mapping file(folder / "a");
    const WatchedMapping watched = file.watched();
    file.shorten();
    EXPECT_EQ(file.at(3 * Mapping::kPage), '\0');
    {
      const MappingGuard second;
      EXPECT_FALSE(check_mappings()) << "a second one does not forgive";
    }
    EXPECT_FALSE(check_mappings());
  }
  EXPECT_TRUE(check_mappings());
}

TEST(MappingGuard, LeavesOtherBusErrorsToTheHost) {
  const TemporaryFolder folder;
  const auto die = [&](bool is_watched, bool is_guarded) {
    return status_in_child([&] {
      std::signal(SIGBUS, SIG_DFL);  // sanitizers have one
      std::optional<MappingGuard> guard;
      if (is_guarded) guard.emplace();
      const Mapping file(folder / "a");
      const WatchedMapping watched = is_watched ? file.watched() : WatchedMapping();
      file.shorten();
      return file.at(2 * Mapping::kPage) == '\0' ? 0 : 1;
    });
  };
  EXPECT_EQ(die(true, true), 0);
  EXPECT_EQ(die(false, true), 128 + SIGBUS);
  EXPECT_EQ(die(true, false), 128 + SIGBUS);
}

TEST(WatchedMapping, IsForgottenWhenItGoes) {
  const TemporaryFolder folder;
  const Mapping file(folder / "a");
  {
    WatchedMapping first = file.watched();
    const WatchedMapping second(std::move(first));
    EXPECT_EQ(mapping_changed(file.data() + 5).path, folder / "a");
    EXPECT_EQ(mapping_changed(file.data() + Mapping::kBytes).path, "");
  }
  EXPECT_EQ(mapping_changed(file.data() + 5).path, "");
}

}  // namespace mapping_guard_test
}  // namespace fp4moe
