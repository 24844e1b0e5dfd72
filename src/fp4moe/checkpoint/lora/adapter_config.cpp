#include "fp4moe/checkpoint/lora/adapter_config.hpp"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "fp4moe/base/json_fields.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

// Settings that make an adapter more than scale * B A. Absent, null, false, "none" and empty ones
// are harmless.
struct RefusedSetting {
  const char* key;
  const char* what;
};
constexpr RefusedSetting kRefusedSettings[] = {
    {"use_dora", "DoRA also rescales the columns of the weight"},
    {"bias", "trained biases are more than a low-rank change of the weight"},
    {"lora_bias", "a bias behind B is more than a low-rank change of the weight"},
    {"fan_in_fan_out", "transposed base weights do not occur among experts"},
    {"use_qalora", "QALoRA averages its input over groups"},
    {"use_bdlora", "block-diagonal LoRA stores its factors in blocks"},
    {"alora_invocation_tokens", "an activated LoRA applies to some of the tokens only"},
    {"arrow_config", "Arrow chooses among adapters for every token"},
    {"kasa_config", "KaSA has singular values between A and B"},
    {"monteclora_config", "MonteCLoRA averages over samples of A"},
    {"layer_replication", "replicated layers have no weights of their own in a checkpoint"},
};

std::string json_text(const Json& value) { return printable(value.dump()); }

bool is_switched_on(const Json& value) {
  if (value.is_null() || value == Json(false) || value == Json("none")) return false;
  return !(value.is_structured() && value.empty());
}

class AdapterFields : public JsonFields {
 public:
  AdapterFields(const Json& document, std::string_view path)
      : JsonFields(document), document_(document), path_(path) {}

  Result<AdapterConfig> read() {
    if (!document_.is_object()) return bad("", "an object", json_text(document_));
    if (Result<Done> fine = check_kind(); !fine) return fine.why();
    AdapterConfig config;
    const Json* rank = find("r");
    if (rank == nullptr) return bad("r", "the rank", "no such key");
    const std::optional<std::uint64_t> whole = rank_of(*rank);
    if (!whole) return bad("r", rank_words(), json_text(*rank));
    config.rank = *whole;
    const Json* alpha = find("lora_alpha");
    if (alpha == nullptr) return bad("lora_alpha", "a number", "no such key");
    const std::optional<double> number = alpha_of(*alpha);
    if (!number) return bad("lora_alpha", kAlphaWords, json_text(*alpha));
    config.alpha = *number;
    config.rslora = get<bool>("use_rslora").value_or(false);
    if (Result<Done> done = read_patterns(config); !done) return done.why();
    if (Result<Done> done = read_names(config); !done) return done.why();
    if (problem_) return *problem_;
    return config;
  }

 private:
  static constexpr const char* kAlphaWords = "a finite number";
  static std::string rank_words() {
    return fmt::format("a whole number from 1 to {}", kMaxLoraRank);
  }

  void wrong(std::string_view key, std::string_view expected, const Json* found) override {
    if (!problem_) problem_ = bad(key, expected, json_text(*found));
  }
  Error bad(std::string_view key, std::string_view expected, std::string_view found) const {
    return invalid("adapter.config", "the adapter's configuration is not what PEFT writes")
        .in(path_)
        .at(key)
        .expects(expected, found);
  }

  static std::optional<std::uint64_t> rank_of(const Json& value) {
    if (!value.is_number_integer()) return std::nullopt;
    const auto rank = value.get<std::uint64_t>();  // huge, where the text has a minus
    return rank >= 1 && rank <= kMaxLoraRank ? std::optional(rank) : std::nullopt;
  }
  static std::optional<double> alpha_of(const Json& value) {
    if (!value.is_number()) return std::nullopt;
    const auto number = value.get<double>();
    // The scale is a float32.
    if (!std::isfinite(static_cast<float>(number))) return std::nullopt;
    return number;
  }

  Result<Done> check_kind() const {
    const Json* type = find("peft_type");
    if (type == nullptr) return bad("peft_type", "\"LORA\"", "no such key");
    if (!type->is_string() || type->string() != "LORA")
      return invalid("adapter.type", "only LoRA adapters can be read")
          .in(path_)
          .at("peft_type")
          .expects("\"LORA\"", json_text(*type))
          .try_this(
              "Train with LoraConfig, or merge the adapter with PEFT and quantize the result");
    for (const RefusedSetting& row : kRefusedSettings) {
      const Json* value = find(row.key);
      if (value == nullptr || !is_switched_on(*value)) continue;
      return invalid("adapter.unsupported", row.what)
          .in(path_)
          .at(row.key)
          .expects("a plain LoRA adapter", json_text(*value))
          .try_this("Merge the adapter with PEFT and quantize the result");
    }
    return Done{};
  }

  Result<Done> read_patterns(AdapterConfig& config) {
    for (const char* key : {"rank_pattern", "alpha_pattern"}) {
      const Json* patterns = object(key);
      if (patterns == nullptr) continue;
      for (const auto& [pattern, value] : patterns->items()) {
        if (!is_lora_pattern(pattern))
          return invalid("adapter.pattern", "a regular expression is not understood")
              .in(path_)
              .at(key)
              .expects("names; '.', \"\\d\", \"[0-9]\" and '*', '+', '?' after one character",
                       printable(pattern))
              .try_this("Write the module names out");
        const std::optional<std::uint64_t> rank = rank_of(value);
        const std::optional<double> alpha = alpha_of(value);
        const bool is_rank = key[0] == 'r';
        if (is_rank ? !rank : !alpha)
          return bad(key, is_rank ? rank_words() : std::string(kAlphaWords),
                     fmt::format("{} for {}", json_text(value), printable(pattern)));
        if (is_rank) {
          config.rank_pattern.emplace_back(pattern, *rank);
        } else {
          config.alpha_pattern.emplace_back(pattern, *alpha);
        }
      }
    }
    return Done{};
  }

