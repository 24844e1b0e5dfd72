// The largest keys of a row, one after the other, equal ones by their place. Float keys become
// integers of the same order, so that one comparison decides; blocks of sixteen remember their
// largest, so that taking one looks at the blocks' and at one block's keys only.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
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

template <std::size_t kMost>
struct LargestSelector {
  static constexpr std::size_t kBlock = 16;
  static constexpr std::size_t kMostBlocks = kMost / kBlock;

  alignas(64) std::int32_t keys[kMost];
  alignas(64) std::int32_t largest[kMostBlocks + 8];
  std::size_t blocks = 0;  // a multiple of 8, the last ones perhaps empty

  // After keys[0, count) were written.
  void prepare(std::size_t count) noexcept {
    const std::size_t full = (count + kBlock - 1) / kBlock;
    for (std::size_t i = count; i < full * kBlock; ++i) keys[i] = kTaken;
    for (std::size_t block = 0; block < full; ++block) {
      const std::int32_t* key = keys + block * kBlock;
      std::int32_t most = kTaken;
      for (std::size_t i = 0; i < kBlock; ++i) most = std::max(most, key[i]);
      largest[block] = most;
    }
    blocks = (full + 7) / 8 * 8;
    for (std::size_t block = full; block < blocks; ++block) largest[block] = kTaken;
  }

  std::int32_t next_key() const noexcept {
    std::int32_t most = kTaken;
    for (std::size_t i = 0; i < blocks; ++i) most = std::max(most, largest[i]);
    return most;
  }

  // The place of the first key equal to next_key(), which is then taken.
  std::int32_t take(std::int32_t next) noexcept {
    auto block = static_cast<std::int32_t>(blocks);
    for (std::size_t i = 0; i < blocks; ++i)
      block = std::min(block, largest[i] == next ? static_cast<std::int32_t>(i)
                                                 : static_cast<std::int32_t>(blocks));
    std::int32_t* key = keys + static_cast<std::size_t>(block) * kBlock;
    auto place = static_cast<std::int32_t>(kBlock);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kBlock); ++i)
      place = std::min(place, key[i] == next ? i : static_cast<std::int32_t>(kBlock));
    std::int32_t most = kTaken;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(kBlock); ++i)
      most = std::max(most, i == place ? kTaken : key[i]);
    key[place] = kTaken;
    largest[block] = most;
    return block * static_cast<std::int32_t>(kBlock) + place;
  }

  // The largest key below `bound` that is not taken, or kTaken.
  std::int32_t next_below(std::int32_t bound, std::size_t count) const noexcept {
    std::int32_t most = kTaken;
    for (std::size_t i = 0; i < count; ++i)
      most = std::max(most, keys[i] < bound ? keys[i] : kTaken);
    return most;
  }
};

}  // namespace fp4moe::moe::routing
