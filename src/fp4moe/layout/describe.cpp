#include "fp4moe/layout/describe.hpp"

#include <array>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace fp4moe::layout {
namespace {

std::string digit_text(const Digit& digit) {
  const char* axis = digit.axis == Axis::row ? "n" : "k";
  std::string text = axis;
  if (digit.divide != 1) text += fmt::format("/{}", digit.divide);
  if (digit.modulo != 0) text += fmt::format("%{}", digit.modulo);
  return text;
}

std::string stride_text(const Digit& digit) {
  if (digit.by_cols != 0) return digit.by_cols == 1 ? "K" : fmt::format("{}*K", digit.by_cols);
  if (digit.by_rows != 0) return digit.by_rows == 1 ? "N" : fmt::format("{}*N", digit.by_rows);
  return fmt::format("{}", digit.fixed);
}

// A matrix that fills every tile: what is drawn is its first bytes.
Extent sample(const Map& map) {
  const std::uint64_t rows = std::lcm(std::lcm(map.pad_rows, map.need_rows), 128u);
  const std::uint64_t cols = std::lcm(std::lcm(map.pad_cols, map.need_cols), 128u);
  return {rows, cols};
}

std::vector<std::optional<Coord>> first_elements(const IndexMap& map, std::uint64_t count) {
  std::vector<std::optional<Coord>> found(count);
  for (std::uint64_t row = 0; row < map.padded().rows; ++row)
    for (std::uint64_t col = 0; col < map.padded().cols; ++col)
      if (const std::uint64_t offset = map.offset({row, col}); offset - map.map().begin < count)
        found[offset - map.map().begin] = Coord{row, col};
  return found;
}

std::string cell(const std::optional<Coord>& at) {
  return at ? fmt::format("{}:{}", at->row, at->col) : "";
}

// The bits of the word that are XORed into bit `bit` of the low half.
std::string mixed_with(const WordMix& mix, unsigned bit) {
  const bool below = ((mix.below >> bit) & 1) != 0, above = ((mix.above >> bit) & 1) != 0;
  std::string text;
  if (below) text += fmt::format("{}", bit - WordMix::kReach);
  if (below && above) text += ",";
  if (above) text += fmt::format("{}", bit + WordMix::kReach);
  return text;
}

std::string word_code_drawing(const WordCode& code) {
  std::array<std::string, 16> bit_positions;
  for (unsigned reg = 0; reg < 4; ++reg)
    for (unsigned bit = 0; bit < 4; ++bit)
      bit_positions[code.bits[reg][bit] % 16] =
          fmt::format("{}x{}.{}", code.bits[reg][bit] < 16 ? "" : "~", reg, bit);
  std::string line = "\nbit  ", from = "code ", mixed = "xor  ";
  for (unsigned position = 16; position-- > 0;) {
    line += fmt::format("{:>6}", position);
    from += fmt::format("{:>6}", bit_positions[position]);
    mixed += fmt::format("{:>6}", mixed_with(code.mix, position));
  }
  line += "\n" + from + "\n";
  if ((code.mix.below | code.mix.above) == 0) return line;
  return line + mixed +
         "\n\n~: of the code in the other half. xor: the code's bit is stored XORed with the "
         "stored bit of\nthis number, in the high half of this number + 16; beyond the word there "
         "is none.\n";
}

}  // namespace

std::string formula(const Map& map) {
  std::string text = "offset =";
  const char* plus = " ";
  if (map.begin != 0) {
    text += fmt::format(" {}", map.begin);
    plus = " + ";
  }
  for (const Digit& digit : map.digits) {
    const std::string stride = stride_text(digit), inner = digit_text(digit);
    text += plus;
    if (stride == "1")
      text += inner;
    else if (inner.size() == 1)
      text += fmt::format("{}*{}", stride, inner);
    else
      text += fmt::format("{}*({})", stride, inner);
    plus = " + ";
  }
  return text;
}

std::string drawing(const Map& map) {
  const Result<IndexMap> bound = IndexMap::bind(map, sample(map));
  if (!bound) return {};
  std::string text;
  if (map.element == Element::byte) {
    const auto offsets = first_elements(*bound, 64);
    for (std::size_t line = 0; line < 4; ++line) {
      text += fmt::format("{:>5} |", line * 16);
      for (std::size_t i = 0; i < 16; ++i)
        text += fmt::format(" {:>6}", cell(offsets[line * 16 + i]));
      text += "\n";
    }
    return text;
  }
  const auto offsets = first_elements(*bound, 128);
  if (map.code == nullptr) {
    for (std::size_t line = 0; line < 8; ++line) {
      text += fmt::format("{:>5} |", line * 8);
      for (std::size_t i = 0; i < 8; ++i)
        text += fmt::format("  {:>5} {:>5}", cell(offsets[line * 16 + 2 * i]),
                            cell(offsets[line * 16 + 2 * i + 1]));
      text += "\n";
    }
    return text;
  }
  text += "word | low half: x0, x1, x2, x3        high half: x0, x1, x2, x3\n";
  for (std::size_t word = 0; word < 8; ++word) {
    text += fmt::format("{:>4} |", word);
    for (std::size_t i = 0; i < 8; ++i)
      text += fmt::format("{}{:>6}", i == 4 ? "    " : " ", cell(offsets[word * 8 + i]));
    text += "\n";
  }
  return text + word_code_drawing(*map.code);
}

std::string size_rule(const Map& map) {
  std::string text;
  const auto add = [&](std::string_view what, std::uint32_t size, std::string_view how) {
    if (size == 1) return;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {} {}", what, how, size);
  };
  add("rows", map.need_rows, "must be a multiple of");
  add("rows", map.pad_rows, "are padded to a multiple of");
  add("columns", map.need_cols, "must be a multiple of");
  add("columns", map.pad_cols, "are padded to a multiple of");
  return text;
}

std::string order_words(const Layout& layout) {
  const W13Order& order = layout.order;
  const std::string_view first = order.up_first ? "up" : "gate",
                         second = order.up_first ? "gate" : "up";
  std::string text =
      order.as_loaded    ? std::string("rows of w13 keep the checkpoint's order")
      : order.block == 0 ? fmt::format("w13: all {} rows, then all {} rows", first, second)
      : order.block == 1 ? fmt::format("w13: {} and {} rows are interleaved", first, second)
                         : fmt::format("w13: {} {} rows, then the {} rows that belong to them",
                                       order.block, first, second);
  if (layout.has_shuffled_rows)
    text += "; then every 32 rows are shuffled: row 4a + b of 8 x 4 goes to a + 8b";
  if (layout.is_padded_at_end) text += "; padding rows follow both halves";
  return text;
}

std::string scale_words(const Layout& layout) {
  return std::string(layout.scale_transform == nullptr ? "bytes as they are"
                                                       : layout.scale_transform->says);
}

std::string bias_words(const Layout& layout) {
  const std::string_view type = layout.bias_type == BiasType::bf16  ? "BF16"
                                : layout.bias_type == BiasType::f32 ? "F32"
                                                                    : "as loaded";
  const std::string_view order = layout.bias_transform != nullptr ? layout.bias_transform->says
                                 : layout.bias_order == BiasOrder::halves
                                     ? "all gates, then all ups"
                                     : "as the rows";
  return fmt::format("{}, {}", type, order);
}

std::string scalar_words(const Layout& layout) {
  return std::string(layout.scalars == nullptr ? "none" : layout.scalars->says);
}

}  // namespace fp4moe::layout
