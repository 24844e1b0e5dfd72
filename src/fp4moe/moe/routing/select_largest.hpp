// The largest keys of a row, in order; ties by index. Keys are integers in float order. Each block
// of 16 keeps its maximum, so a selection reads the maxima and one block. A block is four vectors
// of four, which compilers have on any CPU.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace fp4moe::moe::routing {

inline constexpr std::int32_t kTaken = std::numeric_limits<std::int32_t>::min();

// Order-preserving; -0 and +0 are equal. No float that is not NaN becomes kTaken.
inline std::int32_t ordered(float key) noexcept {
  const auto bits = std::bit_cast<std::int32_t>(key + 0.0f);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
inline float from_ordered(std::int32_t key) noexcept {
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7FFFFFFF));
}

inline constexpr std::size_t kBlock = 16;
using Lanes = std::int32_t __attribute__((vector_size(16)));

inline Lanes lanes_at(const std::int32_t* from) noexcept {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
inline Lanes all_lanes(std::int32_t value) noexcept { return Lanes{value, value, value, value}; }
inline Lanes larger(Lanes a, Lanes b) noexcept { return a > b ? a : b; }
inline std::int32_t largest_lane(Lanes v) noexcept {
  v = larger(v, Lanes{v[2], v[3], v[0], v[1]});
  return std::max(v[0], v[1]);
}
inline Lanes spread_largest(Lanes v) noexcept {  // in every lane
  v = larger(v, Lanes{v[2], v[3], v[0], v[1]});
  return larger(v, Lanes{v[1], v[0], v[3], v[2]});
}
inline std::int32_t largest_of_block(const std::int32_t* block) noexcept {
  return largest_lane(larger(larger(lanes_at(block), lanes_at(block + 4)),
                             larger(lanes_at(block + 8), lanes_at(block + 12))));
}
// Sixteen lanes of masks as sixteen bits.
inline std::uint32_t bits_of(Lanes a, Lanes b, Lanes c, Lanes d) noexcept {
  const Lanes bits = (a & Lanes{1, 2, 4, 8}) | (b & Lanes{16, 32, 64, 128}) |
                     (c & Lanes{256, 512, 1024, 2048}) | (d & Lanes{4096, 8192, 16384, 32768});
  std::uint64_t halves[2];
  std::memcpy(halves, &bits, sizeof halves);
  const std::uint64_t both = halves[0] | halves[1];
  return static_cast<std::uint32_t>(both | both >> 32);
}
// Bit i: block[i] == value.
inline std::uint32_t equal_in_block(const std::int32_t* block, std::int32_t value) noexcept {
  const Lanes wanted = all_lanes(value);
  return bits_of(lanes_at(block) == wanted, lanes_at(block + 4) == wanted,
                 lanes_at(block + 8) == wanted, lanes_at(block + 12) == wanted);
}
// The maximum of the block without that index. Not through memory: a store before the load would
// stall.
inline std::int32_t largest_without(const std::int32_t* block, std::int32_t index) noexcept {
  const Lanes out = all_lanes(index), none = all_lanes(kTaken);
  Lanes max = none;
  Lanes number{0, 1, 2, 3};
  for (std::size_t i = 0; i < kBlock; i += 4) {
    max = larger(max, number == out ? none : lanes_at(block + i));
    number += 4;
  }
  return largest_lane(max);
}

template <std::size_t kMax>
struct LargestSelector {
  static constexpr std::size_t kMaxBlocks = (kMax / kBlock + kBlock - 1) / kBlock * kBlock;

  alignas(64) std::int32_t keys[kMax];
  alignas(64) std::int32_t largest[kMaxBlocks];
  std::size_t blocks = 0;  // a multiple of 16, the last ones perhaps empty

  // After keys[0, count) were written.
  void prepare(std::size_t count) noexcept {
    const std::size_t full = (count + kBlock - 1) / kBlock;
    for (std::size_t i = count; i < full * kBlock; ++i) keys[i] = kTaken;
    for (std::size_t block = 0; block < full; ++block)
      largest[block] = largest_of_block(keys + block * kBlock);
    blocks = (full + kBlock - 1) / kBlock * kBlock;
    for (std::size_t block = full; block < blocks; ++block) largest[block] = kTaken;
  }

  std::int32_t next_key() const noexcept {
    std::int32_t max = kTaken;
    for (std::size_t i = 0; i < blocks; i += kBlock)
      max = std::max(max, largest_of_block(largest + i));
    return max;
  }

  // The place of the first key equal to next_key(), which is then taken.
  std::int32_t take(std::int32_t next) noexcept {
    std::size_t block = 0;
    std::uint32_t equal = equal_in_block(largest, next);
    while (equal == 0 && block + kBlock < blocks) {
      block += kBlock;
      equal = equal_in_block(largest + block, next);
    }
    block += static_cast<std::size_t>(std::countr_zero(equal | 1u << 15));
    std::int32_t* key = keys + block * kBlock;
    const int place = std::countr_zero(equal_in_block(key, next) | 1u << 15);
    largest[block] = largest_without(key, place);
    key[place] = kTaken;
    return static_cast<std::int32_t>(block * kBlock) + place;
  }

  // The next `count` places, at most as many as there are keys, and their keys.
  void take_many(std::size_t count, std::int32_t* places, std::int32_t* taken) noexcept {
    if (blocks == kBlock) return take_within<4>(count, places, taken);
    if (blocks <= 2 * kBlock) return take_within<8>(count, places, taken);
    if (blocks <= 4 * kBlock) return take_within<16>(count, places, taken);
    for (std::size_t j = 0; j < count; ++j) {
      taken[j] = next_key();
      places[j] = take(taken[j]);
    }
  }

  // The largest key below `bound` that is not taken, or kTaken.
  std::int32_t next_below(std::int32_t bound, std::size_t count) const noexcept {
    std::int32_t max = kTaken;
    for (std::size_t i = 0; i < count; ++i) max = std::max(max, keys[i] < bound ? keys[i] : kTaken);
    return max;
  }

 private:
  // The blocks' largest stay in registers. Nothing waits for the place inside the block: its other
  // keys' largest is known without, unless there is an equal one.
  template <std::size_t kVectors>
  void take_within(std::size_t count, std::int32_t* places, std::int32_t* taken) noexcept {
    const Lanes none = all_lanes(kTaken);
    Lanes max[kVectors];
    for (std::size_t i = 0; i < kVectors; ++i)
      max[i] = i * 4 < blocks ? lanes_at(largest + i * 4) : none;
    for (std::size_t j = 0; j < count; ++j) {
      Lanes next = max[0];
      for (std::size_t i = 1; i < kVectors; ++i) next = larger(next, max[i]);
      next = spread_largest(next);
      std::uint64_t equal = 0;
      for (std::size_t i = 0; i < kVectors; i += 4)
        equal |= std::uint64_t{bits_of(max[i] == next, max[i + 1] == next, max[i + 2] == next,
                                       max[i + 3] == next)}
                 << (i * 4);
      const int block = std::countr_zero(equal);
      std::int32_t* key = keys + static_cast<std::size_t>(block) * kBlock;
      const Lanes a = lanes_at(key), b = lanes_at(key + 4), c = lanes_at(key + 8),
                  d = lanes_at(key + 12);
      Lanes others = spread_largest(larger(larger(a == next ? none : a, b == next ? none : b),
                                           larger(c == next ? none : c, d == next ? none : d)));
      const std::uint32_t bits = bits_of(a == next, b == next, c == next, d == next);
      if (!std::has_single_bit(bits)) others = next;
      const int place = std::countr_zero(bits);
      key[place] = kTaken;
      Lanes number{0, 1, 2, 3};
      for (std::size_t i = 0; i < kVectors; ++i) {
        max[i] = number == all_lanes(block) ? others : max[i];
        number += 4;
      }
      places[j] = block * static_cast<std::int32_t>(kBlock) + place;
      taken[j] = next[0];
    }
    for (std::size_t i = 0; i < kVectors && i * 4 < blocks; ++i)
      std::memcpy(largest + i * 4, &max[i], sizeof max[i]);
  }
};

}  // namespace fp4moe::moe::routing
