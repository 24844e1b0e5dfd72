// The columns of a kernel in words, for refusals, tables and the documentation.
#pragma once
#include <span>
#include <string>

#include "fp4moe/oracle/experts.hpp"

namespace fp4moe::oracle {

std::string text(CapabilityRange range);                             // "10.x", "7.5 or newer"
std::string capability_words(std::span<const CapabilityRange> any);  // "9.0, 10.x"
std::string device_words(std::span<const DeviceNeed> needs);
std::string activation_words(EnumSet<Activation> activations);
std::string routing_words(EnumSet<Routing> routings);  // empty: "any"
std::string_view key_words(ActivationKey key);         // none: "16-bit"
// The forms of activations that go with weights of one format.
std::string input_words(std::span<const Scheme> schemes, WeightFormat weights);
std::string limit_words(EnumSet<ParallelLimit> limits);  // empty when there are none

// A limit's requirement, and its remedy.
struct LimitWords {
  std::string_view demand, remedy;
};
const LimitWords& words(ParallelLimit limit);

}  // namespace fp4moe::oracle