  Result<Done> read_names(AdapterConfig& config) {
    if (const Json* base = find("base_model_name_or_path"); base != nullptr && base->is_string())
      config.base_model = base->string();
    if (const Json* parameters = array("target_parameters")) {
      for (const Json& name : *parameters) {
        if (!name.is_string()) return bad("target_parameters", "a list of names", json_text(name));
        config.target_parameters.push_back(name.string());
      }
    }
    const Json* modules = find("target_modules");
    if (modules != nullptr && !modules->is_string() && !modules->is_array())
      return bad("target_modules", "a name or a list of names", json_text(*modules));
    return check_saved_modules();
  }

  // Whole weights instead of low-rank changes. Elsewhere they do not concern the experts.
  Result<Done> check_saved_modules() {
    const Json* saved = array("modules_to_save");
    if (saved == nullptr) return Done{};
    constexpr std::string_view kExpertWords[] = {
        "experts", "mlp", "gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"};
    for (const Json& name : *saved) {
      if (!name.is_string()) return bad("modules_to_save", "a list of names", json_text(name));
      const std::string text = name.string();
      const std::string_view last = std::string_view(text).substr(text.rfind('.') + 1);
      for (const std::string_view word : kExpertWords)
        if (last == word)
          return invalid("adapter.unsupported", "experts were trained as whole weights")
              .in(path_)
              .at("modules_to_save")
              .expects("low-rank changes of experts alone", json_text(name))
              .try_this("Merge the adapter with PEFT and quantize the result");
    }
    return Done{};
  }

  const Json& document_;
  std::string path_;
  std::optional<Error> problem_{};
};

// One element of a pattern: a character, any character, or any digit; how often.
struct PatternAtom {
  enum class Kind : std::uint8_t { character, any, digit } kind = Kind::character;
  char character = 0;
  bool optional = false, repeats = false;

  bool takes(char c) const {
    return kind == Kind::any || (kind == Kind::digit ? c >= '0' && c <= '9' : c == character);
  }
};

struct LoraPattern {
  bool whole = false;  // '^' in front
  std::vector<PatternAtom> atoms{};
};

std::optional<LoraPattern> parse_lora_pattern(std::string_view text) {
  LoraPattern pattern;
  if (text.starts_with('^')) {
    pattern.whole = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    PatternAtom atom;
    std::size_t used = 1;
    if (text.starts_with("[0-9]") || text.starts_with("\\d")) {
      atom.kind = PatternAtom::Kind::digit;
      used = text[0] == '[' ? 5 : 2;
    } else if (text.starts_with("\\.")) {
      atom.character = '.';
      used = 2;
    } else if (text[0] == '.') {
      atom.kind = PatternAtom::Kind::any;
    } else if (std::string_view("\\[](){}|*+?^$").find(text[0]) != std::string_view::npos) {
      return std::nullopt;
    } else {
      atom.character = text[0];
    }
    text.remove_prefix(used);
    if (!text.empty() && std::string_view("*+?").find(text[0]) != std::string_view::npos) {
      atom.optional = text[0] != '+';
      atom.repeats = text[0] != '?';
      text.remove_prefix(1);
    }
    pattern.atoms.push_back(atom);
  }
  return pattern;
}

// All states at once, so that no pattern takes longer than its length times the name's.
bool matches_here(const LoraPattern& pattern, std::string_view name) {
  const std::size_t end = pattern.atoms.size();
  std::vector<bool> now(end + 1, false);  // now[i]: the first i atoms are done
  const auto skip_optional = [&](std::vector<bool>& states) {
    for (std::size_t i = 0; i < end; ++i)
      if (states[i] && pattern.atoms[i].optional) states[i + 1] = true;
  };
  now[0] = true;
  skip_optional(now);
  for (const char c : name) {
    std::vector<bool> next(end + 1, false);
    for (std::size_t i = 0; i < end; ++i) {
      if (!pattern.atoms[i].takes(c)) continue;
      if (now[i]) next[i + 1] = true;
      if (now[i + 1] && pattern.atoms[i].repeats) next[i + 1] = true;
    }
    skip_optional(next);
    now = std::move(next);
  }
  return now[end];
}

}  // namespace

bool is_lora_pattern(std::string_view pattern) { return parse_lora_pattern(pattern).has_value(); }

bool lora_pattern_matches(std::string_view pattern, std::string_view name) {
  const std::optional<LoraPattern> parsed = parse_lora_pattern(pattern);
  if (!parsed) return false;
  if (matches_here(*parsed, name)) return true;
  if (parsed->whole) return false;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
       dot = name.find('.', dot + 1))
    if (matches_here(*parsed, name.substr(dot + 1))) return true;
  return false;
}

LoraScale lora_scale(const AdapterConfig& config, std::string_view module) {
  std::uint64_t rank = config.rank;
  double alpha = config.alpha;
  for (const auto& [pattern, value] : config.rank_pattern)
    if (lora_pattern_matches(pattern, module)) {
      rank = value;
      break;
    }
  for (const auto& [pattern, value] : config.alpha_pattern)
    if (lora_pattern_matches(pattern, module)) {
      alpha = value;
      break;
    }
  const auto whole = static_cast<double>(rank);
  return {.rank = rank,
          .scale = static_cast<float>(alpha / (config.rslora ? std::sqrt(whole) : whole))};
}

Result<AdapterConfig> parse_adapter_config(const Json& document, std::string_view path) {
  return AdapterFields(document, path).read();
}

}  // namespace fp4moe::checkpoint
