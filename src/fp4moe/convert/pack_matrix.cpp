#include "fp4moe/convert/pack_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/shuffle_plan.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/kernels/cpu/translation.hpp"

namespace fp4moe::convert {
namespace {

using layout::Element;
using layout::IndexMap;

const kernels::cpu::ShuffleSet& machine_shuffles() {
  static const kernels::cpu::ShuffleSet& chosen =
      kernels::cpu::pick(kernels::cpu::shuffle_sets(), kernels::cpu::machine_features());
  return chosen;
}

std::uint64_t row_bytes(const IndexMap& map) {
  const std::uint64_t cols = map.logical().cols;
  return map.map().element == Element::byte ? cols : (cols + 1) / 2;
}

bool is_rows(const layout::Map& map) {
  return map.digits.count == 2 && map.digits.items[0].by_cols == 1 &&
         map.digits.items[0].divide == 1 && map.digits.items[1].fixed == 1 && map.code == nullptr;
}

// A table made ready for kernels; null where there is none.
class Translator {
 public:
  explicit Translator(const ByteTable* table) {
    if (table != nullptr) made_ = kernels::cpu::make_translation(*table);
  }
  explicit operator bool() const { return made_.has_value(); }
  void operator()(const std::byte* from, std::byte* to, std::size_t size) const {
    machine_shuffles().translate(*made_, reinterpret_cast<const std::uint8_t*>(from),
                                 reinterpret_cast<std::uint8_t*>(to), size);
  }

