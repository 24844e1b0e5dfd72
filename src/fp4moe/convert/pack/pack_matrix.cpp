#include "fp4moe/convert/pack/pack_matrix.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/pack/pack_matrix_rows.hpp"
#include "fp4moe/convert/pack/pack_matrix_staged.hpp"
#include "fp4moe/convert/pack/shuffle_plan.hpp"

namespace fp4moe::convert {
namespace {

using layout::Element;
using layout::IndexMap;

bool is_rows(const layout::Map& map) {
  return map.digits.count == 2 && map.digits.items[0].by_cols == 1 &&
         map.digits.items[0].divide == 1 && map.digits.items[1].fixed == 1 && map.code == nullptr;
}

// --- By the map, element by element.

std::uint8_t element_at(const IndexMap& map, const std::byte* row, std::uint64_t col,
                        const ByteTable* table) {
  const bool nibbles = map.map().element == Element::nibble;
  auto value = std::to_integer<std::uint8_t>(row[nibbles ? col / 2 : col]);
  if (table != nullptr) value = (*table)[value];
  return nibbles ? static_cast<std::uint8_t>((value >> (col % 2 * 4)) & 15) : value;
}

void pack_by_map(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out) {
  for (std::uint64_t row = 0; row < map.padded().rows; ++row) {
    const std::byte* source = row < from.rows.size() ? from.rows[row] : nullptr;
    for (std::uint64_t col = 0; col < map.padded().cols; ++col)
      map.set(out, map.offset({row, col}),
              source != nullptr && col < map.logical().cols
                  ? element_at(map, source, col, from.table)
                  : map.map().padding);
  }
}

void unpack_by_map(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to) {
  const bool nibbles = map.map().element == Element::nibble;
  for (std::uint64_t row = 0; row < to.rows.size(); ++row) {
    std::byte* target = to.rows[row];
    if (target == nullptr) continue;
    for (std::uint64_t col = 0; col < map.logical().cols; ++col) {
      const std::uint8_t value = map.get(packed, map.offset({row, col}));
      if (!nibbles)
        target[col] = std::byte{value};
      else if (col % 2 == 0)
        target[col / 2] = std::byte{value};
      else
        target[col / 2] |= static_cast<std::byte>(value << 4);
    }
    if (to.table != nullptr)
      for (std::uint64_t i = 0; i < row_bytes(map); ++i)
        target[i] = static_cast<std::byte>((*to.table)[std::to_integer<std::uint8_t>(target[i])]);
  }
}

// --- By kernels.

// The first rows of batches of `size` rows, in the order in which their sources lie in memory: gate
// and up rows that alternate there are then fetched once for both, wherever they go.
std::vector<std::uint64_t> batches(const IndexMap& map, const MatrixSource& from,
                                   std::uint64_t size) {
  std::vector<std::pair<std::uintptr_t, std::uint64_t>> order;
  for (std::uint64_t first = 0; first < map.padded().rows; first += size) {
    const std::uint64_t end = std::min<std::uint64_t>(first + size, from.rows.size());
    std::uint64_t row = first;
    while (row < end && from.rows[row] == nullptr) ++row;
    const std::byte* source = row < end ? from.rows[row] : nullptr;
    order.emplace_back(reinterpret_cast<std::uintptr_t>(source), first);
  }
  std::ranges::sort(order);
  std::vector<std::uint64_t> firsts;
  firsts.reserve(order.size());
  for (const auto& [address, first] : order) firsts.push_back(first);
  return firsts;
}

constexpr std::uint64_t kBatch = ShufflePlan::kBatch;
constexpr std::size_t kMax = ShufflePlan::kMax;
using Register = std::array<std::uint8_t, 16>;

const std::uint8_t* bytes(const std::byte* data) {
  return reinterpret_cast<const std::uint8_t*>(data);
}
std::uint8_t* bytes(std::byte* data) { return reinterpret_cast<std::uint8_t*>(data); }

std::uint64_t per_byte(const IndexMap& map) { return map.map().element == Element::nibble ? 2 : 1; }

// Which bytes of an edge chunk's target registers lie in the padded matrix.
struct EdgeTarget {
  std::array<bool, kMax> is_whole{};
  std::array<std::vector<std::uint8_t>, kMax> lanes{};  // of those that are not
};

std::vector<EdgeTarget> edge_targets(const IndexMap& map, const ShufflePlan& plan) {
  std::vector<EdgeTarget> targets(plan.edge.size());
  for (std::size_t i = 0; i < targets.size(); ++i)
    for (std::size_t q = 0; q < plan.registers; ++q) {
      const std::uint64_t first = plan.edge[i].begin * plan.chunk_cols + plan.col_of[q];
      targets[i].is_whole[q] = first + plan.lane_col[15] < map.padded().cols;
      for (std::uint8_t lane = 0; lane < 16; ++lane)
        if (!targets[i].is_whole[q] && first + plan.lane_col[lane] < map.padded().cols)
          targets[i].lanes[q].push_back(lane);
    }
  return targets;
}

// The same as runs of bytes: consecutive bytes of the registers, and their offset from the row's.
struct EdgeBytes {
  std::size_t from = 0, size = 0;
  std::uint64_t to = 0;
};

std::vector<EdgeBytes> edge_bytes(const IndexMap& map, const ShufflePlan& plan) {
  std::vector<EdgeBytes> result;
  const std::vector<EdgeTarget> targets = edge_targets(map, plan);
  for (std::size_t i = 0; i < targets.size(); ++i)
    for (std::size_t q = 0; q < plan.registers; ++q) {
      const std::size_t from = (i * plan.registers + q) * sizeof(Register);
      const std::uint64_t to = plan.edge[i].offset + plan.offset_of[q];
      if (targets[i].is_whole[q]) result.push_back({from, sizeof(Register), to});
      for (const std::uint8_t lane : targets[i].lanes[q]) {
        if (lane != 0 && !result.empty() && result.back().from + result.back().size == from + lane)
          ++result.back().size;
        else
          result.push_back({from + lane, 1, to + lane});
      }
    }
  return result;
}

// Rows up to this size are copied first and padded to whole chunks, so that they have no edge.
constexpr std::uint64_t kShortRow = 128;
// Rows up to this size have segments of too few steps to prefetch anything meanwhile.
constexpr std::uint64_t kFetchedRow = 512;
// How far ahead of the kernels memory is fetched.
constexpr std::uint64_t kAhead = std::uint64_t{32} << 10;
// Segments that are written down before the first of them runs (see PackSegment), about.
constexpr std::size_t kSegmentsTogether = 256;

std::size_t batches_together(const ShufflePlan& plan) {
  constexpr std::size_t kMaxBatches = 8;
  const std::size_t bases = kBatch >> std::popcount(plan.row_mask);
  return std::clamp<std::size_t>(kSegmentsTogether / bases, 1, kMaxBatches);
}

kernels::cpu::PackShape shape_of(const ShufflePlan& plan, bool is_fetched) {
  kernels::cpu::PackShape shape{.row_step = plan.chunk_bytes};
  std::size_t parts = 0;
  for (std::size_t r = 0; r < plan.registers; ++r) {
    shape.row_of[r] = plan.row_of[r];
    shape.byte_of[r] = plan.byte_of[r];
    shape.offset_of[r] = plan.offset_of[r];
    if (plan.byte_of[r] == 0) shape.ahead_of[parts++] = plan.row_of[r];
  }
  std::sort(shape.ahead_of, shape.ahead_of + parts);  // as they lie in memory
  if (!is_fetched) shape.parts = parts;
  return shape;
}

class Packer {
 public:
  Packer(const IndexMap& map, const ShufflePlan& plan, const MatrixSource& from,
         std::span<std::byte> out)
      : map_(map),
        plan_(plan),
        from_(from),
        out_(bytes(out.data())),
        row_bytes_(row_bytes(map)),
        chunked_(ceil_div(map.padded().cols, plan.chunk_cols) * plan.chunk_bytes),
        is_short_(row_bytes_ <= kShortRow),
        fills_rows_(is_short_ && plan.is_whole),
        row_step_(is_short_               ? chunked_
                  : from.table != nullptr ? row_bytes_
                                          : 0),
        padding_(std::max(chunked_, row_bytes_), map.map().padding),
        copies_(kBatch * row_step_, map.map().padding),
        edge_(is_short_ ? 0 : plan.edge.size() * plan.chunk_bytes * kBatch * together_,
              map.map().padding),
        rows_(kBatch * together_),
        next_(rows_.size()),
        edges_(edge_.empty() ? 0 : rows_.size()) {
    const std::uint64_t segment =
        runs_.empty() ? kAhead : plan.registers * sizeof(Register) * runs_[0].count;
    segments_ahead_ = ceil_div(kAhead, segment);
    for (std::size_t i = 0; i < edges_.size(); ++i)
      edges_[i] = edge_.data() + i * plan.edge.size() * plan.chunk_bytes;
    if (has_ragged_edge_) edge_bytes_ = edge_bytes(map, plan);
    for (std::size_t q = 0; q < plan.registers; ++q)
      edge_shape_.offset_of[q] = q * sizeof(Register);
  }

