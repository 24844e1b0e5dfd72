#include "fp4moe/convert/pack/shuffle_plan.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::convert {
namespace {

using kernels::cpu::kMaxPassthrough;
using kernels::cpu::LanePattern;
using layout::Axis;
using layout::Digit;
using layout::Element;
using layout::IndexMap;

struct AddressBit {
  Axis axis{};
  unsigned bit = 0;  // of the row or column
};

bool is_binary(const layout::Map& map) {
  for (const Digit& digit : map.digits)
    if (!std::has_single_bit(digit.divide) ||
        (digit.modulo != 0 && !std::has_single_bit(digit.modulo)))
      return false;
  return true;
}

// The source of the address bit of weight `weight` (in offsets).
std::optional<AddressBit> source_of(const layout::Map& map, std::uint64_t weight) {
  for (const Digit& digit : map.digits) {
    if (digit.by_cols != 0 || digit.by_rows != 0 || digit.fixed == 0) continue;
    const unsigned bits =
        digit.modulo == 0 ? 31 : static_cast<unsigned>(std::countr_zero(digit.modulo));
    for (unsigned i = 0; i < bits; ++i)
      if (std::uint64_t{digit.fixed} << i == weight)
        return AddressBit{digit.axis, static_cast<unsigned>(std::countr_zero(digit.divide)) + i};
  }
  return std::nullopt;
}

std::uint8_t code_number(const layout::WordCode* code) {
  return code == nullptr ? 0 : code->name == layout::kHopperCode.name ? 1 : 2;
}

struct Found {
  LanePattern pattern{};
  std::array<AddressBit, 5> others{};
  std::size_t count = 0;
};

// Labels of columns count nibbles; in byte maps nibbles stay together and columns begin at label 1.
std::optional<Found> find_pattern(const layout::Map& map) {
  const bool nibbles = map.element == Element::nibble;
  const unsigned shift = nibbles ? 0 : 1;
  Found found;
  found.pattern.code = code_number(map.code);
  for (unsigned i = shift; i < 5; ++i) {
    const std::optional<AddressBit> from = source_of(map, std::uint64_t{1} << (i - shift));
    if (!from) return std::nullopt;
    if (from->axis == Axis::col && from->bit + shift < LanePattern::kOther) {
      found.pattern.source[i] = static_cast<std::uint8_t>(from->bit + shift);
    } else {
      found.pattern.source[i] = static_cast<std::uint8_t>(LanePattern::kOther + found.count);
      found.others[found.count++] = *from;
    }
  }
  return found;
}

// Chunks in a run. Long runs read rows as they lie; where one step does not fill a cache line,
// short ones let the steps that fill the rest of it find it near.
constexpr std::size_t kLong = 128, kShort = 32;
static_assert(kLong <= kernels::cpu::kMaxPassSteps);

// Appends a chunk to the last run, or begins another.
void add_chunk(std::vector<ShufflePlan::Run>& runs, const ShufflePlan::Run& chunk,
               std::size_t longest) {
  ShufflePlan::Run* last = runs.empty() ? nullptr : &runs.back();
  const std::uint64_t distance =
      last == nullptr ? 0 : chunk.offset - last->offset - (last->count - 1) * last->step;
  if (last != nullptr && last->count < longest && (last->count == 1 || distance == last->step)) {
    ++last->count;
    last->step = distance;
  } else {
    runs.push_back(chunk);
  }
}

void add_runs(const IndexMap& map, ShufflePlan& plan) {
  const bool nibbles = map.map().element == Element::nibble;
  const std::uint64_t step = map.col_part(plan.chunk_cols) - map.col_part(0);
  const bool is_sequential = step == (nibbles ? 32 : 16);
  const std::size_t longest = plan.fills_lines() || is_sequential ? kLong : kShort;
  const std::uint64_t row_bytes = nibbles ? map.logical().cols / 2 : map.logical().cols;
  const std::size_t full = row_bytes / plan.chunk_bytes;
  const std::size_t chunks = ceil_div(map.padded().cols, plan.chunk_cols);
  plan.is_whole = map.padded().cols % plan.chunk_cols == 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const ShufflePlan::Run one{.begin = chunk,
                               .count = 1,
                               .offset = map.col_part(chunk * plan.chunk_cols) / (nibbles ? 2 : 1)};
    add_chunk(plan.padded_runs, one, longest);
    if (chunk < full) {
      add_chunk(plan.runs, one, longest);
      continue;
    }
    plan.edge.push_back(one);
    add_chunk(plan.edge_runs, {.begin = chunk - full, .count = 1, .offset = one.offset}, longest);
  }
}

