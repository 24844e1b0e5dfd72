// Kernels are slow on short rows, and most row ends are ragged. So rows are copied into a tile,
// padded to whole registers, and shuffled as a matrix of its own in L1; then long runs are copied
// to the output. All tiles share one list of segments.
#include "fp4moe/convert/pack/pack_matrix_staged.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/pack/pack_matrix_rows.hpp"
#include "fp4moe/convert/pack/shuffle_plan.hpp"

namespace fp4moe::convert {
namespace {

using layout::Axis;
using layout::Digit;
using layout::Element;
using layout::IndexMap;

constexpr std::uint64_t kStagedRow = 512;  // bytes; longer rows are read as they lie
constexpr std::uint64_t kRegister = 16;

// The runs of bytes of a tile: at equal distances in the tile's storage and in the matrix's.
struct TileRuns {
  std::uint64_t count = 0, size = 0, from_step = 0, to_step = 0;
};

// One digit depends on the extents: either rows by the number of columns, so that the storage of
// some rows stays together, or columns by the number of rows.
const Digit* outer_digit(const layout::Map& map) {
  const Digit* outer = nullptr;
  for (const Digit& digit : map.digits) {
    if (digit.by_cols == 0 && digit.by_rows == 0) continue;
    const bool is_row = digit.axis == Axis::row;
    if (digit.fixed != 0 || (is_row ? digit.by_rows : digit.by_cols) != 0) return nullptr;
    // Several digits of rows count the same blocks of columns.
    if (outer != nullptr && (outer->axis != digit.axis || !is_row)) return nullptr;
    if (!is_row && digit.modulo != 0) return nullptr;
    outer = &digit;
  }
  return outer;
}

// Rows of a tile: a whole number of the blocks that the map is made of.
std::uint64_t tile_rows(const layout::Map& map) {
  std::uint64_t rows = ShufflePlan::kBatch;
  for (const Digit& digit : map.digits)
    if (digit.axis == Axis::row && digit.by_cols != 0)
      rows = std::max<std::uint64_t>(rows, digit.divide);
  return std::max<std::uint64_t>({rows, map.pad_rows, map.need_rows});
}

using Rows = std::span<const std::byte* const>;

// Inlined, or else some compilers see no effect and leave the calls out.
[[gnu::always_inline]] inline void fetch_rows(Rows rows, std::uint64_t size) {
  constexpr std::uint64_t kLine = 64;
  for (const std::byte* row : rows)
    for (std::uint64_t byte = 0; row != nullptr && byte < size; byte += kLine)
      __builtin_prefetch(row + byte, 0, 2);
}

class StagedPacker {
 public:
  StagedPacker(const IndexMap& map, const IndexMap& tile, const ShufflePlan& plan,
               const Digit& outer, const MatrixSource& from, std::span<std::byte> out)
      : map_(map),
        outer_(outer),
        from_(from),
        out_(reinterpret_cast<std::uint8_t*>(out.data())),
        pack_(plan.kernel->pack_tile[plan.passthrough]),
        tile_rows_(tile.padded().rows),
        size_(row_bytes(map)),
        padding_(ceil_div(map.padded().cols, plan.chunk_cols) * plan.chunk_bytes,
                 map.map().padding),
        overlaps_(may_overlap(plan)),
        end_(from.table != nullptr ? 0 : size_ / plan.chunk_bytes * plan.chunk_bytes),
        end_step_(kRegister + padding_.size() - end_),
        ends_(overlaps_ || end_ == padding_.size() ? 0 : tile_rows_ * end_step_, map.map().padding),
        staged_(tile_rows_ * padding_.size()) {
    shape_.row_step = plan.chunk_bytes;
    std::ranges::copy(plan.offset_of, shape_.offset_of);
    add_segments(tile, plan);
  }

  void run() {
    constexpr std::size_t kTilesAhead = 2;  // tiles: gate's and up's rows may alternate in memory
    const std::vector<std::uint64_t> order = by_address();
    const std::size_t together = segments_.size() / bases_;
    const std::uint64_t share = tile_rows_ / bases_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      gather(order[i]);
      const std::uint64_t ahead =
          i + kTilesAhead < order.size() ? order[i + kTilesAhead] : map_.padded().rows;
      for (std::size_t base = 0; base < bases_; ++base) {
        fetch_rows(sources(ahead + base * share, share), size_);
        pack_(shape_, &segments_[base * together], together);
      }
      flush(order[i]);
    }
  }

