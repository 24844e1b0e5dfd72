// NVTX ranges for profilers. Without the headers of NVTX they do nothing.
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
