#include "fp4moe/convert/pack_matrix.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "fp4moe/convert/shuffle_plan.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::convert {
namespace {

using kernels::cpu::ShuffleCall;
using layout::Element;
using layout::IndexMap;

const kernels::cpu::ShuffleSet& machine_shuffles() {
  // A setting that cannot be honoured is the caller's to refuse; all kernels give the same bytes.
  static const kernels::cpu::ShuffleSet* const kChosen = [] {
    const Result<platform::Settings> settings = platform::read_settings();
    const auto usable = kernels::cpu::usable_features(platform::detect_cpu_features(),
                                                      settings ? settings->cpu_isa : std::nullopt);
    return &kernels::cpu::pick(kernels::cpu::shuffle_sets(),
                               usable ? *usable : EnumSet<platform::CpuFeature>{});
  }();
  return *kChosen;
}

std::uint64_t row_bytes(const IndexMap& map) {
  const std::uint64_t cols = map.logical().cols;
  return map.map().element == Element::byte ? cols : (cols + 1) / 2;
}

bool is_rows(const layout::Map& map) {
  return map.digits.count == 2 && map.digits.items[0].by_cols == 1 &&
         map.digits.items[0].divide == 1 && map.digits.items[1].fixed == 1 && map.code == nullptr;
}

void translate(const ByteTable& table, const std::byte* from, std::byte* to, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i)
    to[i] = static_cast<std::byte>(table[std::to_integer<std::uint8_t>(from[i])]);
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
    if (to.table != nullptr) translate(*to.table, target, target, row_bytes(map));
  }
}

// --- Whole rows.

void pack_rows(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out) {
  const std::uint64_t real = row_bytes(map), padded = out.size() / map.padded().rows;
  for (std::uint64_t row = 0; row < map.padded().rows; ++row) {
    const std::byte* source = row < from.rows.size() ? from.rows[row] : nullptr;
    std::byte* target = out.data() + row * padded;
    const std::uint64_t filled = source != nullptr ? real : 0;
    if (filled != 0 && from.table != nullptr) translate(*from.table, source, target, real);
    if (filled != 0 && from.table == nullptr) std::memcpy(target, source, real);
    std::memset(target + filled, map.map().padding, padded - filled);
  }
}

void unpack_rows(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to) {
  const std::uint64_t real = row_bytes(map), padded = packed.size() / map.padded().rows;
  for (std::uint64_t row = 0; row < to.rows.size(); ++row) {
    if (to.rows[row] == nullptr) continue;
    std::memcpy(to.rows[row], packed.data() + row * padded, real);
    if (to.table != nullptr) translate(*to.table, to.rows[row], to.rows[row], real);
  }
}

// --- By kernels.

constexpr std::uint64_t kRowsTogether = 128;  // rows and chunks worked on before going on, so that
constexpr std::size_t kChunksTogether = 16;   // storage is written in whole pieces

using Register = std::array<std::uint8_t, 16>;
using Registers = std::array<Register, ShufflePlan::kMost>;

const std::uint8_t* bytes(const std::byte* data) {
  return reinterpret_cast<const std::uint8_t*>(data);
}
std::uint8_t* bytes(std::byte* data) { return reinterpret_cast<std::uint8_t*>(data); }

// Chunks [begin, end) whose places in the storage are equally far apart.
std::size_t run_end(const ShufflePlan& plan, std::size_t begin, std::size_t limit) {
  std::size_t end = begin + 1;
  if (end >= limit) return end;
  const std::uint64_t step = plan.chunk_place[end] - plan.chunk_place[begin];
  while (end < limit && plan.chunk_place[end] - plan.chunk_place[end - 1] == step) ++end;
  return end;
}