 private:
  // The source of a register: a row of the tile, and a byte of that row.
  struct Source {
    std::uint32_t row = 0, byte = 0;
  };

  // True if a row's last chunk may begin within the one before, which spares filling it up: columns
  // follow each other everywhere, and none are added.
  bool may_overlap(const ShufflePlan& plan) const {
    for (const Digit& digit : map_.map().digits)
      if (digit.axis == Axis::col && (digit.divide != 1 || digit.modulo != 0)) return false;
    return from_.table == nullptr && map_.padded().cols == size_ && size_ >= plan.chunk_bytes;
  }

  // The last chunks may write beyond the tile's columns. Those bytes are overwritten later or never
  // copied: segments are in the order of their offsets.
  void add_segments(const IndexMap& tile, const ShufflePlan& plan) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> bases;  // offset, row
    for (std::uint64_t first = 0; first < tile_rows_; first += ShufflePlan::kBatch)
      for (std::uint64_t row = 0; row < ShufflePlan::kBatch; ++row)
        if ((row & plan.row_mask) == 0)
          bases.emplace_back(tile.row_part(first) + plan.row_offset[row], first + row);
    std::ranges::sort(bases);
    for (const auto& [offset, row] : bases)
      for (std::size_t r = 0; r < plan.registers; ++r)
        sources_.push_back({static_cast<std::uint32_t>(row + plan.row_of[r]),
                            static_cast<std::uint32_t>(plan.byte_of[r])});
    rows_.resize(sources_.size());
    bases_ = bases.size();
    for (std::size_t i = 0; !ends_.empty() && i < sources_.size(); ++i)
      row_ends_.push_back(end_of_row(sources_[i].row) + sources_[i].byte);
    const bool has_last = overlaps_ && size_ != end_;
    const ShufflePlan::Run last{.count = 1, .offset = tile.col_part(size_ - plan.chunk_bytes)};
    for (std::size_t i = 0; i < bases.size(); ++i) {
      const auto add = [&](const std::vector<const std::uint8_t*>& rows, std::uint64_t begin,
                           const ShufflePlan::Run& run) {
        segments_.push_back({&rows[i * plan.registers], begin,
                             staged_.data() + bases[i].first + run.offset, run.count, run.step});
      };
      if (end_ != 0)
        for (const ShufflePlan::Run& run : plan.runs) add(rows_, run.begin * plan.chunk_bytes, run);
      if (has_last) add(rows_, size_ - plan.chunk_bytes, last);
      if (!ends_.empty())
        for (const ShufflePlan::Run& run : end_ == 0 ? plan.padded_runs : plan.edge_runs)
          add(row_ends_, run.begin * plan.chunk_bytes, run);
    }
  }

  // The first rows of the tiles, in the order in which their sources lie in memory: gate and up
  // rows that alternate there are then fetched once for both.
  std::vector<std::uint64_t> by_address() const {
    std::vector<std::pair<std::uintptr_t, std::uint64_t>> order;
    for (std::uint64_t first = 0; first < map_.padded().rows; first += tile_rows_) {
      const Rows rows = sources(first, 1);
      order.emplace_back(reinterpret_cast<std::uintptr_t>(rows.empty() ? nullptr : rows[0]), first);
    }
    std::ranges::sort(order);
    std::vector<std::uint64_t> firsts;
    firsts.reserve(order.size());
    for (const auto& [address, first] : order) firsts.push_back(first);
    return firsts;
  }
  Rows sources(std::uint64_t first, std::uint64_t count) const {
    const std::uint64_t begin = std::min<std::uint64_t>(first, from_.rows.size());
    return from_.rows.subspan(begin, std::min(count, from_.rows.size() - begin));
  }
  // With space for a register before it.
  std::uint8_t* end_of_row(std::uint64_t row) { return ends_.data() + row * end_step_ + kRegister; }

