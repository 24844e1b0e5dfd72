// The plan of a synthetic checkpoint: options made definite, the tensors around the experts, and
// the configuration. Shared by the quantized and the unquantized kind.
#pragma once
#include <cstdint>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"

namespace fp4moe::checkpoint {

struct SynthPlan {
  const ModelRow* model = nullptr;
  const DialectRow* row = nullptr;  // null: unquantized
  MoeShape shape{};
  std::vector<std::uint64_t> blocks{};  // the layers' numbers
  std::uint64_t top_k = 1;
};

Result<SynthPlan> synth_plan(const SynthOptions& options);

// Under Hugging Face names, with their bytes.
std::vector<OtherTensor> synth_others(const SynthPlan& plan, std::uint64_t seed);

Json synth_config(const SynthPlan& plan);

// An unquantized checkpoint (synth_plain.cpp).
Result<std::uint64_t> write_unquantized(const SynthPlan& plan, const SynthOptions& options,
                                        const std::string& out);

// Copies the whole checkpoint at `whole` to `out` with the defect in it (synth_defects.cpp).
Result<Done> plant_defect(const SynthPlan& plan, const SynthOptions& options,
                          const std::string& whole, const std::string& out);

}  // namespace fp4moe::checkpoint
