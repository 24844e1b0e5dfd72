// Sizes as a kernel wants them. Two rules round them up, one after the other: the exchange between
// ranks needs a hidden size it can carry, and the backend needs multiples of its tiles. The
// selection itself always sees the sizes before rounding. MXFP4 backends round before weights are
// loaded; NVFP4 backends load as it is and pad while converting.
#pragma once
#include <cstdint>
#include <optional>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/backend.hpp"
#include "fp4moe/oracle/parallel.hpp"

namespace fp4moe::oracle {

struct Sizes {
  std::uint64_t hidden = 0;
  std::uint64_t intermediate = 0;  // of one rank
  friend bool operator==(const Sizes&, const Sizes&) = default;
};

// The first row of the backend's rounding that matches the device, or null: sizes stay.
const Rounding* find_rounding(const Backend& backend, const platform::Device& device,
                              std::optional<Activation> activation);

// The sizes that the backend needs. An error with id sizes.overflow when a size does not fit 64
// bits.
Result<Sizes> round_sizes(const Backend& backend, const platform::Device& device,
                          std::optional<Activation> activation, Sizes sizes);

// The hidden size that the exchange carries. An error with id sizes.exchange, in the reference's
// words, when it carries none so large.
Result<std::uint64_t> exchange_hidden(const Parallel& parallel, PolicyDate policy_date,
                                      ScalarType activations, std::uint64_t hidden);

// The sizes after conversion of the loaded ones. An error with id sizes.conversion when the
// backend can convert no such sizes.
Result<Sizes> converted_sizes(const Backend& backend, bool gated, Sizes sizes);

// The exchange's rule and the backend's, in this order.
Result<Sizes> layer_sizes(const Backend& backend, const platform::Device& device,
                          std::optional<Activation> activation, const Parallel& parallel,
                          PolicyDate policy_date, ScalarType activations, Sizes sizes);

}  // namespace fp4moe::oracle