constexpr std::uint64_t kLine = 64;
constexpr std::size_t kMaxForPairs = 8;  // registers; lines alone do without

// Adds passthrough bits: bits 4 to 6 of a byte's address that are neither lane bits nor the
// kernel's own register bits, while registers last. One step then writes a pair of cache lines,
// which is much faster than single lines. Column bits are added only if they complete a line, or a
// pair of lines and divide the row: ragged ends cost more than they bring. If codes' bits are
// scattered (slow), a step writes up to two pairs.
void add_passthrough(const IndexMap& map, const kernels::cpu::ShuffleSet& set, ShufflePlan& plan) {
  const std::uint64_t per_byte = map.map().element == Element::nibble ? 2 : 1;
  const bool moves_lanes = plan.registers > 1, has_code = map.map().code != nullptr;
  for (std::uint64_t byte = kLine / 4; byte <= (has_code ? 2 * kLine : kLine); byte *= 2) {
    const std::optional<AddressBit> from = source_of(map.map(), byte * per_byte);
    if (!from) break;
    const std::uint64_t weight = std::uint64_t{1} << from->bit;
    const bool is_row = from->axis == Axis::row;
    const std::uint64_t rows = is_row ? weight : 0, bytes = is_row ? 0 : plan.chunk_bytes;
    if (!is_row && weight < bytes * per_byte) continue;  // the kernel's own
    const auto divides = [&](std::uint64_t cols, std::uint64_t steps) {
      return cols % (steps * bytes * per_byte) == 0;
    };
    const bool is_near = 2 * rows <= ShufflePlan::kBatch;
    const bool is_possible = is_row ? is_near && map.padded().rows % (2 * rows) == 0
                             : weight != bytes * per_byte ? false
                             : byte >= kLine
                                 ? moves_lanes && divides(map.logical().cols, 2)
                                 : set.widens && divides(map.padded().cols, kLine / byte);
    const std::size_t max = byte < kLine ? set.max_for_lines
                            : has_code   ? set.max_registers
                                         : kMaxForPairs;
    if (!is_possible || plan.registers > max / 2 || plan.passthrough == kMaxPassthrough ||
        plan.kernel->pack[plan.passthrough + 1] == nullptr)
      break;
    for (std::size_t r = 0; r < plan.registers; ++r) {
      plan.row_of[plan.registers + r] = plan.row_of[r] + rows;
      plan.byte_of[plan.registers + r] = plan.byte_of[r] + bytes;
    }
    plan.row_mask |= rows;
    plan.chunk_bytes += bytes;
    plan.registers *= 2;
    ++plan.passthrough;
  }
}

bool has(const LanePattern& pattern, std::uint8_t label) {
  for (const std::uint8_t source : pattern.source)
    if (source == label) return true;
  return false;
}

}  // namespace

bool ShufflePlan::fills_lines() const {
  const auto offsets = std::span(offset_of).first(registers);
  return std::ranges::find(offsets, 16) != offsets.end() &&
         std::ranges::find(offsets, 32) != offsets.end();
}

std::uint64_t ShufflePlan::offset_at(std::size_t number, bool across) const {
  const std::size_t own = registers >> passthrough, groups = std::size_t{1} << passthrough;
  return offset_of[across ? number % groups * own + number / groups : number];
}