  void run() {
    const std::vector<std::uint64_t> order = batches(map_, from_, kBatch);
    for (std::size_t number = 0; number < order.size(); number += together_) {
      const auto batch_at = [&](std::size_t i) {
        const std::size_t from = std::min(i, order.size());
        return std::span(order).subspan(from, std::min(together_, order.size() - from));
      };
      gather_rows(batch_at(number), batch_at(number + together_));
      if (plan_.registers == 1)
        copy_segments();
      else
        shuffle_segments();
      if (has_ragged_edge_) ragged_edges();
    }
  }

 private:
  // The base row of segments, as an index into rows_, and its address in the storage.
  struct Base {
    std::size_t row = 0;
    std::uint8_t* to = nullptr;
  };

  // True if a batch's storage is cleared first. A CPU reads a line before it is written in parts
  // (by steps that do not fill lines, or with other stores between, as in short rows), unless it
  // was cleared as a whole. Only possible for storage that holds no other rows.
  static bool clears_first(const layout::Map& map, const ShufflePlan& plan, bool is_short) {
    if (map.of != 0) return false;
    for (const layout::Digit& digit : map.digits)
      if (digit.by_rows != 0 ||
          (digit.axis == layout::Axis::row && digit.modulo == 0 && digit.divide > kBatch))
        return false;
    const bool is_sequential = std::ranges::all_of(
        plan.runs, [](const auto& run) { return run.step == sizeof(Register); });
    return is_short || (!plan.fills_lines() && !is_sequential);
  }

