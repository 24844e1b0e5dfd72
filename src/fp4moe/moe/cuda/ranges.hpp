// Names of what is under way, for profilers (NVTX). Without NVTX's headers there are none.
#pragma once

namespace fp4moe::moe::cuda {

class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace fp4moe::moe::cuda