kernels::cpu::PackFn ShufflePlan::pack() const {
  const auto is_by_lines = [&](bool across) {
    for (std::size_t number = 0; number < registers; ++number)
      if (offset_at(number, across) !=
          offset_at(number & ~std::size_t{3}, across) + number % 4 * 16)
        return false;
    return registers >= 4;
  };
  for (const bool across : {false, true})
    if (const kernels::cpu::PackFn by_lines = kernel->pack_lines[across ? 1 : 0][passthrough];
        by_lines != nullptr && is_by_lines(across))
      return by_lines;
  return kernel->pack[passthrough];
}

std::optional<ShufflePlan> plan_shuffle(const IndexMap& map, const kernels::cpu::ShuffleSet& set) {
  if (!is_binary(map.map())) return std::nullopt;
  const std::optional<Found> found = find_pattern(map.map());
  if (!found || found->count > 4) return std::nullopt;
  ShufflePlan plan;
  plan.kernel = set.find(found->pattern);
  if (plan.kernel == nullptr) return std::nullopt;

  const bool nibbles = map.map().element == Element::nibble;
  const unsigned shift = nibbles ? 0 : 1;
  plan.registers = std::size_t{1} << found->count;
  plan.chunk_bytes = 16;
  unsigned next_col = LanePattern::kOther - shift;
  for (std::size_t j = 0; j < found->count; ++j) {
    const AddressBit& other = found->others[j];
    const bool is_row = other.axis == Axis::row;
    if (!is_row && other.bit != next_col++) return std::nullopt;
    if (is_row) plan.row_mask |= std::uint64_t{1} << other.bit;
    for (std::size_t r = 0; r < plan.registers; ++r)
      if (((r >> j) & 1) != 0)
        (is_row ? plan.row_of : plan.byte_of)[r] +=
            is_row ? std::uint64_t{1} << other.bit : plan.chunk_bytes;
    if (!is_row) plan.chunk_bytes *= 2;
  }
  if (map.padded().rows % std::bit_ceil(plan.row_mask + 1) != 0) return std::nullopt;
  const std::size_t own = plan.registers;
  add_passthrough(map, set, plan);
  plan.chunk_cols = nibbles ? plan.chunk_bytes * 2 : plan.chunk_bytes;

  const std::uint64_t per_byte = nibbles ? 2 : 1;
  unsigned bit = 0;
  for (std::uint8_t label = static_cast<std::uint8_t>(shift); label < LanePattern::kOther;
       ++label) {
    if (has(found->pattern, label)) continue;
    const std::uint64_t col = std::uint64_t{1} << (label - shift);
    for (std::size_t q = 0; q < plan.registers; ++q)
      if (((q >> bit) & 1) != 0) {
        plan.col_of[q] += col;
        plan.offset_of[q] += map.col_part(col) / per_byte;
      }
    ++bit;
  }
  for (std::size_t q = own; q < plan.registers; ++q) {
    const std::uint64_t col = plan.byte_of[q / own * own] * per_byte;
    plan.col_of[q] += col;
    plan.offset_of[q] += (map.row_part(plan.row_of[q / own * own]) + map.col_part(col)) / per_byte;
  }
  if (!nibbles)
    for (std::size_t lane = 0; lane < 16; ++lane)
      for (unsigned i = 1; i < 5; ++i)
        if (const std::uint8_t label = found->pattern.source[i];
            ((lane >> (i - 1)) & 1) != 0 && label < LanePattern::kOther)
          plan.lane_col[lane] += std::uint64_t{1} << (label - 1);
  add_runs(map, plan);
  // Digits are binary, so bits of the row add up.
  for (std::uint64_t half = 1; half < ShufflePlan::kBatch; half *= 2) {
    const std::uint64_t offset = map.row_part(half) / per_byte;
    for (std::uint64_t row = 0; row < half; ++row)
      plan.row_offset[half + row] = plan.row_offset[row] + offset;
  }
  return plan;
}

}  // namespace fp4moe::convert
