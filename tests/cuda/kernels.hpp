// Launches single kernels of the CUDA engine and reads their results; and computes the routing tables
// on the host.
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
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/decode/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"
#include "fp4moe/kernels/cuda/sm90/types.hpp"
#ifdef FP4MOE_EMULATED_DEVICE
#include "cuda/emulator/device.hpp"
#endif

namespace fp4moe::kernels::cuda::sm90 {

struct Shape {
  std::uint32_t blocks = 1, threads = 1, shared = 0;
  bool is_cooperative = false;
};

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open();
    if (!opened) GTEST_SKIP() << text(opened.why());
    device_ = *opened;
  }
  // The kernels for Hopper, whatever is asked for.
  virtual Result<std::shared_ptr<const Device>> open() const {
#ifdef FP4MOE_EMULATED_DEVICE
    emulator::reset_driver();
    return emulator::open_device();
#else
    return Device::open(0, {.family = Family::sm90});
#endif
  }

  // Memory for `count` values, every byte 0xFF: NaN, and -1.
  template <class T>
  Memory buffer(std::size_t count) const {
    auto result = device_->allocate(std::max<std::size_t>(count * sizeof(T), 16));
    EXPECT_TRUE(result) << text(result.why());
    if (!result) return {};
    EXPECT_TRUE(device_->clear(result->data(), 0xFF, result->size(), nullptr));
    return std::move(*result);
  }
  template <class T>
  Memory upload(const std::vector<T>& values) const {
    Memory result = buffer<T>(values.size());
    EXPECT_TRUE(device_->upload(result.data(), std::as_bytes(std::span(values)), nullptr));
    return result;
  }
  template <class T>
  std::vector<T> download(const Memory& from, std::size_t count) const {
    std::vector<T> result(count);
    EXPECT_TRUE(device_->download(std::as_writable_bytes(std::span(result)), from.data(), nullptr));
    const auto done = device_->wait(nullptr);
    EXPECT_TRUE(done) << text(done.why());
    return result;
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
                                           .is_cooperative = shape.is_cooperative,
                                           .has_pdl = true,
                                           .params = &params},
                                          nullptr);
    ASSERT_TRUE(launched) << text(launched.why());
    const auto done = device_->wait(nullptr);
    ASSERT_TRUE(done) << text(done.why());
  }

  std::shared_ptr<const Device> device_{};
};

// The tables that prepare and gather write, with ranks in the order of assignments.
struct HostTables {
  std::vector<TokenTile> tiles{};
  std::vector<std::int32_t> rank_of_assignment{};
  std::vector<std::uint32_t> expert_counts{};  // [experts][kCounterStride]
  std::vector<std::int32_t> row_of_assignment{}, assignment_of_row{}, expert_of_row{},
      tile_of_row_group{};
};
// expert_of_assignment: local experts, -1: unassigned.
inline HostTables host_tables(const std::vector<std::int32_t>& expert_of_assignment,
                              std::uint32_t experts, std::uint32_t tile_tokens = kMaxTileTokens) {
  HostTables result;
  result.rank_of_assignment.assign(expert_of_assignment.size(), -1);
  result.row_of_assignment.assign(expert_of_assignment.size(), -1);
  std::vector<std::vector<std::int32_t>> assignments_of(experts);
  for (std::size_t s = 0; s < expert_of_assignment.size(); ++s)
    if (expert_of_assignment[s] >= 0)
      assignments_of[static_cast<std::size_t>(expert_of_assignment[s])].push_back(
          static_cast<std::int32_t>(s));
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::vector<std::int32_t>& assignments = assignments_of[e];
    const auto count = static_cast<std::uint32_t>(assignments.size());
    result.expert_counts.resize(result.expert_counts.size() + kCounterStride);
    result.expert_counts[e * kCounterStride] = count;
    for (std::uint32_t i = 0; i < count; ++i)
      result.rank_of_assignment[static_cast<std::size_t>(assignments[i])] = pack_expert_rank(e, i);
    const std::uint32_t groups = (count + 7) / 8;
    const std::uint32_t tiles = (count + tile_tokens - 1) / tile_tokens;
    for (std::uint32_t t = 0, group = 0; t < tiles; ++t) {
      const std::uint32_t size = groups / tiles + (t < groups % tiles ? 1 : 0);
      TokenTile tile;
      tile.expert = static_cast<std::int32_t>(e);
      tile.first_row = static_cast<std::uint32_t>(result.assignment_of_row.size());
      tile.rows = size * 8;
      tile.expert_tiles = tiles;
      for (std::uint32_t i = 0; i < tile.rows; ++i) {
        const bool is_real = group * 8 + i < count;
        if (is_real)
          result.row_of_assignment[static_cast<std::size_t>(assignments[group * 8 + i])] =
              static_cast<std::int32_t>(result.assignment_of_row.size());
        result.assignment_of_row.push_back(is_real ? assignments[group * 8 + i] : -1);
        result.expert_of_row.push_back(is_real ? static_cast<std::int32_t>(e) : -1);
      }
      result.tile_of_row_group.insert(result.tile_of_row_group.end(), size,
                                      static_cast<std::int32_t>(result.tiles.size()));
      result.tiles.push_back(tile);
      group += size;
    }
  }
  return result;
}

