#include "fp4moe/checkpoint/expert_name.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fp4moe::checkpoint {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

struct ProjectionWord {
  std::string_view word;
  StoredProjection projection;
};

// Longer words first where one begins another.
constexpr ProjectionWord kHuggingFaceWords[] = {
    {"gate_up_proj", StoredProjection::gate_up},
    {"gate_proj", StoredProjection::gate},
    {"up_proj", StoredProjection::up},
    {"down_proj", StoredProjection::down},
    {"w1", StoredProjection::gate},
    {"w3", StoredProjection::up},
    {"w2", StoredProjection::down},
};
constexpr ProjectionWord kOpenaiWords[] = {{"mlp1", StoredProjection::gate_up},
                                           {"mlp2", StoredProjection::down}};
constexpr ProjectionWord kGgufWords[] = {
    {"ffn_gate_up_exps", StoredProjection::gate_up},
    {"ffn_gate_exps", StoredProjection::gate},
    {"ffn_up_exps", StoredProjection::up},
    {"ffn_down_exps", StoredProjection::down},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A number of at most nine digits, so that nothing computed from it overflows.
std::optional<std::uint64_t> whole_number(std::string_view digits) {
  constexpr std::size_t kMaxDigits = 9;
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  if (!std::all_of(digits.begin(), digits.end(), is_digit)) return std::nullopt;
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// An absurd number, or one with a sign, is still an expert's, beyond every last one.
std::optional<std::uint64_t> expert_number(std::string_view digits) {
  constexpr std::uint64_t kBeyond = 999'999'999;
  const bool has_sign = digits.starts_with('-') || digits.starts_with('+');
  if (has_sign) digits.remove_prefix(1);
  if (digits.empty() || !std::ranges::all_of(digits, is_digit)) return std::nullopt;
  return has_sign ? kBeyond : whole_number(digits).value_or(kBeyond);
}

// Begin and length of the last component of `prefix` that is a number.
std::pair<std::size_t, std::size_t> last_number(std::string_view prefix) {
  std::size_t end = prefix.size();
  while (end > 0) {
    const std::size_t dot = prefix.substr(0, end).rfind('.');
    const std::size_t begin = dot == kNone ? 0 : dot + 1;
    if (whole_number(prefix.substr(begin, end - begin))) return {begin, end - begin};
    if (dot == kNone) break;
    end = dot;
  }
  return {kNone, 0};
}

std::uint64_t layer_number(std::string_view prefix) {
  const auto [begin, size] = last_number(prefix);
  return begin == kNone ? 0 : *whole_number(prefix.substr(begin, size));
}

template <std::size_t kSize>
bool take_projection(const ProjectionWord (&words)[kSize], std::string_view rest,
                     ExpertName& into) {
  for (const ProjectionWord& row : words) {
    if (!rest.starts_with(row.word)) continue;
    const std::string_view part = rest.substr(row.word.size());
    if (!part.empty() && part[0] != '.' && part[0] != '_') continue;
    into.projection = row.projection;
    into.part = part;
    return true;
  }
  return false;
}

// The position after the last "experts." that is a component of its own.
std::size_t after_experts(std::string_view name) {
  constexpr std::string_view kWord = "experts.";
  std::size_t at = name.rfind(kWord);
  while (at != kNone && at != 0 && name[at - 1] != '.') at = name.rfind(kWord, at - 1);
  return at == kNone ? kNone : at + kWord.size();
}

}  // namespace

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  ExpertName parsed;
  if (const std::size_t after = after_experts(name); after != kNone) {
    constexpr std::size_t kWord = 8;  // "experts."
    parsed.prefix = name.substr(0, after - kWord);
    std::string_view rest = name.substr(after);
    if (const std::size_t dot = rest.find('.'); dot != kNone) {
      parsed.expert = expert_number(rest.substr(0, dot));
      if (parsed.expert) rest.remove_prefix(dot + 1);
    }
    if (!take_projection(kHuggingFaceWords, rest, parsed)) return std::nullopt;
    parsed.layer = layer_number(parsed.prefix);
    return parsed;
  }
  // The projection's component follows a layer number (GGUF) or "mlp." (OpenAI).
  if (name.starts_with("blk.")) {
    const std::size_t dot = name.find('.', 4);
    if (dot == kNone || !whole_number(name.substr(4, dot - 4))) return std::nullopt;
    parsed.family = NameFamily::gguf;
    parsed.prefix = name.substr(0, dot + 1);
    if (!take_projection(kGgufWords, name.substr(dot + 1), parsed)) return std::nullopt;
    parsed.layer = layer_number(parsed.prefix);
    return parsed;
  }
  constexpr std::string_view kMlp = ".mlp.mlp";
  if (const std::size_t at = name.rfind(kMlp); at != kNone) {
    parsed.family = NameFamily::openai;
    parsed.prefix = name.substr(0, at + 5);
    if (!take_projection(kOpenaiWords, name.substr(at + 5), parsed)) return std::nullopt;
    parsed.layer = layer_number(parsed.prefix);
    return parsed;
  }
  return std::nullopt;
}

std::optional<UnknownExpertName> unknown_expert_name(std::string_view name) {
  if (parse_expert_name(name) || !mentions_experts(name)) return std::nullopt;
  constexpr std::size_t kWord = 8;  // "experts."
  std::size_t at = after_experts(name);
  if (at != kNone) return UnknownExpertName{name.substr(0, at - kWord), name.substr(at)};
  const std::size_t dot = name.find('.', 4);  // "blk.3.": its names hold "_exps."
  at = name.starts_with("blk.") && dot != kNone ? dot + 1 : 0;
  return UnknownExpertName{name.substr(0, at), name.substr(at)};
}

bool mentions_experts(std::string_view name) {
  return after_experts(name) != kNone || name.find("_exps.") != kNone;
}

PrefixFamily prefix_family(std::string_view prefix) {
  const auto [begin, size] = last_number(prefix);
  if (begin == kNone) return {prefix, {}};
  return {prefix.substr(0, begin), prefix.substr(begin + size)};
}

}  // namespace fp4moe::checkpoint
