// The splits that are offered instead of an impossible one. The one rule of plan and explain: the
// nearest powers of two below and above, because attention heads are split over the same ranks and
// their numbers are multiples of powers of two; then other arrangements of the same ranks; then,
// where there are more ranks than experts, whole experts on fewer.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/oracle/parallel.hpp"

namespace fp4moe::plan {

// A split in vLLM's words and in those of a command line.
struct OtherSplit {
  std::string says{};               // "--tensor-parallel-size 4"
  std::vector<std::string> asks{};  // "--tp", "4"; empty: something is to be left out
  oracle::Deployment deployment{};
};

// Whole experts or parts of them, and tensor instead of data parallel, on the ranks that there are.
std::vector<OtherSplit> other_arrangements(const oracle::Deployment& now);

// All splits that `works` accepts, numbers of ranks first.
std::vector<OtherSplit> other_splits(const oracle::Deployment& now,
                                     const std::function<bool(const oracle::Deployment&)>& works);

// "--tp 4", "--tp 8", "--ep 7"
std::vector<std::string> asked_words(std::span<const OtherSplit> splits);
// "use --tp 4, --tp 8 or --ep 7"; empty where there are none.
std::string advice(std::span<const OtherSplit> splits);

}  // namespace fp4moe::plan
