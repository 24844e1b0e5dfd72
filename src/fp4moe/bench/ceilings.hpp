// Upper bounds of this machine's speed with a number of threads.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::bench {

struct CeilingsOptions {
  std::size_t threads = 1;
  std::size_t megabytes = 256;  // read and copied in one go
  double seconds = 6;
  EnumSet<platform::CpuFeature> features{};
};

struct CeilingResult {
  std::string name{};  // read, copy, int8, bf16
  std::string kernel{};
  Timing timing{};
};

// The best of each name, and every loop that was tried. A multiply-add counts 2.
struct Ceilings {
  double read_gb_per_s = 0, copy_gb_per_s = 0;
  double int8_gop_per_s = 0, bf16_gflop_per_s = 0;
  std::vector<CeilingResult> results{};
};

Result<Ceilings> bench_ceilings(const CeilingsOptions& options);

Json to_json(const Ceilings& ceilings);
Json to_json(const CeilingResult& result, std::size_t threads);

}  // namespace fp4moe::bench