 private:
  std::optional<kernels::cpu::Translation> made_{};
};

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
      map.set(out, map.slot({row, col}),
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
      const std::uint8_t value = map.get(packed, map.slot({row, col}));
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

// --- Whole rows.

// The first rows of batches of `size` rows, in the order in which their sources lie in memory: gate
// and up rows that alternate there are then fetched once for both, wherever they go.
std::vector<std::uint64_t> batches(const IndexMap& map, const MatrixSource& from,
                                   std::uint64_t size) {
  std::vector<std::pair<std::uintptr_t, std::uint64_t>> order;
  for (std::uint64_t first = 0; first < map.padded().rows; first += size) {
    const std::byte* lowest = nullptr;
    for (std::uint64_t row = first; row < std::min<std::uint64_t>(first + size, from.rows.size());
         ++row)
      if (lowest == nullptr || (from.rows[row] != nullptr && from.rows[row] < lowest))
        lowest = from.rows[row];
    order.emplace_back(reinterpret_cast<std::uintptr_t>(lowest), first);
  }
  std::ranges::sort(order);
  std::vector<std::uint64_t> firsts;
  for (const auto& [address, first] : order) firsts.push_back(first);
  return firsts;
}

constexpr std::uint64_t kRowsTogether = 32;

// Rows that do not follow each other surprise the processor; it is told of them a batch ahead.
void announce(const std::byte* row, std::uint64_t size) {
  for (std::uint64_t line = 0; row != nullptr && line < size; line += 64)
    __builtin_prefetch(row + line, 0, 2);
}

void pack_rows(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out) {
  const std::uint64_t real = row_bytes(map), padded = out.size() / map.padded().rows;
  const Translator translate(from.table);
  const auto source_of = [&](std::uint64_t row) {
    return row < from.rows.size() ? from.rows[row] : nullptr;
  };
  const std::vector<std::uint64_t> order = batches(map, from, kRowsTogether);
  for (std::size_t number = 0; number < order.size(); ++number) {
    const std::uint64_t first = order[number];
    const std::uint64_t next = number + 1 < order.size() ? order[number + 1] : map.padded().rows;
    const std::uint64_t end = std::min(first + kRowsTogether, map.padded().rows);
    for (std::uint64_t row = first; row < end;) {
      const std::byte* source = source_of(row);
      std::byte* target = out.data() + row * padded;
      // Rows that stay together go together.
      std::uint64_t together = 1;
      while (source != nullptr && padded == real && row + together < end &&
             source_of(row + together) == source + together * real)
        ++together;
      const std::uint64_t size = source != nullptr ? together * real : 0;
      if (together == 1) announce(source_of(next + row - first), real);
      if (size != 0 && translate) translate(source, target, size);
      if (size != 0 && !translate) std::memcpy(target, source, size);
      if (size < padded) std::memset(target + size, map.map().padding, padded - size);
      row += together;
    }
  }
}

void unpack_rows(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to) {
  const std::uint64_t real = row_bytes(map), padded = packed.size() / map.padded().rows;
  const Translator translate(to.table);
  for (std::uint64_t row = 0; row < to.rows.size(); ++row) {
    if (to.rows[row] == nullptr) continue;
    std::memcpy(to.rows[row], packed.data() + row * padded, real);
    if (translate) translate(to.rows[row], to.rows[row], real);
  }
}

// --- By kernels.

constexpr std::uint64_t kBatch = ShufflePlan::kBatch;
constexpr std::size_t kMost = ShufflePlan::kMost;
using Register = std::array<std::uint8_t, 16>;

const std::uint8_t* bytes(const std::byte* data) {
  return reinterpret_cast<const std::uint8_t*>(data);
}
std::uint8_t* bytes(std::byte* data) { return reinterpret_cast<std::uint8_t*>(data); }

std::uint64_t per_byte(const IndexMap& map) { return map.map().element == Element::nibble ? 2 : 1; }

// Which bytes of an edge chunk's target registers lie in the padded matrix.
struct EdgeTarget {
  std::array<bool, kMost> is_whole{};
  std::array<std::vector<std::uint8_t>, kMost> lanes{};  // of those that are not
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

// Rows up to this size are copied first: what lies ragged in memory is then read to its padded end
// as if it filled it.
constexpr std::uint64_t kShortRow = 128;
// Those up to this size, of which a strip has too few steps for it, are fetched a batch ahead.
constexpr std::uint64_t kFetchedRow = 512;
// How far ahead of the kernels memory is fetched else.
constexpr std::uint64_t kAhead = std::uint64_t{32} << 10;

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
        fills_rows_(is_short_ && !plan.padded_runs.empty()),
        row_step_(is_short_               ? chunked_
                  : from.table != nullptr ? row_bytes_
                                          : 0),
        padding_(std::max(chunked_, row_bytes_), std::byte{map.map().padding}),
        copies_(kBatch * row_step_, std::byte{map.map().padding}),
        edge_(is_short_ ? 0 : plan.edge.size() * plan.chunk_bytes * kBatch,
              std::byte{map.map().padding}),
        edge_targets_(edge_targets(map, plan)) {
    const std::uint64_t strip =
        runs_.empty() ? kAhead : plan.registers * sizeof(Register) * runs_[0].count;
    strips_ahead_ = ceil_div(kAhead, strip);
  }

  void run() {
    const std::uint64_t rows = map_.padded().rows;
    const std::vector<std::uint64_t> order = batches(map_, from_, kBatch);
    for (std::size_t number = 0; number < order.size(); ++number) {
      const std::uint64_t first = order[number];
      const std::uint64_t count = std::min(kBatch, rows - first);
      gather_rows(first, count, number + 1 < order.size() ? order[number + 1] : rows);
      std::uint8_t* batch = out_ + (map_.map().begin + map_.row_part(first)) / per_byte(map_);
      if (clears_first_) std::memset(batch, 0, count * map_.bytes() / rows);
      strips(batch);
      if (fills_rows_) continue;
      for (const std::uint64_t row : bases_) edge(row, batch + plan_.row_place[row]);
    }
  }

 private:
  // Where one step of the kernel does not fill cache lines, the processor would read each line
  // before it is written in parts, unless it was cleared as a whole. Only for storage that belongs
  // to a batch of rows alone.
  static bool clears_first(const layout::Map& map, const ShufflePlan& plan) {
    if (map.of != 0) return false;
    for (const layout::Digit& digit : map.digits)
      if (digit.by_rows != 0 ||
          (digit.axis == layout::Axis::row && digit.modulo == 0 && digit.divide > kBatch))
        return false;
    const bool is_sequential = std::ranges::all_of(
        plan.runs, [](const auto& run) { return run.step == sizeof(Register); });
    return !plan.fills_lines() && !is_sequential;
  }

  // Where a batch's rows come from, padding and translation settled, and their ends filled up.
  void gather_rows(std::uint64_t first, std::uint64_t count, std::uint64_t next_first) {
    const std::uint64_t end =
        is_short_ || plan_.edge.empty() ? row_bytes_ : plan_.edge[0].begin * plan_.chunk_bytes;
    const std::uint64_t edge_step = plan_.edge.size() * plan_.chunk_bytes;
    bases_.clear();
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::byte* source = first + i < from_.rows.size() ? from_.rows[first + i] : nullptr;
      const std::uint64_t next = next_first + i;
      const std::byte* later = next < from_.rows.size() ? from_.rows[next] : nullptr;
      next_[i] = bytes(later);
      if (is_fetched_) announce(later, row_bytes_);
      if (source != nullptr && row_step_ != 0) {
        std::byte* copy = copies_.data() + i * row_step_;
        if (translate_)
          translate_(source, copy, row_bytes_);
        else
          std::memcpy(copy, source, row_bytes_);
        source = copy;
      }
      rows_[i] = bytes(source != nullptr ? source : padding_.data());
      if (end < row_bytes_)
        std::memcpy(edge_.data() + i * edge_step, rows_[i] + end, row_bytes_ - end);
      if ((i & plan_.row_mask) == 0) bases_.push_back(i);
    }
  }

  struct Strip {
    const ShufflePlan::Run* run = nullptr;
    std::uint64_t row = 0;
  };
  // Strips go by blocks of rows, in a block run by run.
  void strips(std::uint8_t* batch) const {
    std::size_t number = 0;
    for (std::size_t first = 0; first < bases_.size(); first += block_) {
      const std::size_t end = std::min(first + block_, bases_.size());
      for (const ShufflePlan::Run& run : runs_)
        for (std::size_t i = first; i < end; ++i) strip({&run, bases_[i]}, number++, batch);
    }
  }
  Strip strip_at(std::size_t number) const {
    const std::size_t first = number / (block_ * runs_.size()) * block_;
    const std::size_t rest = number - first * runs_.size();
    const std::size_t size = std::min(block_, bases_.size() - first);
    return {&runs_[rest / size], bases_[first + rest % size]};
  }
  // Each row for itself where a step writes whole cache lines; where steps share lines, or pieces
  // of rows are copied to be each other's neighbours, more rows, so that they meet there soon.
  static std::size_t block_size(const ShufflePlan& plan) {
    constexpr std::size_t kPieces = 16;
    return plan.fills_lines() ? 1 : plan.registers == 1 ? kPieces : kBatch;
  }

  // What a later strip reads, row by row; how many rows.
  std::size_t look_ahead(std::size_t number, const std::uint8_t* (&ahead)[kMost]) const {
    if (is_fetched_ || plan_.registers == 1) return 0;
    const std::size_t all = runs_.size() * bases_.size();
    std::size_t later = number + strips_ahead_;
    const bool is_here = later < all;
    if (!is_here) later -= all;
    if (later >= all) return 0;
    const Strip then = strip_at(later);
    std::size_t count = 0;
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      const std::uint8_t* row = (is_here ? rows_ : next_)[then.row + plan_.row_of[r]];
      if (plan_.byte_of[r] == 0 && row != nullptr)
        ahead[count++] = row + then.run->begin * plan_.chunk_bytes;
    }
    return count;
  }

