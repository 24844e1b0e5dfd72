// How fast are the bulk codecs, as a share of memcpy in the same run?
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::bench {

struct FormatsOptions {
  std::size_t threads = 1;
  std::size_t megabytes = 64;  // of the unquantized side
  double seconds = 20;         // for everything together
  EnumSet<platform::CpuFeature> features{};
};

// `timing.work` counts the bytes of the unquantized side (for GGUF moves, of codes and scales); the
// memcpy beside it copies as many.
struct FormatResult {
  std::string operation{}, format{}, rule{}, element{}, kernel{};
  Timing timing{};
  double memcpy_gb_per_s = 0;

  double share_of_memcpy() const { return timing.rate() / memcpy_gb_per_s; }
};

// Each operation and rule with the best kernel of this machine and with the portable one.
Result<std::vector<FormatResult>> bench_formats(const FormatsOptions& options);

Json to_json(const FormatResult& result, std::size_t threads);

}  // namespace fp4moe::bench
