// A layout is one function: the offset of a logical element. It is written down as data, and
// packing, unpacking, fast kernels, checks and drawings all derive from it.
//
//   offset(row, col) = begin + sum over digits of ((x / divide) % modulo) * stride,   x = row or col
//
// Rows are output features, columns run along the reduction. Every layout of every backend is such
// a permutation of digits; a stride may grow with the padded extents. The elements are FP4 codes
// (nibbles) or bytes; where a kernel wants the bits of codes scattered over a word, a word code
// says where they go.
#pragma once
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/word_code.hpp"

namespace fp4moe::layout {

struct Coord {
  std::uint64_t row = 0, col = 0;
};
struct Extent {
  std::uint64_t rows = 0, cols = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

enum class Element : std::uint8_t { nibble, byte };
enum class Axis : std::uint8_t { row, col };

// A digit's stride in offsets: fixed + by_cols * (padded columns) + by_rows * (padded rows).
struct Digit {
  Axis axis = Axis::row;
  std::uint32_t divide = 1;
  std::uint32_t modulo = 0;  // 0: the digit takes all that is left
  std::uint32_t fixed = 0, by_cols = 0, by_rows = 0;
};

// An extent of the tensor as its kernel sees it: a product of the factors marked, times, divided.
struct Dim {
  bool experts = false, rows = false, cols = false;  // padded rows and columns, in elements
  std::uint32_t times = 1, divide = 1;
};

template <class T, std::size_t Capacity>
struct List {
  std::array<T, Capacity> items{};
  std::uint32_t count = 0;

  constexpr List() = default;
  constexpr List(std::initializer_list<T> given) {
    for (const T& item : given) items[count++] = item;
  }
  constexpr const T* begin() const { return items.data(); }
  constexpr const T* end() const { return items.data() + count; }
};

struct Map {
  std::string_view name{};
  Element element = Element::byte;
  // Rows and columns must be multiples of need_*; they are padded to multiples of pad_*.
  std::uint32_t pad_rows = 1, pad_cols = 1;
  std::uint32_t need_rows = 1, need_cols = 1;
  List<Digit, 12> digits{};
  List<Dim, 5> dims{};                // the tensor's shape; none: [experts, rows, columns]
  bool is_column_major = false;       // the kernel's tensor has the last two dimensions exchanged
  bool reports_logical_rows = false;  // and counts rows without padding
  const WordCode* code = nullptr;     // nibbles only
  std::uint32_t begin = 0;            // records: the first offset of this part, and
  std::uint32_t record = 0,
                of = 0;           // offsets of a record, elements of this part in it; 0: no record
  std::uint8_t padding = 0;       // the byte that pads
  bool padding_is_unset = false;  // the reference leaves it as it finds it; here it is `padding`
};

// A map for one matrix.
class IndexMap {
 public:
  // `stretched`: the least size after padding (a backend that rounds sizes up); none: `logical`.
  // Errors: layout.size, naming the rule and the nearest size that would do.
  static Result<IndexMap> bind(const Map& map, Extent logical, Extent stretched = {});

  const Map& map() const { return map_; }
  Extent logical() const { return logical_; }
  Extent padded() const { return padded_; }
  std::uint64_t offsets() const { return offsets_; }
  std::uint64_t bytes() const { return map_.element == Element::byte ? offsets_ : offsets_ / 2; }
  std::uint64_t stride(const Digit& digit) const {
    return digit.fixed + digit.by_cols * padded_.cols + digit.by_rows * padded_.rows;
  }
  // Offsets add up: offset(r, c) = begin + row_part(r) + col_part(c).
  std::uint64_t row_part(std::uint64_t row) const { return part(Axis::row, row); }
  std::uint64_t col_part(std::uint64_t col) const { return part(Axis::col, col); }
  // `at` may lie in the padding.
  std::uint64_t offset(Coord at) const { return map_.begin + row_part(at.row) + col_part(at.col); }

  // The element at an offset of `storage`, which has bytes() bytes.
  std::uint8_t get(std::span<const std::byte> storage, std::uint64_t offset) const;
  void set(std::span<std::byte> storage, std::uint64_t offset, std::uint8_t value) const;

 private:
  std::uint64_t part(Axis axis, std::uint64_t x) const {
    std::uint64_t sum = 0;
    for (const Digit& digit : map_.digits) {
      if (digit.axis != axis) continue;
      const std::uint64_t rest = x / digit.divide;
      sum += (digit.modulo == 0 ? rest : rest % digit.modulo) * stride(digit);
    }
    return sum;
  }

  Map map_{};
  Extent logical_{}, padded_{};
  std::uint64_t offsets_ = 0;
};

}  // namespace fp4moe::layout
