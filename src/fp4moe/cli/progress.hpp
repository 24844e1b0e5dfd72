// A progress bar with bytes, speed and time left; silent unless standard error is a terminal or a
// host wants to be told.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

struct ProgressState {
  std::string_view title;
  std::uint64_t done = 0, total = 0;  // bytes
  double seconds = 0;
};

// "convert [===   ]  45% 1.00 GiB of 2.20 GiB, 300.00 MiB/s, 4 s left", as much of it as fits into
// `columns` (0: all).
std::string progress_line(const ProgressState& state, std::size_t columns);

class Progress {
 public:
  Progress(const Io& io, std::string title, std::uint64_t total_bytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // leaves the line clean

  void add(std::uint64_t bytes);  // from any thread

 private:
  void draw(std::uint64_t done);

  const Io& io_;
  std::string title_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_{};
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace fp4moe::cli