  // Sets the sources of a tile's rows, and their ends.
  void gather(std::uint64_t first) {
    Rows rows = sources(first, tile_rows_);
    if (rows.size() < tile_rows_) {
      last_.assign(rows.begin(), rows.end());
      last_.resize(tile_rows_, nullptr);
      rows = last_;
    }
    for (std::size_t i = 0; !ends_.empty() && i < rows.size(); ++i)
      fill_end(reinterpret_cast<const std::uint8_t*>(rows[i]), end_of_row(i));
    const std::uint8_t** to = rows_.data();
    const std::uint8_t* const padding = padding_.data();
    for (const Source& source : sources_) {
      const auto* row = reinterpret_cast<const std::uint8_t*>(rows[source.row]);
      *to++ = (row != nullptr ? row : padding) + source.byte;
    }
  }
  void fill_end(const std::uint8_t* row, std::uint8_t* to) const {
    if (row == nullptr)
      std::memset(to, map_.map().padding, size_ - end_);
    else if (translate_)
      translate_(row, to, size_);
    else
      copy_end(row, to);
  }
  // In registers from the last byte back, the first of which may hold what comes before the end.
  void copy_end(const std::uint8_t* row, std::uint8_t* to) const {
    if (end_ < kRegister) {
      std::memcpy(to, row + end_, size_ - end_);
      return;
    }
    for (std::uint64_t left = size_ - end_, at = size_; left != 0;) {
      at -= kRegister;
      std::memcpy(to + at - end_, row + at, kRegister);
      left -= std::min(left, kRegister);
    }
  }
  TileRuns runs(std::uint64_t rows) const {
    if (outer_.axis == Axis::row) return {1, rows * map_.padded().cols, 0, 0};
    return {map_.padded().cols / outer_.divide, outer_.by_rows * rows, outer_.by_rows * tile_rows_,
            map_.stride(outer_)};
  }
  void flush(std::uint64_t first) {
    const TileRuns part = runs(std::min(tile_rows_, map_.padded().rows - first));
    const std::uint8_t* from = staged_.data();
    std::uint8_t* to = out_ + map_.row_part(first);
    for (std::uint64_t i = 0; i < part.count; ++i, from += part.from_step, to += part.to_step)
      copy_run(from, to, part.size);
  }
  static void copy_run(const std::uint8_t* from, std::uint8_t* to, std::uint64_t size) {
    constexpr std::uint64_t kLine = 64;
    std::uint64_t i = 0;
    for (; i + kLine <= size; i += kLine) std::memcpy(to + i, from + i, kLine);
    for (; i + kRegister <= size; i += kRegister) std::memcpy(to + i, from + i, kRegister);
    for (; i < size; ++i) to[i] = from[i];
  }

  const IndexMap& map_;
  const Digit& outer_;
  const MatrixSource& from_;
  std::uint8_t* out_;
  kernels::cpu::PackTileFn pack_;
  std::uint64_t tile_rows_;
  std::uint64_t size_;                 // of a row of the source
  std::vector<std::uint8_t> padding_;  // a row of it, filled up
  bool overlaps_;
  std::uint64_t end_;  // rows are copied from here to their end; 0 if they are translated
  std::uint64_t end_step_;
  std::size_t bases_ = 0;
  std::vector<std::uint8_t> ends_, staged_;
  Translator translate_{from_.table};
  std::vector<Source> sources_{};  // of the kernel's registers, segment after segment
  std::vector<const std::uint8_t*> rows_{}, row_ends_{};
  std::vector<const std::byte*> last_{};  // rows of a tile that the matrix does not fill
  kernels::cpu::PackShape shape_{};
  std::vector<kernels::cpu::TileSegment> segments_{};
};

}  // namespace

bool pack_staged(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out) {
  if (!machine_shuffles().stages || map.map().element != Element::byte || map.map().of != 0 ||
      row_bytes(map) > kStagedRow)
    return false;
  const Digit* outer = outer_digit(map.map());
  if (outer == nullptr) return false;
  const layout::Extent extent{tile_rows(map.map()), map.padded().cols};
  // On their way while all else is made ready.
  fetch_rows(from.rows.first(std::min<std::size_t>(2 * extent.rows, from.rows.size())),
             row_bytes(map));
  const Result<IndexMap> tile =
      IndexMap::bind(map.map(), {extent.rows, map.logical().cols}, extent);
  if (!tile || tile->padded() != extent) return false;
  kernels::cpu::ShuffleSet set = machine_shuffles();
  set.max_for_lines = set.max_registers;  // lines are completed elsewhere
  const std::optional<ShufflePlan> plan = plan_shuffle(*tile, set);
  if (!plan || plan->registers == 1) return false;
  StagedPacker(map, *tile, *plan, *outer, from, out).run();
  return true;
}

}  // namespace fp4moe::convert