  void strip(const Strip& strip, std::size_t number, std::uint8_t* batch) const {
    const ShufflePlan::Run& run = *strip.run;
    const std::uint8_t* from[kMost];
    std::uint8_t* to[kMost];
    std::uint8_t* place = batch + plan_.row_place[strip.row] + run.place;
    const std::uint64_t offset = run.begin * plan_.chunk_bytes;
    if (is_copied(run.step)) return copy_run(place, rows_[strip.row] + offset, run.count);
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = rows_[strip.row + plan_.row_of[r]] + plan_.byte_of[r] + offset;
      to[r] = place + plan_.place_of[r];
    }
    const std::uint8_t* ahead[kMost];
    kernels::cpu::ShuffleCall call{from, to, run.count, plan_.chunk_bytes, run.step};
    if (const std::size_t parts = look_ahead(number, ahead); parts != 0) {
      call.ahead = ahead;
      call.parts = parts;
    }
    shuffle(call);
  }

  void edge(std::uint64_t row, std::uint8_t* place) const {
    if (plan_.edge_runs.empty())
      for (std::size_t i = 0; i < plan_.edge.size(); ++i) edge_chunk(row, i, place);
    for (const ShufflePlan::Run& run : plan_.edge_runs) {
      const std::uint8_t* from[kMost];
      std::uint8_t* to[kMost];
      for (std::size_t r = 0; r < plan_.registers; ++r) {
        from[r] = edge_of(row + plan_.row_of[r], run.begin) + plan_.byte_of[r];
        to[r] = place + run.place + plan_.place_of[r];
      }
      shuffle({from, to, run.count, plan_.chunk_bytes, run.step});
    }
  }

  // A chunk of the edge's of a row of the batch.
  const std::uint8_t* edge_of(std::uint64_t row, std::size_t number) const {
    return is_short_ ? rows_[row] + plan_.edge[number].begin * plan_.chunk_bytes
                     : bytes(edge_.data()) + (row * plan_.edge.size() + number) * plan_.chunk_bytes;
  }

  void shuffle(const kernels::cpu::ShuffleCall& call) const {
    if (is_copied(call.to_step))
      copy_run(call.to[0], call.from[0], call.count);
    else
      plan_.kernel->pack[plan_.bystanders](call);
  }

