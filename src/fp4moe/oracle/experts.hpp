// An experts kernel as data: what it needs, in columns. One evaluator (select_evaluate.cpp) reads the
// columns and says what is missing; conditions that no column can say are Rules of its own.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::oracle {

using platform::Capability;
using platform::CpuArchitecture;
using platform::CpuFeature;
using platform::Library;
using platform::PlatformKind;
using platform::Variable;

struct CapabilityRange {
  Capability from{}, below{std::numeric_limits<int>::max(), 0};
  constexpr bool contains(Capability capability) const {
    return from <= capability && capability < below;
  }
};
constexpr CapabilityRange exactly(int major, int minor) {
  return {{major, minor}, {major, minor + 1}};
}
constexpr CapabilityRange family(int major) { return {{major, 0}, {major + 1, 0}}; }
constexpr CapabilityRange at_least(int major, int minor) { return {.from = {major, minor}}; }

// One way for a device to be good enough. Empty columns ask for nothing.
struct DeviceNeed {
  EnumSet<PlatformKind> kinds{};
  std::span<const CapabilityRange> capabilities{};  // one of them; an absent capability is in none
  std::span<const std::string_view> gfx{};          // the architecture's name contains one of them
  std::span<const std::string_view> not_gfx{};      // and none of these
  EnumSet<Library> libraries{};
  EnumSet<Variable> switches{};  // must be on
  CpuArchitecture architecture = CpuArchitecture::unknown;
  EnumSet<CpuFeature> cpu{};
};

// Weights of one format with activations in one of these forms, perhaps on some devices only.
struct Scheme {
  WeightFormat weights{};
  EnumSet<ActivationKey> activations{};
  CapabilityRange capability{};  // the default contains also an absent one
  std::string_view gfx{};        // the architecture's name contains it
};

enum class ParallelLimit : std::uint8_t {
  no_all2all,
  no_eplb,
  no_data_parallel,
  no_flashinfer_two_sided,
  no_flashinfer_one_sided,
  no_sequence_parallel,
  one_expert_rank,  // ep_size is 1
  no_expert_parallel,
  no_deepep_high_throughput,
  only_expert_parallel,
  no_batched_tokens,
};

enum class LogitsRule : std::uint8_t {
  any,
  float32_for_some_routings,  // float32 only with DeepSeekV3 or Simulated
  bfloat16_or_float32,
};

// Stable: tests and tools match on these.
enum class Reason : std::uint8_t {
  platform,
  capability,
  architecture,
  library,
  environment,
  cpu_feature,
  not_gated,
  activation,
  scheme,
  all2all,
  eplb,
  data_parallel,
  exchange,
  sequence_parallel,
  expert_parallel,
  routing,
  logits_dtype,
  token_format,
  batch_invariance,
  lora,
  bias,
  input_dtype,
  activation_parameters,
  alignment,
  expert_count,
  kernel_variant,
  hash_routing,
  adjusted_routes,
};
std::string_view name(Reason reason);

struct Backend;
struct ExpertsClass;

// The input of a rule.
struct Asked {
  const Request& request;
  const Backend& backend;
  const ExpertsClass& experts;
  WeightFormat weights{};
  ActivationKey activation{};
};

// A condition that no column can say, with its sentences, so that they cannot drift apart.
struct Rule {
  Reason reason;
  bool after = false;  // checked after the columns, else before them
  bool (*holds)(const Asked&);
  std::string (*reference)(const Asked&);    // the reference's whole sentence, or its part of one
  std::string (*requirement)(const Asked&);  // "needs biases to be absent"
  std::string (*fact)(const Asked&);         // "the layer has biases"
};

enum class Kind : std::uint8_t { modular, monolithic };  // given routes, or routing by itself

struct ExpertsClass {
  std::string_view name;  // empty: the reference has a function here, no class
  Kind kind = Kind::modular;
  TokenFormat format = TokenFormat::standard;
  std::span<const DeviceNeed> devices{};         // any of them
  std::span<const DeviceNeed> strict_devices{};  // instead, where strict mode repairs a defect
  bool not_gated = false;                        // runs layers without a gate
  EnumSet<Activation> activations{};
  std::span<const Scheme> schemes{};
  EnumSet<ParallelLimit> limits{};
  EnumSet<Routing> routings{};  // empty: any
  LogitsRule logits = LogitsRule::any;
  bool batch_invariant = false;
  bool lora = false;
  bool hash_routing = false;          // monolithic: routes by a table of token numbers, too
  std::string_view int4_groups_on{};  // architecture where it also takes INT4 in groups of 32
  std::span<const Rule> rules{};
  bool one_sentence = false;  // the reference tells all broken last rules at once
  std::span<const std::string_view> configured_names{};  // made only when `backend=` is one of them
  EnumSet<Variable> reads{};                             // variables that its rules look at
  std::string (*announces)(const Asked&) = nullptr;      // compat: logged before the last rules
  std::string_view refusal_note{};  // appended to every reference reason while a switch is off
  bool takes_unquantized = false;   // prepare must not quantize its input
  bool expert_map = false;          // understands a map from global to local experts
};

}  // namespace fp4moe::oracle
