// The choice: pure, total, with every reason. A refusal is an answer, not an error.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/oracle/policy.hpp"

namespace fp4moe::oracle {

// The reference's order of checks; the first one that fails is the one it tells.
enum class Check : std::uint8_t {
  rule_before,
  device,
  not_gated,
  activation,
  scheme,
  parallel,
  hash_routing,
  adjusted_routes,
  routing,
  logits,
  format,
  batch_invariance,
  lora,
  rule_after,
};

// Kept small: the sentences are written when they are read (select_sentences.cpp).
struct Refusal {
  Reason reason{};
  Check check{};
  std::uint8_t detail = 0;  // which library, variable, limit or rule
  std::uint8_t need = 0;    // which row of the devices
};

class Refusals {
 public:
  static constexpr std::size_t kMax = 16;
  void add(Refusal refusal) {
    if (count_ < kMax) all_[count_++] = refusal;
  }
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  const Refusal* begin() const { return all_.data(); }
  const Refusal* end() const { return all_.data() + count_; }
  const Refusal& front() const { return all_[0]; }

 private:
  std::array<Refusal, kMax> all_{};
  std::size_t count_ = 0;
};

// The thing that would have to change, in the order in which refusals are shown: what no setting
// can change comes first.
enum class Cause : std::uint8_t {
  hardware,    // another device
  layer,       // another model
  deployment,  // another split or exchange, no LoRA, other results
  software,    // a package or a variable
};
Cause cause(Reason reason);

// One kernel held against the request: every refusal, in the order of the checks.
struct Verdict {
  const Backend* backend = nullptr;
  const ExpertsClass* experts = nullptr;
  std::span<const DeviceNeed> needs{};  // the kernel's devices, as the mode counts them
  ActivationKey activation{};
  TokenFormat format{};
  Refusals refusals{};
  bool accepted() const { return refusals.empty(); }
};

enum class Outcome : std::uint8_t { selected, none, error };
enum class ErrorKind : std::uint8_t { value, not_implemented, type };
std::string_view name(ErrorKind kind);  // "ValueError", ...

struct Selection {
  const Policy* policy = nullptr;
  Mode mode{};
  Outcome outcome{};
  const Backend* backend = nullptr;
  const ExpertsClass* experts = nullptr;  // null where the reference has no class
  TokenFormat format{};                   // what the deployment asks for
  ActivationKey activation{};             // of the chosen scheme
  std::vector<Verdict> evaluated{};       // in the order tried, the accepted one last
  std::vector<std::string> log{};         // at information level
  std::vector<std::string> warned{};      // at warning level
  ErrorKind error{};
  std::string message{};  // of the error, in the reference's words
};

// A scheme that exists on other devices is a matter of hardware.
Cause cause(const Verdict& verdict, const Refusal& refusal);
// The refusals in the order for users: by cause, then in the order of the checks.
std::vector<Refusal> by_cause(const Verdict& verdict);

Verdict evaluate(const Policy& policy, Mode mode, const Request& request, const Backend& backend,
                 const ExpertsClass& experts, ActivationKey activation);
Selection select(const Policy& policy, Mode mode, const Request& request);

// True if the kernel computes this pair of formats on the device.
bool takes(const ExpertsClass& experts, WeightFormat weights, ActivationKey activation,
           const platform::Device& device);

// The check before a kernel is made, with sizes as they are then (rounded). The reference looks for
// a form of activations that the kernel takes, whatever was selected (Q24); strict mode checks the
// form that was selected. The reference's sentence when it refuses; empty when all is well.
std::string validate(const Policy& policy, Mode mode, const Request& request,
                     const Backend& backend, const ExpertsClass& experts);

// Every kernel of the policy against the request, whether the selection came to it or not: the
// automatic list first, then what only a name or a variable reaches.
std::vector<Verdict> survey(const Policy& policy, Mode mode, const Request& request);

// The reference's sentence for the first refusal; empty when accepted.
std::string reference_reason(const Policy& policy, const Request& request, const Verdict& verdict);

// A refusal for the user: what is required, what was found, what to do. One cause, one sentence.
struct Sentence {
  std::string requirement, fact, remedy;
};
Sentence sentence(const Request& request, const Verdict& verdict, const Refusal& refusal);

}  // namespace fp4moe::oracle
