#include "fp4moe/oracle/capability_words.hpp"

#include <array>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::oracle {
namespace {

template <class Enum, class Name>
std::string names_of(EnumSet<Enum> set, std::size_t count, Name name) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < count; ++i)
    if (set.contains(static_cast<Enum>(i))) parts.emplace_back(name(static_cast<Enum>(i)));
  return join(parts, ", ");
}

// In the order of ParallelLimit.
constexpr std::array<LimitWords, 11> kLimitWords{{
    {"no token exchange between ranks", "choose a modular kernel"},
    {"no expert load balancing", "switch EPLB off"},
    {"no data parallelism", "choose a modular kernel"},
    {"no FlashInfer two-sided exchange",
     "choose another all2all backend, such as allgather_reducescatter"},
    {"no FlashInfer one-sided exchange",
     "choose another all2all backend, such as allgather_reducescatter"},
    {"no sequence parallelism", "switch sequence parallelism off"},
    {"all experts on one rank", "use tensor parallelism instead"},
    {"no expert parallelism", "use tensor parallelism instead"},
    {"no DeepEP high-throughput exchange",
     "choose another all2all backend, such as allgather_reducescatter"},
    {"expert parallelism", "switch expert parallelism on"},
    {"no batched tokens", "choose an exchange that keeps tokens in order"},
}};

EnumSet<ActivationKey> all_keys() {
  EnumSet<ActivationKey> all;
  for (std::size_t i = 0; i < kKeyWords.size(); ++i) all.insert(static_cast<ActivationKey>(i));
  return all;
}

std::string one_device(const DeviceNeed& need) {
  std::string result = need.kinds.empty()
                           ? "any device"
                           : names_of(need.kinds, platform::kPlatformNames.size(),
                                      [](PlatformKind kind) { return platform::name(kind); });
  if (!need.capabilities.empty()) result += " " + capability_words(need.capabilities);
  if (!need.gfx.empty())
    result += " " + join(std::vector<std::string>(need.gfx.begin(), need.gfx.end()), ", ");
  if (!need.not_gfx.empty())
    result += " but not " +
              join(std::vector<std::string>(need.not_gfx.begin(), need.not_gfx.end()), ", ");
  if (need.architecture == CpuArchitecture::x86) result += " x86";
  if (need.architecture == CpuArchitecture::arm) result += " Arm";
  if (!need.cpu.empty()) result += " " + platform::text(need.cpu);
  if (!need.libraries.empty())
    result += " with " + names_of(need.libraries, platform::kLibraryNames.size(),
                                  [](Library library) { return platform::name(library); });
  if (!need.switches.empty())
    result += " and " + names_of(need.switches, platform::kVariables,
                                 [](Variable v) { return platform::row(v).name; });
  return result;
}

}  // namespace

std::string text(CapabilityRange range) {
  if (range.below.major == std::numeric_limits<int>::max())
    return platform::text(range.from) + " or newer";
  if (range.below == Capability{range.from.major, range.from.minor + 1})
    return platform::text(range.from);
  if (range.below == Capability{range.from.major + 1, 0} && range.from.minor == 0)
    return fmt::format("{}.x", range.from.major);
  return fmt::format("{} to below {}", platform::text(range.from), platform::text(range.below));
}

std::string capability_words(std::span<const CapabilityRange> any) {
  std::vector<std::string> parts;
  for (const CapabilityRange range : any) parts.push_back(text(range));
  return join(parts, ", ");
}

std::string device_words(std::span<const DeviceNeed> needs) {
  std::vector<std::string> parts;
  for (const DeviceNeed& need : needs) parts.push_back(one_device(need));
  return join(parts, "; ");
}

std::string activation_words(EnumSet<Activation> activations) {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < kActivationWords.size(); ++i)
    if (!activations.contains(static_cast<Activation>(i)))
      missing.emplace_back(kActivationWords[i].name);
  if (missing.size() <= 2) return missing.empty() ? "all" : "all but " + join(missing, ", ");
  return names_of(activations, kActivationWords.size(), [](Activation a) { return name(a); });
}

std::string routing_words(EnumSet<Routing> routings) {
  if (routings.empty()) return "any";
  return names_of(routings, kRoutingWords.size(), [](Routing r) { return name(r); });
}

std::string_view key_words(ActivationKey key) {
  return key == ActivationKey::none ? std::string_view("16-bit") : name(key);
}

std::string input_words(std::span<const Scheme> schemes, WeightFormat weights) {
  std::vector<std::string> parts;
  for (const Scheme& scheme : schemes) {
    if (scheme.weights != weights) continue;
    std::string result = names_of(scheme.activations, kKeyWords.size(), key_words);
    if (scheme.activations == all_keys()) result = "any";
    if (scheme.capability.from != Capability{}) result += " on " + text(scheme.capability);
    if (!scheme.gfx.empty()) result += fmt::format(" on {}", scheme.gfx);
    parts.push_back(std::move(result));
  }
  return join(parts, "; ");
}

std::string limit_words(EnumSet<ParallelLimit> limits) {
  return names_of(limits, kLimitWords.size(),
                  [](ParallelLimit limit) { return words(limit).demand; });
}

const LimitWords& words(ParallelLimit limit) {
  return kLimitWords[static_cast<std::size_t>(limit)];
}

}  // namespace fp4moe::oracle
