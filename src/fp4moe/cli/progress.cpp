#include "fp4moe/cli/progress.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::cli {

using Clock = std::chrono::steady_clock;

Progress::Progress(const Io& io, std::string title, std::uint64_t total_bytes)
    : io_(io), title_(std::move(title)), total_(total_bytes), begin_(Clock::now()) {}

Progress::~Progress() {
  if (io_.on_progress) io_.on_progress(title_, done_, total_);
  if (io_.show_progress && drawn_ != Clock::time_point{}) io_.err << "\r\x1b[K" << std::flush;
}

void Progress::add(std::uint64_t bytes) {
  const std::uint64_t done = done_.fetch_add(bytes) + bytes;
  if (!io_.show_progress && !io_.on_progress) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || Clock::now() - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = Clock::now();
  if (io_.on_progress) io_.on_progress(title_, done, total_);
  if (io_.show_progress) draw(done);
}

void Progress::draw(std::uint64_t done) {
  constexpr int kWidth = 30;
  const double share =
      total_ == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double speed = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double left = speed > 0 ? static_cast<double>(total_ - std::min(done, total_)) / speed : 0;
  const int filled = static_cast<int>(share * kWidth);
  io_.err << fmt::format("\r\x1b[K{} [{:=<{}}{: <{}}] {:3.0f}% {} of {}, {}/s, {:.0f} s left",
                         title_, "", filled, "", kWidth - filled, share * 100, human_bytes(done),
                         human_bytes(total_), human_bytes(static_cast<std::uint64_t>(speed)), left)
          << std::flush;
}

}  // namespace fp4moe::cli
