#include "fp4moe/cli/output_watch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/rank_folders.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::cli {
namespace {

constexpr std::string_view kOutput = "no memory was left to tell of it";  // after kNamedBut
constexpr std::string_view kRanks = "the ranks in it are complete, but no memory was left";

// True if a folder has an entry that is no work in progress: one whose name does not begin with a
// dot. Reads by getdents64, since readdir takes memory.
bool has_entries(const std::string& path) noexcept {
  // An entry: inode and position, 8 bytes each, then its own size, then a type, then the name.
  constexpr std::size_t kSizeAt = 16, kNameAt = 19;
  const tensor::Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return false;
  std::array<char, 4096> buffer{};
  const auto read = [&] {
    return syscall(SYS_getdents64, folder.get(), buffer.data(), buffer.size());
  };
  for (auto bytes = read(); bytes > 0; bytes = read())
    for (std::size_t at = 0; at < static_cast<std::size_t>(bytes);) {
      std::uint16_t size = 0;
      std::memcpy(&size, &buffer[at + kSizeAt], sizeof(size));
      if (buffer[at + kNameAt] != '.') return true;
      at += size;
    }
  return false;
}

}  // namespace

OutputWatch::OutputWatch(std::string path)
    : path_(std::move(path)),
      first_rank_(path_.empty() ? path_ : path_ + "/" + rank_folder_name(0)) {
  struct stat found {};
  was_there_ = !path_.empty() && lstat(path_.c_str(), &found) == 0;
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

OutputWatch::Found OutputWatch::look() const noexcept {
  struct stat found {};
  if (path_.empty() || lstat(path_.c_str(), &found) != 0) return Found::nothing;
  if (was_there_ && found.st_dev == device_ && found.st_ino == inode_) return Found::nothing;
  if (!S_ISDIR(found.st_mode)) return Found::output;
  if (lstat(first_rank_.c_str(), &found) == 0) return Found::ranks;
  return has_entries(path_) ? Found::output : Found::nothing;
}

OutputStands::OutputStands(const OutputWatch& watch) noexcept
    : is_ranks_(watch.look() == OutputWatch::Found::ranks) {
  const std::string& path = watch.path();
  std::copy_n(path.begin(), std::min(path.size(), path_.size() - 1), path_.begin());
}

void OutputStands::print(std::ostream& err) const {
  const std::string_view head = is_ranks_ ? kRanks : tensor::kNamedBut;
  print_plain_error(err, path_.data(), {head, is_ranks_ ? std::string_view() : kOutput},
                    "memory.exhausted");
}

Error with_what_stands(Error why, const OutputWatch& watch) {
  if (why.id != "memory.exhausted" || why.message.starts_with(tensor::kNamedBut)) return why;
  const OutputWatch::Found found = watch.look();
  if (found == OutputWatch::Found::nothing) return why;
  const bool is_ranks = found == OutputWatch::Found::ranks;
  std::string words(is_ranks ? kRanks : tensor::kNamedBut);
  if (!is_ranks) words += kOutput;
  return error(ErrorCode::exhausted, "memory.exhausted", words)
      .in(watch.path())
      .try_this(is_ranks ? "keep them, and run the command again with --resume" : "keep it");
}

}  // namespace fp4moe::cli