  using Batches = std::span<const std::uint64_t>;  // their first rows

  // Sets the sources of some batches' rows, with padding and translation, and their ends
  // filled up.
  void gather_rows(Batches these, Batches later) {
    bases_.clear();
    if (has_next_) rows_.swap(next_);
    std::vector<std::size_t> ends;  // of the batches' bases
    for (std::size_t batch = 0; batch < these.size(); ++batch) {
      const std::uint64_t count = std::min(kBatch, map_.padded().rows - these[batch]);
      std::uint8_t* to = out_ + (map_.map().begin + map_.row_part(these[batch])) / per_byte(map_);
      if (clears_first_) std::memset(to, 0, count * map_.bytes() / map_.padded().rows);
      if (!has_next_) find_rows(sources(these[batch], count), &rows_[batch * kBatch]);
      if (row_step_ != 0) copy_rows(count);
      if (!edges_.empty()) copy_edges(batch * kBatch, count);
      for (std::uint64_t i = 0; i < count; ++i)
        if ((i & plan_.row_mask) == 0)
          bases_.push_back({batch * kBatch + i, to + plan_.row_offset[i]});
      ends.push_back(bases_.size());
    }
    if (block_ == 1) merge_bases(ends);
    for (std::size_t batch = 0; !is_fetched_ && batch < later.size(); ++batch)
      find_rows(sources(later[batch], kBatch), &next_[batch * kBatch]);
    has_next_ = !is_fetched_ && !later.empty();
  }
  // Merges the bases of each two batches by address: gate and up rows that are interleaved in
  // memory are then read together.
  void merge_bases(std::span<const std::size_t> ends) {
    merged_.clear();
    for (std::size_t i = 0; i < ends.size(); i += 2) {
      const std::size_t middle = ends[i], end = ends[std::min(i + 1, ends.size() - 1)];
      for (std::size_t a = i == 0 ? 0 : ends[i - 1], b = middle; a < middle || b < end;)
        merged_.push_back(
            b == end || (a < middle && !std::less<>()(rows_[bases_[b].row], rows_[bases_[a].row]))
                ? bases_[a++]
                : bases_[b++]);
    }
    bases_.swap(merged_);
  }
  std::span<const std::byte* const> sources(std::uint64_t first, std::uint64_t count) const {
    const std::uint64_t begin = std::min<std::uint64_t>(first, from_.rows.size());
    return from_.rows.subspan(begin, std::min(count, from_.rows.size() - begin));
  }
  // A batch's rows, with padding for those that are not there.
  void find_rows(std::span<const std::byte* const> from, const std::uint8_t** rows) const {
    for (std::size_t i = 0; i < kBatch; ++i)
      rows[i] = i < from.size() && from[i] != nullptr ? bytes(from[i]) : padding_.data();
  }
  // Stores of bytes might change any member: what loops need is in variables.
  void copy_rows(std::uint64_t count) {
    const std::uint64_t size = row_bytes_, step = row_step_;
    const std::uint8_t* const padding = padding_.data();
    const std::uint8_t** rows = rows_.data();
    std::uint8_t* to = copies_.data();
    if (translate_)
      for (std::uint64_t i = 0, together = 1; i < count; i += together) {
        for (together = 1; step == size && i + together < count; ++together)
          if (rows[i + together] != rows[i] + together * size) break;
        translate_(rows[i], to + i * step, rows[i] == padding ? 0 : together * size);
      }
    else
      for (std::uint64_t i = 0; i < count; ++i)
        if (rows[i] != padding) copy_short(rows[i], to + i * step, size);
    for (std::uint64_t i = 0; i < count; ++i)
      if (rows[i] != padding) rows[i] = to + i * step;
  }
  // Copies whole registers, the last one over the end of the one before: faster than a memcpy call.
  static void copy_short(const std::uint8_t* from, std::uint8_t* to, std::uint64_t size) {
    constexpr std::uint64_t kStep = sizeof(Register);
    if (size < kStep) {
      std::memcpy(to, from, size);
      return;
    }
    for (std::uint64_t i = 0; i + kStep <= size; i += kStep) std::memcpy(to + i, from + i, kStep);
    std::memcpy(to + size - kStep, from + size - kStep, kStep);
  }
  // Copies what the rows have in the edge's chunks.
  void copy_edges(std::size_t first, std::uint64_t count) {
    const std::uint64_t end = plan_.edge[0].begin * plan_.chunk_bytes;
    const std::uint64_t size = row_bytes_ - std::min(row_bytes_, end);
    const std::uint64_t step = plan_.edge.size() * plan_.chunk_bytes;
    const std::uint8_t* const* rows = &rows_[first];
    std::uint8_t* to = edge_.data() + first * step;
    for (std::uint64_t i = 0; size != 0 && i < count; ++i)
      copy_short(rows[i] + end, to + i * step, size);
  }

