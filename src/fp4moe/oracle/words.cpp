#include "fp4moe/oracle/words.hpp"

#include <algorithm>

#include "fp4moe/oracle/backend.hpp"
#include "fp4moe/oracle/select.hpp"

namespace fp4moe::oracle {
namespace {

template <class Enum, class Words>
std::optional<Enum> find(const Words& words, std::string_view name) {
  const auto found = std::ranges::find(words, name, [](const auto& word) { return word.name; });
  if (found == words.end()) return std::nullopt;
  return static_cast<Enum>(found - words.begin());
}

// MI300 computes in the FNUZ variant of E4M3.
std::string with_fp8(std::string_view form, std::string_view gfx) {
  std::string result(form);
  constexpr std::string_view kMark = "{fp8}";
  const std::string_view type = gfx.find("gfx94") != gfx.npos ? "f8e4m3fnuz" : "f8e4m3fn";
  if (const std::size_t at = result.find(kMark); at != result.npos)
    result.replace(at, kMark.size(), type);
  return result;
}

constexpr std::array<std::string_view, 28> kReasonNames{
    "platform",
    "capability",
    "architecture",
    "library",
    "environment",
    "cpu_feature",
    "not_gated",
    "activation",
    "scheme",
    "all2all",
    "eplb",
    "data_parallel",
    "exchange",
    "sequence_parallel",
    "expert_parallel",
    "routing",
    "logits_dtype",
    "token_format",
    "batch_invariance",
    "lora",
    "bias",
    "input_dtype",
    "activation_parameters",
    "alignment",
    "expert_count",
    "kernel_variant",
    "hash_routing",
    "adjusted_routes",
};
static_assert(kReasonNames.size() == static_cast<std::size_t>(Reason::adjusted_routes) + 1);

constexpr std::array<std::string_view, 10> kSchemeNames{
    "none",         "mxfp4_w4a16", "mxfp4_mxfp8", "mxfp4_fp8",  "mxfp4_w4a8",
    "ocp_mx_mxfp4", "nvfp4",       "nvfp4_w4a16", "from_layer", "mxfp4_nvfp4",
};
static_assert(kSchemeNames.size() == static_cast<std::size_t>(QuantScheme::mxfp4_nvfp4) + 1);

}  // namespace

std::optional<Activation> activation_from_name(std::string_view name) {
  return find<Activation>(kActivationWords, name == "gelu_pytorch_tanh" ? "gelu_tanh" : name);
}

std::optional<Routing> routing_from_name(std::string_view name) {
  return find<Routing>(kRoutingWords, name);
}

std::optional<ActivationKey> activation_key_from_name(std::string_view name) {
  return find<ActivationKey>(kKeyWords, name);
}

std::optional<ScalarType> scalar_from_name(std::string_view name) {
  const auto found = std::ranges::find(kScalarNames, name);
  if (found == kScalarNames.end()) return std::nullopt;
  return static_cast<ScalarType>(found - kScalarNames.begin());
}

std::string printed(ActivationKey key, std::string_view gfx) {
  return with_fp8(kKeyWords[static_cast<std::size_t>(key)].printed, gfx);
}

std::string printed(WeightFormat weights, std::string_view gfx) {
  return with_fp8(kWeightKeys[static_cast<std::size_t>(weights)], gfx);
}

std::string_view name(Reason reason) { return kReasonNames[static_cast<std::size_t>(reason)]; }

std::string_view name(QuantScheme scheme) { return kSchemeNames[static_cast<std::size_t>(scheme)]; }

std::string_view name(ErrorKind kind) {
  constexpr std::array<std::string_view, 3> kExceptionNames{"ValueError", "NotImplementedError",
                                                            "TypeError"};
  return kExceptionNames[static_cast<std::size_t>(kind)];
}

}  // namespace fp4moe::oracle
