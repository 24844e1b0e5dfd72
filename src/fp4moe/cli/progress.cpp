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
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  io_.err << "\r\x1b[K"
          << progress_line({.title = title_, .done = done, .total = total_, .seconds = seconds},
                           io_.err_columns)
          << std::flush;
}

std::string progress_line(const ProgressState& state, std::size_t columns) {
  const double share =
      state.total == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(state.done) / static_cast<double>(state.total));
  const double speed = state.seconds > 0 ? static_cast<double>(state.done) / state.seconds : 0;
  const std::uint64_t rest = state.total - std::min(state.done, state.total);
  const std::string percent = fmt::format("{:3.0f}%", share * 100);
  const std::string bytes =
      fmt::format(" {} of {}", human_bytes(state.done), human_bytes(state.total));
  const std::string rate = fmt::format(", {}/s", human_bytes(static_cast<std::uint64_t>(speed)));
  const std::string left =
      speed > 0 ? fmt::format(", {:.0f} s left", static_cast<double>(rest) / speed) : "";
  // The last column stays free: some terminals begin a new line there.
  const std::size_t available = columns == 0 ? std::string::npos : columns - 1;
  const auto bar = [&](std::size_t width) {
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(width));
    return fmt::format("[{}{}] ", std::string(filled, '='), std::string(width - filled, ' '));
  };
  constexpr std::size_t kWidest = 30, kNarrowest = 8, kFrame = 3;
  // The least important part is dropped first: the rate, the bytes, the time, the bar.
  for (const std::string& tail :
       {percent + bytes + rate + left, percent + bytes + left, percent + left, percent}) {
    const std::size_t used = state.title.size() + 1 + tail.size() + kFrame;
    if (used + kNarrowest > available) continue;
    return fmt::format("{} {}{}", state.title, bar(std::min(kWidest, available - used)), tail);
  }
  return fmt::format("{} {}", state.title, percent).substr(0, available);
}

}  // namespace fp4moe::cli
