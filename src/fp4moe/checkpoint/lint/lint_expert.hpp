// The values of one expert, looked at for lint.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/checkpoint/checkpoint.hpp"

namespace fp4moe::checkpoint {

// A finding of a check: a code of lint_rules(), the tensor, the fact.
struct Observation {
  std::string_view code{};
  const tensor::StoredTensor* tensor = nullptr;
  std::string missing{};  // a tensor that should be there
  std::string fact{};
};

struct ExpertScan {
  std::vector<Observation> found{};
  std::uint64_t bytes_read = 0;
};

// How to look. Sizes that the configuration gives and the tensors exceed make the rest padding.
struct ScanOptions {
  bool deep = false;          // read the codes too
  bool scalars_only = false;  // no block scales, and no codes
  std::uint64_t hidden = 0, intermediate = 0;
};

// `layer` may be broken: parts that are missing or have the wrong size are passed over.
ExpertScan scan_expert(const tensor::Store& store, const LayerTensors& layer, std::uint64_t expert,
                       const ScanOptions& options);

}  // namespace fp4moe::checkpoint