  // Segments go by blocks of rows, in a block run by run, then the rows' edges.
  void shuffle_segments() {
    if (!move_segments()) {
      segments_.clear();
      fetching_.clear();
      for (std::size_t first = 0; first < bases_.size(); first += block_) {
        const std::size_t end = std::min(first + block_, bases_.size());
        for (const ShufflePlan::Run& run : runs_)
          for (std::size_t i = first; i < end; ++i) add_segment(bases_[i], run);
        for (std::size_t i = first; has_whole_edge_ && i < end; ++i)
          for (const ShufflePlan::Run& run : plan_.edge_runs) add_edge(bases_[i], run);
      }
      look_ahead();
    }
    plan_.pack()(shape_, segments_.data(), segments_.size());
  }
  // Reuses the segments of the previous batch if these differ in their addresses alone; true if so.
  bool move_segments() {
    const bool are_same = together_ == 1 && is_fetched_ && bases_.size() == moved_.bases;
    const std::ptrdiff_t distance = are_same ? bases_[0].to - moved_.to : 0;
    for (kernels::cpu::PackSegment& segment : segments_) segment.to += distance;
    moved_ = {bases_.size(), bases_.empty() ? nullptr : bases_[0].to};
    return are_same;
  }
  void add_segment(const Base& base, const ShufflePlan::Run& run) {
    const std::uint8_t* const* rows = &rows_[base.row];
    const std::uint64_t begin = run.begin * plan_.chunk_bytes;
    fetching_.push_back(segments_.size());
    segments_.push_back({rows, begin, base.to + run.offset, run.count, run.step, rows, begin});
  }
  void add_edge(const Base& base, const ShufflePlan::Run& run) {
    segments_.push_back(edge_segment(base, run.begin));
    segments_.back().to = base.to + run.offset;
    segments_.back().count = run.count;
    segments_.back().to_step = run.step;
  }
  kernels::cpu::PackSegment edge_segment(const Base& base, std::size_t number) const {
    const std::uint8_t* const* rows = is_short_ ? &rows_[base.row] : &edges_[base.row];
    const std::uint64_t first = is_short_ ? plan_.edge[0].begin : 0;
    const std::uint64_t begin = (first + number) * plan_.chunk_bytes;
    return {.rows = rows, .begin = begin, .count = 1, .ahead = rows, .ahead_begin = begin};
  }
  // Lets each segment but those of edges prefetch what a later one reads.
  void look_ahead() {
    const std::size_t all = is_fetched_ ? 0 : fetching_.size();
    for (std::size_t i = 0; i < all; ++i) {
      const bool is_here = i + segments_ahead_ < all;
      if (!is_here && (!has_next_ || i + segments_ahead_ >= 2 * all)) return;
      const kernels::cpu::PackSegment& then = segments_[fetching_[(i + segments_ahead_) % all]];
      kernels::cpu::PackSegment& now = segments_[fetching_[i]];
      now.ahead = is_here ? then.rows : &next_[static_cast<std::size_t>(then.rows - rows_.data())];
      now.ahead_begin = then.begin;
    }
  }
  // One row if a step writes whole cache lines. If steps share lines, or parts of several rows
  // become neighbors in the output, more rows, so that each line is completed soon.
  static std::size_t block_size(const ShufflePlan& plan) {
    constexpr std::size_t kPieces = 16;
    return plan.fills_lines() ? 1 : plan.registers == 1 ? kPieces : kBatch;
  }

