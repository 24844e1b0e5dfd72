// Launches single kernels of the CUDA engine and reads what they made; and the tables of sort,
// computed plainly.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct Shape {
  std::uint32_t blocks = 1, threads = 1, shared = 0;
};

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open();
    if (!opened) GTEST_SKIP() << text(opened.why());
    device_ = *opened;
  }
  virtual Result<std::shared_ptr<const Device>> open() const { return Device::open(0); }

  // Memory for `count` values, every byte 0xFF: NaN, and -1.
  template <class T>
  Memory room(std::size_t count) const {
    auto made = device_->allocate(std::max<std::size_t>(count * sizeof(T), 16));
    EXPECT_TRUE(made) << text(made.why());
    if (!made) return {};
    EXPECT_TRUE(device_->clear(made->data(), 0xFF, made->size(), nullptr));
    return std::move(*made);
  }
  template <class T>
  Memory upload(const std::vector<T>& values) const {
    Memory made = room<T>(values.size());
    EXPECT_TRUE(device_->upload(made.data(), std::as_bytes(std::span(values)), nullptr));
    return made;
  }
  template <class T>
  std::vector<T> download(const Memory& from, std::size_t count) const {
    std::vector<T> made(count);
    EXPECT_TRUE(device_->download(std::as_writable_bytes(std::span(made)), from.data(), nullptr));
    const auto done = device_->wait(nullptr);
    EXPECT_TRUE(done) << text(done.why());
    return made;
  }

  template <class Params>
  void run(const char* name, const Params& params, Shape shape) const {
    const auto function = device_->function(name);
    ASSERT_TRUE(function) << text(function.why());
    ASSERT_TRUE(device_->allow_shared(*function, shape.shared));
    const auto launched = device_->launch({.function = *function,
                                           .blocks = shape.blocks,
                                           .threads = shape.threads,
                                           .shared_bytes = shape.shared,
                                           .overlaps = true,
                                           .params = &params},
                                          nullptr);
    ASSERT_TRUE(launched) << text(launched.why());
    const auto done = device_->wait(nullptr);
    ASSERT_TRUE(done) << text(done.why());
  }

  std::shared_ptr<const Device> device_{};
};

// What prepare and gather make of slots, ranks in their order; rows and tiles as params.hpp says.
struct PlainTables {
  std::vector<Tile> tiles{};
  std::vector<std::int32_t> rank_of_slot{};
  std::vector<std::uint32_t> totals{};  // [experts][kApart]
  std::vector<std::int32_t> row_of_slot{}, slot_of_row{}, expert_of_row{}, tile_of_row{};
};
// expert_of_slot: local positions, -1: nobody's.
inline PlainTables plain_tables(const std::vector<std::int32_t>& expert_of_slot,
                                std::uint32_t experts, std::uint32_t tile_tokens = kTileTokens) {
  PlainTables made;
  made.rank_of_slot.assign(expert_of_slot.size(), -1);
  made.row_of_slot.assign(expert_of_slot.size(), -1);
  std::vector<std::vector<std::int32_t>> slots_of(experts);
  for (std::size_t s = 0; s < expert_of_slot.size(); ++s)
    if (expert_of_slot[s] >= 0)
      slots_of[static_cast<std::size_t>(expert_of_slot[s])].push_back(static_cast<std::int32_t>(s));
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::vector<std::int32_t>& slots = slots_of[e];
    const auto count = static_cast<std::uint32_t>(slots.size());
    made.totals.resize(made.totals.size() + kApart);
    made.totals[e * kApart] = count;
    for (std::uint32_t i = 0; i < count; ++i)
      made.rank_of_slot[static_cast<std::size_t>(slots[i])] = ranked(e, i);
    const std::uint32_t groups = (count + 7) / 8;
    const std::uint32_t tiles = (count + tile_tokens - 1) / tile_tokens;
    for (std::uint32_t t = 0, group = 0; t < tiles; ++t) {
      const std::uint32_t size = groups / tiles + (t < groups % tiles ? 1 : 0);
      Tile tile;
      tile.expert = static_cast<std::int32_t>(e);
      tile.first_row = static_cast<std::uint32_t>(made.slot_of_row.size());
      tile.rows = size * 8;
      tile.tiles = tiles;
      for (std::uint32_t i = 0; i < tile.rows; ++i) {
        const bool is_real = group * 8 + i < count;
        if (is_real)
          made.row_of_slot[static_cast<std::size_t>(slots[group * 8 + i])] =
              static_cast<std::int32_t>(made.slot_of_row.size());
        made.slot_of_row.push_back(is_real ? slots[group * 8 + i] : -1);
        made.expert_of_row.push_back(is_real ? static_cast<std::int32_t>(e) : -1);
      }
      made.tile_of_row.insert(made.tile_of_row.end(), size,
                              static_cast<std::int32_t>(made.tiles.size()));
      made.tiles.push_back(tile);
      group += size;
    }
  }
  return made;
}

// Byte of a row's column in tiles of `units`.
inline std::size_t tile_byte(const PlainTables& tables, std::uint32_t row, std::uint32_t column,
                             std::uint32_t units) {
  const Tile& tile = tables.tiles[static_cast<std::size_t>(tables.tile_of_row[row / 8])];
  const std::uint32_t r = row - tile.first_row;
  return std::size_t{tile.first_row} * units * 128 + std::size_t{column / 64} * tile.rows * 128 +
         r * 128 + ((column % 64 / 8) ^ (r % 8)) * 16 + column % 8 * 2;
}
inline std::uint16_t in_tile(const std::vector<std::uint16_t>& tiles, std::size_t byte) {
  return tiles[byte / 2];
}

// Numbers as a type stores them.
inline float as_stored(Type type, float x) {
  if (type == Type::bf16) return formats::Bf16::decode(formats::Bf16::encode(x));
  return type == Type::f16 ? formats::F16::decode(formats::F16::encode(x)) : x;
}
inline std::vector<std::byte> stored(Type type, const std::vector<float>& values) {
  const std::size_t size = type == Type::f32 ? 4 : 2;
  std::vector<std::byte> made(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t narrow =
        type == Type::bf16 ? formats::Bf16::encode(values[i]) : formats::F16::encode(values[i]);
    if (type == Type::f32)
      std::copy_n(reinterpret_cast<const std::byte*>(&values[i]), 4, made.data() + 4 * i);
    else
      std::copy_n(reinterpret_cast<const std::byte*>(&narrow), 2, made.data() + 2 * i);
  }
  return made;
}
inline float load_stored(Type type, const std::vector<std::byte>& from, std::size_t index) {
  if (type == Type::f32) {
    float made = 0;
    std::copy_n(from.data() + 4 * index, 4, reinterpret_cast<std::byte*>(&made));
    return made;
  }
  std::uint16_t code = 0;
  std::copy_n(from.data() + 2 * index, 2, reinterpret_cast<std::byte*>(&code));
  return type == Type::bf16 ? formats::Bf16::decode(code) : formats::F16::decode(code);
}

// In [-1, 1) times `size`.
inline std::vector<float> random_values(std::size_t count, std::uint64_t seed, float size = 1) {
  SplitMix64 random(seed);
  std::vector<float> made(count);
  for (float& value : made) value = (2 * random.unit() - 1) * size;
  return made;
}

}  // namespace fp4moe::kernels::cuda::sm90
