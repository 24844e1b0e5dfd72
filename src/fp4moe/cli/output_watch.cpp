#include "fp4moe/cli/output_watch.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include <sys/stat.h>

#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::cli {
namespace {

constexpr std::string_view kOutput = "no memory was left to tell of it";  // after kNamedBut
constexpr std::string_view kRanks = "the ranks in it are complete, but no memory was left";

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

OutputWatch::OutputWatch(std::string path)
    : path_(std::move(path)), first_rank_(path_.empty() ? path_ : path_ + "/rank-0") {
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
  return lstat(first_rank_.c_str(), &found) == 0 ? Found::ranks : Found::output;
}

OutputStands::OutputStands(const OutputWatch& watch) noexcept
    : is_ranks_(watch.look() == OutputWatch::Found::ranks) {
  const std::string& path = watch.path();
  const std::size_t size = std::min(path.size(), path_.size() - 1);
  std::transform(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(size), path_.begin(),
                 [](char c) { return is_control(c) ? '?' : c; });
}

void OutputStands::print(std::ostream& err) const {
  err << "fp4moe: " << path_.data() << ": ";
  if (is_ranks_)
    err << kRanks;
  else
    err << tensor::kNamedBut << kOutput;
  err << " [memory.exhausted]\n";
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