  // Segments in which nothing moves but whole registers.
  void copy_segments() {
    for (std::size_t first = 0; first < bases_.size(); first += block_) {
      const std::size_t end = std::min(first + block_, bases_.size());
      for (const ShufflePlan::Run& run : runs_)
        for (std::size_t i = first; i < end; ++i)
          copy_run(bases_[i], run, rows_[bases_[i].row] + run.begin * plan_.chunk_bytes);
      for (std::size_t i = first; has_whole_edge_ && i < end; ++i)
        for (const ShufflePlan::Run& run : plan_.edge_runs)
          copy_run(bases_[i], run, edge_of(bases_[i].row, run.begin));
    }
  }
  static void copy_run(const Base& base, const ShufflePlan::Run& run, const std::uint8_t* from) {
    constexpr std::size_t kLine = 64;
    std::uint8_t* to = base.to + run.offset;
    if (run.step != sizeof(Register))
      for (std::size_t i = 0; i < run.count; ++i)
        std::memcpy(to + i * run.step, from + i * sizeof(Register), sizeof(Register));
    else if (run.count * sizeof(Register) == kLine)
      std::memcpy(to, from, kLine);  // done before a call would have begun
    else
      std::memcpy(to, from, run.count * sizeof(Register));
  }

  // A chunk of the edge's of a row of the batch.
  const std::uint8_t* edge_of(std::size_t row, std::size_t number) const {
    return is_short_ ? rows_[row] + (plan_.edge[0].begin + number) * plan_.chunk_bytes
                     : edges_[row] + number * plan_.chunk_bytes;
  }

