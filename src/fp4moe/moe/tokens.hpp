// The forms of tokens between the stages of a kernel: as they come, as the experts see them, as the
// experts leave them.
#pragma once
#include <cstdint>
#include <span>

#include "fp4moe/kernels/enums.hpp"
#include "fp4moe/moe/quantized_rows.hpp"
#include "fp4moe/moe/rows.hpp"

namespace fp4moe::moe {

using kernels::OutputForm;
using oracle::TokenFormat;

// Tokens of this rank. Modular: ids (physical, global) and weights; monolithic: logits instead.
struct Tokens {
  ConstRows x{};                             // [T, H]
  std::uint64_t top_k = 0;                   // columns of ids and weights
  std::span<const std::int32_t> ids{};       // [T, top_k]; -1: nothing
  std::span<const float> weights{};          // [T, top_k]
  ConstRows logits{};                        // [T, E]
  std::span<const std::int32_t> adapters{};  // [T], -1: none; empty: no adapters at all
};

struct PrepareOptions {
  RowQuantizer quantizer{};      // key none: experts get 16-bit rows
  bool weight_on_input = false;  // top_k 1: x * bf16(weight) in bf16, before quantizing
  bool deferred = false;         // the experts quantize by themselves; refused by batches
};

// The input of this rank's experts; memory of the exchange or the caller's, until finalize.
// Standard: rows with their ids and weights. Batched: expert e's rows are [e * capacity, e *
// capacity + counts[e]); ids and weights are not there.
struct Prepared : Tokens {
  TokenFormat format = TokenFormat::standard;
  bool is_quantized = false;               // x holds decoded values
  float factor = 1.0f;                     // of all x, when quantized
  std::span<const std::int32_t> counts{};  // batched: [local experts]
  std::uint64_t capacity = 0;              // batched
};

struct ExpertsOutput {
  OutputForm form = OutputForm::summed;
  ConstRows rows{};
  bool is_weighted = true;  // false: finalize multiplies by the weights (ones when on input)
};

}  // namespace fp4moe::moe
