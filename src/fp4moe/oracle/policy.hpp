// A policy: which backends there are at a date, in which order they are tried, which names and
// variables force one, and the words for it. All of it is data; select.hpp walks it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/oracle/backend.hpp"

namespace fp4moe::oracle {

// The automatic list for some deployments; the first match counts.
struct AutomaticList {
  EnumSet<PlatformKind> kinds{};                // empty: any
  std::optional<CapabilityRange> capability{};  // empty: any, or none
  EnumSet<Routing> routings{};                  // empty: any
  std::vector<const Backend*> backends{};
};

// A name that `backend=` accepts.
struct NamedChoice {
  std::string_view name;
  std::vector<const Backend*> backends{};  // candidates in order
  std::optional<Variable> force_16_bit{};  // this switch drops activation quantization
  bool keep_all = false;                   // without a request, try every variant in order
};

// The backend that a variable, when true, forces.
struct Forced {
  std::optional<CapabilityRange> on{};  // empty: any device
  const Backend* backend = nullptr;
};

struct EnvironmentStep {
  Variable variable{};
  std::vector<const Backend*> removed_when_false{};
  std::vector<Forced> when_true{};  // the first that matches
  std::string_view otherwise{};     // the error when none matches
  bool like_a_name = false;  // strict: the batched variant stands in, as for an explicit name
};

// NVFP4: one variable admits only FlashInfer backends, a second one picks among them.
struct FlashinferOnly {
  std::vector<const Backend*> candidates{};
  const Backend *throughput = nullptr, *latency = nullptr, *masked_gemm = nullptr;
  const Backend* taken_unseen = nullptr;  // compat: the check's answer is never looked at
  bool loses_the_class = false;           // compat: the class is forgotten
};

// MXFP4 until April: LoRA is decided before everything else.
struct LoraBranch {
  const Backend *marlin = nullptr, *triton = nullptr;
  std::string_view only_cuda;
};

// A last try on one platform after the list.
struct Fallback {
  PlatformKind kind{};
  const Backend* backend = nullptr;
  bool unchecked = false;  // taken without asking and without a class
};

// Texts with {} for the backend, the reason or the list.
struct Wording {
  std::string_view using_backend{};     // {0} backend, {1} list
  std::string_view unsupported{};       // {0} backend
  std::string_view since{};             // {0} backend, {1} reason
  std::string_view unknown_name{};      // {0} name, {1} list
  std::string_view nothing_supports{};  // {0} activation key, {1} list, {2} reasons
  std::string_view entry{};             // of that list of reasons: {0} backend, {1} reason
  std::string_view no_clamp{};          // {0} limit, {1} name
  std::string_view no_flashinfer{};     // none of FlashInfer's backends that were requested
  std::string_view falls_back{};        // {0} activation key, {1} backend
  std::string_view not_valid{};         // {0} class, {1} reason
  bool terse_reasons = false;           // January: reasons without values
  bool refusals_are_info = false;       // the automatic loop's refusals are logged as information
};

enum class Ending : std::uint8_t {
  error,
  none_off_gpu,  // an error on CUDA and ROCm, "no backend" elsewhere
};

struct Policy {
  std::string_view name;
  WeightFormat format{};
  PolicyDate policy_date{};
  std::string_view summary{};
  std::vector<const Backend*> backends{};  // all of them
  std::vector<AutomaticList> automatic{};
  std::vector<NamedChoice> names{};  // in the order in which errors list them
  std::vector<EnvironmentStep> steps{};
  std::optional<FlashinferOnly> flashinfer_only{};
  std::optional<LoraBranch> lora{};
  std::vector<Fallback> fallbacks{};
  Ending ending = Ending::error;
  Wording wording{};
  bool request_filters = false;       // a requested activation form filters the candidates
  bool request_falls_back = false;    // 16-bit candidates follow, with a warning when one is taken
  bool ignores_request = false;       // whatever was requested, and filters no automatic list
  bool asks_checkpoint = false;       // the checkpoint decides the activation form, not the backend
  bool checks_invariance = false;     // VLLM_BATCH_INVARIANT counts
  bool gate_from_activation = false;  // the activation decides whether there is a gate
  bool checks_lora = false;           // LoRA is a column like others
  bool checks_routes = false;         // so are hash routing and routes adjusted after routing
  bool validates = false;             // the chosen kernel is checked again before it is made
  bool is_generic = false;            // MXFP4: the entry for models other than gpt-oss
  bool compares_absent_capability = false;  // compat: dies comparing with nothing
  EnumSet<Library> brings{};                // what the package for CUDA installs beside the usual
};

// For users: "fp4moe", "vLLM 0.33.0", "vLLM of 2026-08-22".
std::string title(const Policy& policy);

const Backend* find_backend(const Policy& policy, std::string_view name);

// The automatic list for a request before anything is removed; null when none matches.
const AutomaticList* find_list(const Policy& policy, const Request& request);

// A described device with the packages that an installation of the policy's day brings.
platform::Device installed(const Policy& policy, platform::Device device);

// The activation that the rounding of sizes sees: only the generic entry passes it.
std::optional<Activation> rounding_activation(const Policy& policy, const Layer& layer);

// Every variable that a selection under this policy may look at.
EnumSet<Variable> variables_read(const Policy& policy);

}  // namespace fp4moe::oracle