// Byte of a row's column in token tiles. `units`: K blocks.
inline std::size_t tile_byte(const HostTables& tables, std::uint32_t row, std::uint32_t column,
                             std::uint32_t units) {
  const TokenTile& tile = tables.tiles[static_cast<std::size_t>(tables.tile_of_row_group[row / 8])];
  const std::uint32_t r = row - tile.first_row;
  return std::size_t{tile.first_row} * units * 128 + std::size_t{column / 64} * tile.rows * 128 +
         r * 128 + ((column % 64 / 8) ^ (r % 8)) * 16 + column % 8 * 2;
}
inline std::uint16_t in_tile(const std::vector<std::uint16_t>& tiles, std::size_t byte) {
  return tiles[byte / 2];
}

// Numbers as a type stores them.
inline float as_stored(ElementType type, float x) {
  if (type == ElementType::bf16) return formats::Bf16::decode(formats::Bf16::encode(x));
  return type == ElementType::f16 ? formats::F16::decode(formats::F16::encode(x)) : x;
}
inline std::vector<std::byte> stored(ElementType type, const std::vector<float>& values) {
  const std::size_t size = type == ElementType::f32 ? 4 : 2;
  std::vector<std::byte> result(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t narrow = type == ElementType::bf16 ? formats::Bf16::encode(values[i])
                                                           : formats::F16::encode(values[i]);
    if (type == ElementType::f32)
      std::copy_n(reinterpret_cast<const std::byte*>(&values[i]), 4, result.data() + 4 * i);
    else
      std::copy_n(reinterpret_cast<const std::byte*>(&narrow), 2, result.data() + 2 * i);
  }
  return result;
}
inline float load_stored(ElementType type, const std::vector<std::byte>& from, std::size_t index) {
  if (type == ElementType::f32) {
    float result = 0;
    std::copy_n(from.data() + 4 * index, 4, reinterpret_cast<std::byte*>(&result));
    return result;
  }
  std::uint16_t code = 0;
  std::copy_n(from.data() + 2 * index, 2, reinterpret_cast<std::byte*>(&code));
  return type == ElementType::bf16 ? formats::Bf16::decode(code) : formats::F16::decode(code);
}

// In [-1, 1) times `size`.
inline std::vector<float> random_values(std::size_t count, std::uint64_t seed, float size = 1) {
  SplitMix64 random(seed);
  std::vector<float> result(count);
  for (float& value : result) value = (2 * random.unit() - 1) * size;
  return result;
}

}  // namespace fp4moe::kernels::cuda::sm90