// Whether the byte in `lane` of target q of a chunk lies in the padded matrix.
bool is_inside(const IndexMap& map, const ShufflePlan& plan, std::size_t chunk, std::size_t q,
               std::size_t lane) {
  return chunk * plan.chunk_cols + plan.col_of[q] + plan.lane_col[lane] < map.padded().cols;
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
        full_(row_bytes_ / plan.chunk_bytes),
        padding_(row_bytes_ + plan.chunk_bytes, std::byte{map.map().padding}) {
    if (from.table != nullptr) translated_.resize(row_bytes_ * kRowsTogether);
  }

  void run() {
    const std::size_t chunks = plan_.chunk_place.size();
    const std::uint64_t rows = map_.padded().rows;
    for (std::uint64_t first = 0; first < rows; first += kRowsTogether) {
      const std::uint64_t last = std::min(first + kRowsTogether, rows);
      gather_rows(first, last);
      for (std::size_t begin = 0; begin < chunks;) {
        const std::size_t end = std::min(begin + kChunksTogether, chunks);
        for (std::uint64_t row = first; row < last; ++row)
          if ((row & plan_.row_mask) == 0) strip(row, first, begin, end);
        begin = end;
      }
    }
  }

 private:
  // Where rows come from, padding and translation settled. A group of registers never spans two
  // batches: row masks lie below 128.
  void gather_rows(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t row = first; row < last; ++row) {
      const std::byte* source = row < from_.rows.size() ? from_.rows[row] : nullptr;
      if (source != nullptr && from_.table != nullptr) {
        std::byte* copy = translated_.data() + (row - first) * row_bytes_;
        translate(*from_.table, source, copy, row_bytes_);
        source = copy;
      }
      rows_[row - first] = source != nullptr ? source : padding_.data();
    }
  }

  void strip(std::uint64_t row, std::uint64_t first, std::size_t begin, std::size_t end) {
    const std::uint64_t per_byte = map_.map().element == Element::nibble ? 2 : 1;
    place_ = out_ + (map_.map().begin + map_.row_part(row)) / per_byte;
    for (std::size_t r = 0; r < plan_.registers; ++r)
      source_[r] = bytes(rows_[row + plan_.row_of[r] - first]) + plan_.byte_of[r];
    const std::size_t whole = std::min<std::size_t>(end, full_);
    std::size_t at = begin;
    while (at < whole) {
      const std::size_t stop = run_end(plan_, at, whole);
      run_chunks(at, stop);
      at = stop;
    }
    for (; at < end; ++at) edge_chunk(at);
  }

  void run_chunks(std::size_t begin, std::size_t end) {
    const std::uint64_t step =
        end - begin > 1 ? plan_.chunk_place[begin + 1] - plan_.chunk_place[begin] : 0;
    const std::uint8_t* from[ShufflePlan::kMost];
    std::uint8_t* to[ShufflePlan::kMost];
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = source_[r] + begin * plan_.chunk_bytes;
      to[r] = place_ + plan_.chunk_place[begin] + plan_.place_of[r];
    }
    plan_.kernel->pack({from, to, end - begin, plan_.chunk_bytes, step});
  }

  // A chunk that the row, or the padded matrix, does not fill.
  void edge_chunk(std::size_t chunk) {
    Registers in{}, spill{};
    const std::uint8_t* from[ShufflePlan::kMost];
    std::uint8_t* to[ShufflePlan::kMost];
    const std::uint64_t offset = chunk * plan_.chunk_bytes;
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      const std::uint64_t begin = std::min(offset + plan_.byte_of[r], row_bytes_);
      const std::uint64_t size = std::min<std::uint64_t>(row_bytes_ - begin, 16);
      in[r].fill(map_.map().padding);
      std::copy_n(source_[r] + offset, size, in[r].begin());
      from[r] = in[r].data();
    }
    for (std::size_t q = 0; q < plan_.registers; ++q)
      to[q] = is_inside(map_, plan_, chunk, q, 15)
                  ? place_ + plan_.chunk_place[chunk] + plan_.place_of[q]
                  : spill[q].data();
    plan_.kernel->pack({from, to, 1, 0, 0});
    for (std::size_t q = 0; q < plan_.registers; ++q) {
      if (to[q] != spill[q].data()) continue;
      std::uint8_t* target = place_ + plan_.chunk_place[chunk] + plan_.place_of[q];
      for (std::size_t lane = 0; lane < 16; ++lane)
        if (is_inside(map_, plan_, chunk, q, lane)) target[lane] = spill[q][lane];
    }
  }

  const IndexMap& map_;
  const ShufflePlan& plan_;
  const MatrixSource& from_;
  std::uint8_t* out_;
  std::uint64_t row_bytes_;
  std::uint64_t full_;  // chunks that a row fills
  std::vector<std::byte> padding_, translated_{};
  std::array<const std::byte*, kRowsTogether> rows_{};
  std::array<const std::uint8_t*, ShufflePlan::kMost> source_{};
  std::uint8_t* place_ = nullptr;
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
        full_(row_bytes_ / plan.chunk_bytes),
        unwanted_(row_bytes_ + plan.chunk_bytes) {}

  void run() {
    const std::uint64_t rows = map_.padded().rows;
    const std::size_t chunks = (row_bytes_ + plan_.chunk_bytes - 1) / plan_.chunk_bytes;
    for (std::uint64_t first = 0; first < rows; first += kRowsTogether)
      for (std::size_t begin = 0; begin < chunks; begin += kChunksTogether)
        for (std::uint64_t row = first; row < std::min(first + kRowsTogether, rows); ++row)
          if ((row & plan_.row_mask) == 0)
            strip(row, begin, std::min(begin + kChunksTogether, chunks));
    if (to_.table == nullptr) return;
    for (std::byte* row : to_.rows)
      if (row != nullptr) translate(*to_.table, row, row, row_bytes_);
  }

 private:
  void strip(std::uint64_t row, std::size_t begin, std::size_t end) {
    const std::uint64_t per_byte = map_.map().element == Element::nibble ? 2 : 1;
    place_ = packed_ + (map_.map().begin + map_.row_part(row)) / per_byte;
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      const std::uint64_t source = row + plan_.row_of[r];
      std::byte* target = source < to_.rows.size() ? to_.rows[source] : nullptr;
      target_[r] = bytes(target != nullptr ? target : unwanted_.data()) + plan_.byte_of[r];
    }
    std::size_t at = begin;
    const std::size_t whole = std::min<std::size_t>(end, full_);
    while (at < whole) {
      const std::size_t stop = run_end(plan_, at, whole);
      run_chunks(at, stop);
      at = stop;
    }
    for (; at < end; ++at) edge_chunk(at);
  }

  void run_chunks(std::size_t begin, std::size_t end) {
    const std::uint64_t step =
        end - begin > 1 ? plan_.chunk_place[begin + 1] - plan_.chunk_place[begin] : 0;
    const std::uint8_t* from[ShufflePlan::kMost];
    std::uint8_t* to[ShufflePlan::kMost];
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      from[r] = place_ + plan_.chunk_place[begin] + plan_.place_of[r];
      to[r] = target_[r] + begin * plan_.chunk_bytes;
    }
    plan_.kernel->unpack({from, to, end - begin, step, plan_.chunk_bytes});
  }

  void edge_chunk(std::size_t chunk) {
    Registers in{}, out{};
    const std::uint8_t* from[ShufflePlan::kMost];
    std::uint8_t* to[ShufflePlan::kMost];
    for (std::size_t q = 0; q < plan_.registers; ++q) {
      const std::uint8_t* source = place_ + plan_.chunk_place[chunk] + plan_.place_of[q];
      for (std::size_t lane = 0; lane < 16; ++lane)
        if (is_inside(map_, plan_, chunk, q, lane)) in[q][lane] = source[lane];
      from[q] = in[q].data();
      to[q] = out[q].data();
    }
    plan_.kernel->unpack({from, to, 1, 0, 0});
    const std::uint64_t offset = chunk * plan_.chunk_bytes;
    for (std::size_t r = 0; r < plan_.registers; ++r) {
      const std::uint64_t begin = std::min(offset + plan_.byte_of[r], row_bytes_);
      std::copy_n(out[r].begin(), std::min<std::uint64_t>(row_bytes_ - begin, 16),
                  target_[r] + offset);
    }
  }

  const IndexMap& map_;
  const ShufflePlan& plan_;
  const std::uint8_t* packed_;
  const MatrixTarget& to_;
  std::uint64_t row_bytes_;
  std::uint64_t full_;
  std::vector<std::byte> unwanted_;
  std::array<std::uint8_t*, ShufflePlan::kMost> target_{};
  const std::uint8_t* place_ = nullptr;
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