  // Packs chunks that reach beyond the padded matrix into a buffer, and copies its part of them.
  void ragged_edges() {
    const std::size_t size = plan_.edge.size() * plan_.registers * sizeof(Register);
    generated_.resize(bases_.size() * size);
    segments_.clear();
    moved_ = {};
    std::uint8_t* to = generated_.data();
    for (const Base& base : bases_)
      for (std::size_t i = 0; i < plan_.edge.size(); ++i) {
        segments_.push_back(edge_segment(base, i));
        segments_.back().to = to;
        to += plan_.registers * sizeof(Register);
      }
    plan_.kernel->pack[plan_.passthrough](edge_shape_, segments_.data(), segments_.size());
    const std::uint8_t* from = generated_.data();
    for (const Base& base : bases_) {
      std::uint8_t* const target = base.to;
      for (const EdgeBytes& edge : edge_bytes_)
        if (edge.size == sizeof(Register))
          std::memcpy(target + edge.to, from + edge.from, sizeof(Register));
        else
          std::memcpy(target + edge.to, from + edge.from, edge.size);
      from += size;
    }
  }

  const IndexMap& map_;
  const ShufflePlan& plan_;
  const MatrixSource& from_;
  std::uint8_t* out_;
  std::uint64_t row_bytes_;
  std::uint64_t chunked_;  // bytes of a row filled up to whole chunks
  bool is_short_;          // rows are copied, and filled up
  bool fills_rows_;        // so that there is no edge
  std::uint64_t row_step_;
  Translator translate_{from_.table};
  std::span<const ShufflePlan::Run> runs_{fills_rows_ ? plan_.padded_runs : plan_.runs};
  bool clears_first_ = clears_first(map_.map(), plan_, is_short_);
  std::size_t block_ = block_size(plan_);
  bool is_fetched_ = row_step_ != 0 || row_bytes_ <= kFetchedRow;
  std::size_t together_ = clears_first_ || row_step_ != 0 ? 1 : batches_together(plan_);
  std::size_t segments_ahead_ = 1;
  kernels::cpu::PackShape shape_ = shape_of(plan_, is_fetched_), edge_shape_ = shape_;
  bool has_whole_edge_ = !fills_rows_ && plan_.is_whole;
  bool has_ragged_edge_ = !plan_.edge.empty() && !plan_.is_whole;
  std::vector<EdgeBytes> edge_bytes_{};  // of ragged edges
  std::vector<std::uint8_t> generated_{};
  std::vector<std::uint8_t> padding_, copies_;
  std::vector<std::uint8_t> edge_;  // each row's bytes in the edge chunks
  std::vector<const std::uint8_t*> rows_, next_, edges_;
  bool has_next_ = false;
  std::vector<Base> bases_{}, merged_{};
  std::vector<kernels::cpu::PackSegment> segments_{};
  std::vector<std::size_t> fetching_{};  // numbers of the segments that are no edge
  struct {
    std::size_t bases = 0;
    std::uint8_t* to = nullptr;
  } moved_{};  // what segments_ were made for
};

class Unpacker {
 public:
  Unpacker(const IndexMap& map, const ShufflePlan& plan, std::span<const std::byte> packed,
           const MatrixTarget& to)
      : map_(map),
        plan_(plan),
        packed_(bytes(packed.data())),
        to_(to),
        row_bytes_(row_bytes(map)),
        unwanted_(row_bytes_ + plan.chunk_bytes),
        edge_targets_(edge_targets(map, plan)) {}

