#include "fp4moe/checkpoint/module_regex.hpp"

#include <algorithm>
#include <utility>

namespace fp4moe::checkpoint {
namespace {

using Kind = ModuleRegex::Kind;
using Program = ModuleRegex::Program;
using RegexStep = ModuleRegex::RegexStep;
using Characters = std::bitset<256>;

constexpr std::size_t kMaxSteps = 4096, kMaxDepth = 64;

std::ptrdiff_t step_count(const Program& program) {
  return static_cast<std::ptrdiff_t>(program.size());
}

void append_steps(Program& to, const Program& more) {
  to.insert(to.end(), more.begin(), more.end());
}

Program branch(std::ptrdiff_t to, std::ptrdiff_t other) {
  return {{.kind = Kind::split, .to = to, .other = other}};
}

Program maybe(const Program& body) {
  Program result = branch(1, step_count(body) + 1);
  append_steps(result, body);
  return result;
}

Program starred_program(const Program& body) {
  Program result = branch(1, step_count(body) + 2);
  append_steps(result, body);
  result.push_back({.kind = Kind::jump, .to = -step_count(body) - 1});
  return result;
}

Program either_program(const Program& first, const Program& second) {
  Program result = branch(1, step_count(first) + 2);
  append_steps(result, first);
  result.push_back({.kind = Kind::jump, .to = step_count(second) + 1});
  append_steps(result, second);
  return result;
}

Characters character_range(char from, char to) {
  Characters result;
  for (int c = static_cast<unsigned char>(from); c <= static_cast<unsigned char>(to); ++c)
    result.set(static_cast<std::size_t>(c));
  return result;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Behind a backslash: a class, or the character itself.
std::optional<Characters> escaped_characters(char c) {
  const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  Characters result;
  if (lower == 'd') result = character_range('0', '9');
  if (lower == 'w')
    result = character_range('0', '9') | character_range('a', 'z') | character_range('A', 'Z') |
             character_range('_', '_');
  if (lower == 's')
    for (const char space : {' ', '\t', '\n', '\r', '\f', '\v'})
      result |= character_range(space, space);
  if (result.none() && is_letter_or_digit(c)) return std::nullopt;
  if (result.none()) return character_range(c, c);
  return lower == c ? result : ~result;
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view text) : rest_(text) {}

  std::optional<Program> parse() {
    auto result = alternatives(0);
    if (!result || !rest_.empty()) return std::nullopt;
    return result;
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  char next() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  std::optional<Program> alternatives(std::size_t depth) {
    if (depth > kMaxDepth) return std::nullopt;
    auto result = sequence(depth);
    while (result && take("|")) {
      const auto more = sequence(depth);
      if (!more) return std::nullopt;
      result = either_program(*result, *more);
    }
    return result;
  }

  std::optional<Program> sequence(std::size_t depth) {
    Program result;
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      auto one = atom(depth);
      if (one) one = repeated(*std::move(one));
      if (!one) return std::nullopt;
      append_steps(result, *one);
      if (result.size() > kMaxSteps) return std::nullopt;
    }
    return result;
  }

  std::optional<Program> atom(std::size_t depth) {
    const char c = next();
    switch (c) {
      case '(': {
        if (rest_.starts_with('?') && !take("?:")) return std::nullopt;
        auto result = alternatives(depth + 1);
        return result && take(")") ? result : std::nullopt;
      }
      case '[':
        return set();
      case '^':
        return Program{{.kind = Kind::begin}};
      case '$':
        return Program{{.kind = Kind::end}};
      case '.':
        return one_of(~character_range('\n', '\n'));
      case '\\': {
        if (rest_.empty()) return std::nullopt;
        const auto found = escaped_characters(next());
        return found ? std::optional(one_of(*found)) : std::nullopt;
      }
      case '*':
      case '+':
      case '?':
        return std::nullopt;
      default:
        return one_of(character_range(c, c));
    }
  }

  static Program one_of(const Characters& characters) { return {{.characters = characters}}; }

  std::optional<Program> set() {
    const bool is_negated = take("^");
    Characters result;
    for (bool is_first = true; is_first || !rest_.starts_with(']'); is_first = false) {
      if (rest_.empty()) return std::nullopt;
      const char from = next();
      if (from == '\\') {
        if (rest_.empty()) return std::nullopt;
        const auto found = escaped_characters(next());
        if (!found) return std::nullopt;
        result |= *found;
      } else if (rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') {
        next();
        const char to = next();
        if (to == '\\' || to < from) return std::nullopt;
        result |= character_range(from, to);
      } else {
        result |= character_range(from, from);
      }
    }
    next();
    return one_of(is_negated ? ~result : result);
  }

  std::optional<std::size_t> number() {
    if (rest_.empty() || rest_[0] < '0' || rest_[0] > '9') return std::nullopt;
    std::size_t value = 0;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9')
      value = std::min(value * 10 + static_cast<std::size_t>(next() - '0'), kMaxSteps);
    return value;
  }

  // Greedy or not, the same names match.
  std::optional<Program> repeated(Program body) {
    std::size_t min = 1, max = 1;
    bool is_endless = false;
    if (take("*")) {
      min = 0;
      is_endless = true;
    } else if (take("+")) {
      is_endless = true;
    } else if (take("?")) {
      min = 0;
    } else if (take("{")) {
      const auto first = number();
      const bool has_comma = take(",");
      const auto last = has_comma ? number() : first;
      if (!take("}") || (!first && !last)) return std::nullopt;
      min = first.value_or(0);
      max = last.value_or(min);
      is_endless = !last.has_value();
      if (max < min) return std::nullopt;
    } else {
      return body;
    }
    take("?");
    if ((max + 1) * std::max<std::size_t>(body.size(), 1) > kMaxSteps) return std::nullopt;
    Program result;
    for (std::size_t i = 0; i < min; ++i) append_steps(result, body);
    if (is_endless) {
      append_steps(result, starred_program(body));
    } else {
      for (std::size_t i = min; i < max; ++i) append_steps(result, maybe(body));
    }
    return result;
  }

  std::string_view rest_;
};

}  // namespace

std::optional<ModuleRegex> ModuleRegex::parse(std::string_view pattern) {
  auto program = RegexParser(pattern).parse();
  if (!program || program->size() > kMaxSteps) return std::nullopt;
  return ModuleRegex(*std::move(program));
}

// Marks the states that wait for a character; true when one is the end of the program.
bool ModuleRegex::follow(std::size_t from, std::string_view name, std::size_t at,
                         std::vector<bool>& now) const {
  std::vector<std::size_t> open{from};
  while (!open.empty()) {
    const std::size_t state = open.back();
    open.pop_back();
    if (state == program_.size()) return true;
    if (now[state]) continue;
    now[state] = true;
    const RegexStep& step = program_[state];
    const auto to = [&](std::ptrdiff_t by) {
      open.push_back(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(state) + by));
    };
    if (step.kind == Kind::split) to(step.other);
    if (step.kind == Kind::split || step.kind == Kind::jump) to(step.to);
    if (step.kind == Kind::begin && at == 0) to(1);
    if (step.kind == Kind::end && at == name.size()) to(1);
  }
  return false;
}

bool ModuleRegex::matches(std::string_view name) const {
  std::vector<bool> now(program_.size(), false);
  if (follow(0, name, 0, now)) return true;
  for (std::size_t at = 0; at < name.size(); ++at) {
    const auto c = static_cast<unsigned char>(name[at]);
    std::vector<bool> next(program_.size(), false);
    for (std::size_t state = 0; state < program_.size(); ++state) {
      const RegexStep& step = program_[state];
      if (!now[state] || step.kind != Kind::characters || !step.characters[c]) continue;
      if (follow(state + 1, name, at + 1, next)) return true;
    }
    now = std::move(next);
  }
  return false;
}

}  // namespace fp4moe::checkpoint
