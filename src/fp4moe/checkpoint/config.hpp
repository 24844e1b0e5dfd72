// A model as config.json, hf_quant_config.json or GGUF metadata describe it: its sizes, and how it
// claims to be quantized. A claim is never believed alone: survey.hpp holds it against the tensors.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/module_regex.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// How quantized experts take their input, as Quark's configuration says.
enum class ExpertInput : std::uint8_t { unquantized, fp8_static, mxfp4, other };

// The fields of config.json (or GGUF metadata) that a reader needs; absent fields were not given.
struct ModelConfig {
  std::string model_type{};
  std::optional<std::uint64_t> layers{}, experts{}, top_k{}, hidden{}, intermediate{};
  std::optional<std::uint64_t> router_hidden{};  // differs from `hidden` where experts are latent
  // Constants of the experts' activation. SwiGLU's limit, alpha and beta; SiTU's, where 0 counts as
  // not given.
  std::optional<double> swiglu_limit{}, swiglu_alpha{}, swiglu_beta{};
  std::optional<double> situ_beta{}, situ_linear_beta{};
  bool has_layer_limits = false;  // swiglu_limits: some layers have a limit of their own
  // The router: groups of experts and how many stay, the factor of weights, whether
  // they are normalized, and the function that scores ("sigmoid").
  std::optional<std::uint64_t> groups{}, chosen_groups{};
  std::optional<double> routed_scale{};
  std::optional<bool> renormalizes{};
  std::string scoring{};
  std::string topk_method{};               // "noaux_tc"; empty: not given
  std::optional<double> router_softcap{};  // c * tanh(logit / c); 0 counts as not given
  // The experts' activation in the configuration's words ("gelu_new").
  std::string activation{};
  std::optional<ExpertInput> quark_input{};  // absent: another tool quantized the experts
};

// The modules a quantizer left alone: names, names with * and ?, and compressed-tensors' regular
// expressions ("re:.*mlp.gate$").
class Exclusions {
 public:
  void add(std::string_view pattern);
  // The entry that lists `module` or a module around it; null: none.
  const std::string* find(std::string_view module) const;
  bool empty() const { return exact_.empty() && wild_.empty() && regexes_.empty(); }
  // The first pattern that is not understood and so may list any module; empty: there is none.
  const std::string& unparsed() const { return unparsed_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Regex {
    ModuleRegex regex;
    std::string spelled{};  // as the file has it
  };
  std::unordered_set<std::string, Hash, std::equal_to<>> exact_{};
  std::vector<std::string> wild_{};
  std::vector<Regex> regexes_{};
  std::string unparsed_{};
};

// The activations of an FP8 module: in full precision, or quantized with a stored scale or
// with one of their own.
enum class Fp8Inputs : std::uint8_t { none, stored, dynamic };

// How some modules are said to be quantized.
struct ClaimedScheme {
  Exclusions modules{};     // which ones, unless it is all of them
  bool is_default = false;  // all that no scheme before this one names
  std::string unread{};     // FP4 in a form that is not read here, in words; empty: it is read
  Fp8Inputs inputs = Fp8Inputs::none;    // where the weights are FP8
  std::array<std::uint64_t, 2> block{};  // rows and columns of a scale; 0: not said
};

// Why the weights of a module cannot be read.
struct UnreadScheme {
  std::string_view what{};     // "FP4 of an unknown kind (...)"
  std::string_view pattern{};  // not empty: the scheme is the module's if this pattern names it
};

// How one file says the experts are quantized.
struct QuantClaim {
  std::string source{};  // "config.json"
  std::string fact{};    // `quant_method "compressed-tensors", format "nvfp4-pack-quantized"`
  std::optional<Dialect> dialect{};              // absent: the method is not supported
  std::optional<WeightFormat> format{};          // absent: it does not say
  ExpertInput input = ExpertInput::unquantized;  // of FP4 experts, where Quark says it
  Exclusions excluded{};
  std::vector<ClaimedScheme> schemes{};  // the first that names a module holds
  // Modules whose activations are rotated when the model runs.
  std::vector<ClaimedScheme> transforms{};

  // The scheme of a module; null: none is given.
  const ClaimedScheme* scheme(std::string_view module) const;
  // True if a pattern that is not understood may give the module another scheme for FP8.
  bool is_guessed(std::string_view module) const;
  // True if unread() has an answer for any module.
  bool has_unread() const;
  // None where the weights of `module` can be read, or nothing is said of them.
  std::optional<UnreadScheme> unread(std::string_view module) const;
};

struct ModelFacts {
  ModelConfig model{};
  std::vector<QuantClaim> claims{};
  bool has_config = false;  // config.json was there (GGUF: metadata was)
};

// From untrusted metadata.
Result<ModelFacts> facts_from_gguf(std::span<const tensor::GgufField> fields);

// The facts beside a store: its config.json and hf_quant_config.json, or its metadata.
inline constexpr std::string_view kConfigDocuments[] = {"config.json", "hf_quant_config.json"};
Result<ModelFacts> read_facts(const tensor::Store& store);

}  // namespace fp4moe::checkpoint