  void run() {
    const std::uint64_t rows = map_.padded().rows;
    for (std::uint64_t first = 0; first < rows; first += kBatch) {
      const std::uint64_t count = std::min(kBatch, rows - first);
      for (std::uint64_t i = 0; i < count; ++i) {
        std::byte* target = first + i < to_.rows.size() ? to_.rows[first + i] : nullptr;
        rows_[i] = bytes(target != nullptr ? target : unwanted_.data());
      }
      const std::uint8_t* batch =
          packed_ + (map_.map().begin + map_.row_part(first)) / per_byte(map_);
      for (const ShufflePlan::Run& run : plan_.runs)
        for (std::uint64_t row = 0; row < count; ++row)
          if ((row & plan_.row_mask) == 0) segment(row, run, batch + plan_.row_offset[row]);
      for (std::size_t i = 0; i < plan_.edge.size(); ++i)
        for (std::uint64_t row = 0; row < count; ++row)
          if ((row & plan_.row_mask) == 0) edge_chunk(row, i, batch + plan_.row_offset[row]);
    }
    const Translator translate(to_.table);
    if (!translate) return;
    for (std::byte* row : to_.rows)
      if (row != nullptr) translate(row, row, row_bytes_);
  }

 private:
  void segment(std::uint64_t row, const ShufflePlan::Run& run, const std::uint8_t* stored) const {
    const std::uint8_t* from[kMax];
    std::uint8_t* to[kMax];
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = stored + run.offset + plan_.offset_of[r];
      to[r] = rows_[row + plan_.row_of[r]] + plan_.byte_of[r] + run.begin * plan_.chunk_bytes;
    }
    plan_.kernel->unpack[plan_.passthrough]({from, to, run.count, run.step, plan_.chunk_bytes});
  }

  void edge_chunk(std::uint64_t row, std::size_t number, const std::uint8_t* stored) const {
    const std::uint64_t offset = plan_.edge[number].begin * plan_.chunk_bytes;
    if (offset >= row_bytes_) return;  // padding alone
    const EdgeTarget& edge = edge_targets_[number];
    std::array<Register, kMax> in{}, out;
    const std::uint8_t* from[kMax];
    std::uint8_t* to[kMax];
    for (std::size_t q = 0; q < plan_.registers; ++q) {
      const std::uint8_t* source = stored + plan_.edge[number].offset + plan_.offset_of[q];
      for (const std::uint8_t lane : edge.lanes[q]) in[q][lane] = source[lane];
      from[q] = edge.is_whole[q] ? source : in[q].data();
      to[q] = out[q].data();
    }
    plan_.kernel->unpack[plan_.passthrough]({from, to, 1, 0, 0});
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      const std::uint64_t begin = std::min(offset + plan_.byte_of[r], row_bytes_);
      std::copy_n(out[r].begin(), std::min<std::uint64_t>(row_bytes_ - begin, 16),
                  rows_[row + plan_.row_of[r]] + begin);
    }
  }

  const IndexMap& map_;
  const ShufflePlan& plan_;
  const std::uint8_t* packed_;
  const MatrixTarget& to_;
  std::uint64_t row_bytes_;
  std::vector<std::byte> unwanted_;
  std::vector<EdgeTarget> edge_targets_;
  std::array<std::uint8_t*, kBatch> rows_{};
};

}  // namespace

void pack_matrix(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out,
                 PackPath path) {
  if (path == PackPath::map) return pack_by_map(map, from, out);
  if (is_rows(map.map())) return pack_rows(map, from, out);
  if (pack_staged(map, from, out)) return;
  const std::optional<ShufflePlan> plan = plan_shuffle(map, machine_shuffles());
  if (!plan) return pack_by_map(map, from, out);
  Packer(map, *plan, from, out).run();
}

void unpack_matrix(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to,
                   PackPath path) {
  if (path == PackPath::map) return unpack_by_map(map, packed, to);
  if (is_rows(map.map())) return unpack_rows(map, packed, to);
  const std::optional<ShufflePlan> plan = plan_shuffle(map, machine_shuffles());
  if (!plan) return unpack_by_map(map, packed, to);
  Unpacker(map, *plan, packed, to).run();
}

bool has_fast_path(const IndexMap& map) {
  return is_rows(map.map()) || plan_shuffle(map, machine_shuffles()).has_value();
}

}  // namespace fp4moe::convert