  // Whether nothing moves within a run.
  bool is_copied(std::uint64_t step) const {
    return plan_.registers == 1 && step == sizeof(Register);
  }
  static void copy_run(std::uint8_t* to, const std::uint8_t* from, std::size_t count) {
    constexpr std::size_t kLine = 64;
    if (count * sizeof(Register) == kLine)
      std::memcpy(to, from, kLine);  // done before a call would have begun
    else
      std::memcpy(to, from, count * sizeof(Register));
  }

  // A chunk of which the padded matrix has a part.
  void edge_chunk(std::uint64_t row, std::size_t number, std::uint8_t* place) const {
    const EdgeTarget& edge = edge_targets_[number];
    std::array<Register, kMost> spill;
    const std::uint8_t* from[kMost];
    std::uint8_t* to[kMost];
    place += plan_.edge[number].place;
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = edge_of(row + plan_.row_of[r], number) + plan_.byte_of[r];
      to[r] = edge.is_whole[r] ? place + plan_.place_of[r] : spill[r].data();
    }
    plan_.kernel->pack[plan_.bystanders]({from, to, 1, 0, 0});
    for (std::size_t q = 0; q < plan_.registers; ++q)
      for (const std::uint8_t lane : edge.lanes[q])
        place[plan_.place_of[q] + lane] = spill[q][lane];
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
  bool clears_first_ = clears_first(map_.map(), plan_);
  std::size_t block_ = block_size(plan_);
  bool is_fetched_ = row_step_ != 0 || row_bytes_ <= kFetchedRow;
  std::size_t strips_ahead_ = 1;
  std::vector<std::byte> padding_, copies_;
  std::vector<std::byte> edge_;  // of a batch: each row's bytes in the edge chunks
  std::vector<EdgeTarget> edge_targets_;
  std::array<const std::uint8_t*, kBatch> rows_{}, next_{};
  std::vector<std::uint64_t> bases_{};  // rows of the batch that name a strip
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
          if ((row & plan_.row_mask) == 0) strip(row, run, batch + plan_.row_place[row]);
      for (std::size_t i = 0; i < plan_.edge.size(); ++i)
        for (std::uint64_t row = 0; row < count; ++row)
          if ((row & plan_.row_mask) == 0) edge_chunk(row, i, batch + plan_.row_place[row]);
    }
    const Translator translate(to_.table);
    if (!translate) return;
    for (std::byte* row : to_.rows)
      if (row != nullptr) translate(row, row, row_bytes_);
  }

 private:
  void strip(std::uint64_t row, const ShufflePlan::Run& run, const std::uint8_t* place) const {
    const std::uint8_t* from[kMost];
    std::uint8_t* to[kMost];
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = place + run.place + plan_.place_of[r];
      to[r] = rows_[row + plan_.row_of[r]] + plan_.byte_of[r] + run.begin * plan_.chunk_bytes;
    }
    plan_.kernel->unpack[plan_.bystanders]({from, to, run.count, run.step, plan_.chunk_bytes});
  }

  void edge_chunk(std::uint64_t row, std::size_t number, const std::uint8_t* place) const {
    const std::uint64_t offset = plan_.edge[number].begin * plan_.chunk_bytes;
    if (offset >= row_bytes_) return;  // padding alone
    const EdgeTarget& edge = edge_targets_[number];
    std::array<Register, kMost> in{}, out;
    const std::uint8_t* from[kMost];
    std::uint8_t* to[kMost];
    for (std::size_t q = 0; q < plan_.registers; ++q) {
      const std::uint8_t* source = place + plan_.edge[number].place + plan_.place_of[q];
      for (const std::uint8_t lane : edge.lanes[q]) in[q][lane] = source[lane];
      from[q] = edge.is_whole[q] ? source : in[q].data();
      to[q] = out[q].data();
    }
    plan_.kernel->unpack[plan_.bystanders]({from, to, 1, 0, 0});
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
                 Path path) {
  if (path == Path::map) return pack_by_map(map, from, out);
  if (is_rows(map.map())) return pack_rows(map, from, out);
  const std::optional<ShufflePlan> plan = plan_shuffle(map, machine_shuffles());
  if (!plan) return pack_by_map(map, from, out);
  Packer(map, *plan, from, out).run();
}

void unpack_matrix(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to,
                   Path path) {
  if (path == Path::map) return unpack_by_map(map, packed, to);
  if (is_rows(map.map())) return unpack_rows(map, packed, to);
  const std::optional<ShufflePlan> plan = plan_shuffle(map, machine_shuffles());
  if (!plan) return unpack_by_map(map, packed, to);
  Unpacker(map, *plan, packed, to).run();
}

bool has_fast_path(const IndexMap& map) {
  return is_rows(map.map()) || plan_shuffle(map, machine_shuffles()).has_value();
}

}  // namespace fp4moe::convert
