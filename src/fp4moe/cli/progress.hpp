// A progress bar with bytes, speed and time left; silent unless standard error is a terminal or a
// host wants to be told.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

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
