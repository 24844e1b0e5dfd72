// Regular expressions in configurations ("re:.*self_attn\.(q|k)_proj$"), as Python's re.match reads
// them: from the beginning of a module's name, not necessarily to its end. All states are followed
// at once, so that no pattern of a file takes longer than its length times the name's.
#pragma once
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fp4moe::checkpoint {

class ModuleRegex {
 public:
  // None for what is not understood: look-around, back references, \b, more than 4096 states.
  static std::optional<ModuleRegex> parse(std::string_view pattern);

  bool matches(std::string_view name) const;

  // A state machine. Jumps are relative.
  enum class Kind : std::uint8_t { characters, split, jump, begin, end };
  struct RegexStep {
    Kind kind = Kind::characters;
    std::bitset<256> characters{};
    std::ptrdiff_t to = 0, other = 0;
  };
  using Program = std::vector<RegexStep>;

 private:
  explicit ModuleRegex(Program program) : program_(std::move(program)) {}
  bool follow(std::size_t from, std::string_view name, std::size_t at,
              std::vector<bool>& now) const;

  Program program_{};
};

}  // namespace fp4moe::checkpoint
