// How a warpgroup's sums, 64 rows of weights x a tile's tokens, leave the product: some tokens at a
// time are laid down in shared memory, token after token, and written from there 16 bytes a lane,
// so that neighbouring lanes fill whole lines. What an epilogue multiplies by and adds is fetched
// while the product is being computed.
//
// A lane has rows g and g + 8 of its warp's 16 and tokens 2 j and 2 j + 1 of each eight.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"

namespace fp4moe::kernels::cuda::sm90::product {

// A warpgroup's place in shared memory: tokens on their way, then 64 biases and 2 factors.
struct Staging {
  std::uint32_t tokens, bias, factors;  // addresses

  __device__ explicit Staging(std::uint32_t begin)
      : tokens(begin), bias(begin + kStagedTokens), factors(bias + 64 * 4) {}
};

// Whose sums. Nothing is computed of the eights of tokens that a tile has not.
struct Sums {
  Tile tile;
  std::uint32_t group;         // of 64 rows of the matrix
  std::uint32_t barrier;       // of the warpgroup
  std::uint32_t thread, lane;  // of the warpgroup, of the warp
};

// Begins to fetch the numbers of a piece; store() waits for them.
__device__ inline void fetch_numbers(const Product& p, const Sums& of, const Staging& to) {
  if (p.epilogue == Epilogue::raw) return;
  const auto expert = static_cast<std::uint64_t>(of.tile.expert);
  if (of.thread < 64) {
    if (p.matrix.bias == nullptr) return;
    const float* bias = p.matrix.bias + (expert * p.matrix.groups + of.group) * 64;
    cp_async_4(to.bias + of.thread * 4, bias + of.thread);
  } else if (of.thread < 66) {
    const std::uint32_t turn = of.thread - 64;
    const bool is_two = p.epilogue != Epilogue::rounded;  // of gates, of ups
    const float* factors = p.matrix.factor;
    cp_async_4(to.factors + turn * 4, is_two ? factors + 2 * expert + turn : factors + expert);
  }
}

// Of a token alone: what its neighbour holds may be padding.
__device__ inline float swiglu(float gate, float up, const Product& p, float raise) {
  const float low = fminf(gate, p.limit), held = fmaxf(fminf(up, p.limit), -p.limit);
  const float sigmoid = rcp_approx(1.0f + exp2_approx(-1.44269504f * p.alpha * low));
  return low * sigmoid * fmaf(held, raise, p.beta * raise);
}

struct Two {
  float first, second;
};

// h of 32 columns, half a unit of tiles: a warp has eight of them.
struct Hidden {
  Two factor, bias;  // of gates, of ups
  std::uint8_t* to;
  std::uint32_t half;  // of the unit
  bool is_alone;       // the other half has no rows: it is to be zero

  __device__ Hidden(const Product& p, const Sums& of, const Staging& from) {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
    factor = {ld_shared_f32(from.factors) * p.input_factor,
              ld_shared_f32(from.factors + 4) * p.input_factor};
    bias = {0.0f, 0.0f};
    if (p.matrix.bias != nullptr)
      bias = {ld_shared_f32(from.bias + row * 4), ld_shared_f32(from.bias + row * 4 + 32)};
    half = of.group % 2;
    to = static_cast<std::uint8_t*>(p.out) + std::uint64_t{of.tile.first_row} * p.out_units * 128 +
         std::uint64_t{of.group / 2} * of.tile.rows * 128;
    is_alone = half == 0 && of.group + 1 == p.matrix.groups;
  }
  // Of two tokens, from gates and ups.
  __device__ Two of(const Product& p, const float* four, float raise) const {
    const auto h = [&](float gate, float up) {
      return swiglu(gate * factor.first + bias.first, up * factor.second + bias.second, p, raise);
    };
    return {h(four[0], four[2]), h(four[1], four[3])};
  }
  // Eight columns of a token.
  __device__ void write(std::uint32_t token, std::uint32_t chunk, const uint4& words) const {
    const std::uint32_t at = (half * 4 + chunk) ^ token % 8;
    auto* row = reinterpret_cast<uint4*>(to + token * 128);
    row[at] = words;
    if (is_alone) row[at ^ 4] = {0, 0, 0, 0};
  }
};

template <int room>
struct HiddenStore {
  static constexpr std::uint32_t kTokens = room * 2 < 64 ? room * 2 : 64;  // at once
  Hidden hidden;

  __device__ HiddenStore(const Product& p, const Sums& of, const Staging& from)
      : hidden(p, of, from) {}
  static __device__ std::uint32_t place(std::uint32_t token, std::uint32_t chunk) {
    return token * 64 + (chunk ^ (token / 2 % 4)) * 16;
  }
  __device__ void lay_down(const Product& p, const Sums& of, const Staging& space,
                           const float (&sums)[room], std::uint32_t first) const {
#pragma unroll
    for (std::uint32_t t = 0; t < kTokens; t += 32) {
      if (first + t >= of.tile.rows) break;
      std::uint32_t made[4] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t at = first + t + 8 * i;
        if (at >= 2 * room || at >= of.tile.rows) break;
        const Two h = hidden.of(p, sums + at / 2, p.raise);
        made[i] = pack_bf16x2(h.first, h.second);
      }
      stmatrix_x4_trans(space.tokens + place(t + of.lane, of.thread / 32), made);
    }
  }
  __device__ void write(const Product&, const Sums& of, const Staging& space,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 4;
#pragma unroll
    for (std::uint32_t t = of.thread / 4; t < kTokens; t += 32) {
      if (first + t >= of.tile.rows) break;
      hidden.write(first + t, chunk, ld_shared_16(space.tokens + place(t, chunk)));
    }
  }
};

// Quantised: columns of a block are in neighbouring lanes when they are written.
template <int room>
struct PlacedStore {
  static constexpr std::uint32_t kTokens = 32;
  Hidden hidden;
  Layer layer{};  // as far as quantisers look
  float global;

  __device__ PlacedStore(const Product& p, const Sums& of, const Staging& from)
      : hidden(p, of, from) {
    layer.quantise = p.hidden.quantise;
    layer.activations_in_bf16 = p.hidden.activations_in_bf16;
    global = scale_of(p.hidden.scales, p.hidden.scales_each != 0,
                      static_cast<std::uint32_t>(of.tile.expert));
  }
  static __device__ std::uint32_t place(std::uint32_t token, std::uint32_t chunk) {
    return token * 128 + (chunk ^ (token / 2 % 4)) * 32;
  }
  __device__ void lay_down(const Product& p, const Sums& of, const Staging& space,
                           const float (&sums)[room], std::uint32_t first) const {
    const std::uint32_t column = of.lane / 4, chunk = of.thread / 32;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t at = first + 8 * i;
      if (at >= 2 * room || at >= of.tile.rows) break;
      Two h = hidden.of(p, sums + at / 2, 1.0f);
      if (p.hidden.middle != Middle::none)
        h = {rounded_to_bf16(h.first), rounded_to_bf16(h.second)};
      const std::uint32_t token = 8 * i + of.lane % 4 * 2;
      st_shared_f32(space.tokens + place(token, chunk) + column * 4, h.first);
      st_shared_f32(space.tokens + place(token + 1, chunk) + column * 4, h.second);
    }
  }
  __device__ void write(const Product& p, const Sums& of, const Staging& space,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 4, token = of.thread / 4;
    const uint4 low = ld_shared_16(space.tokens + place(token, chunk));
    const uint4 high = ld_shared_16(space.tokens + place(token, chunk) + 16);
    const sm90::Piece h{{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z),
                         __uint_as_float(low.w), __uint_as_float(high.x), __uint_as_float(high.y),
                         __uint_as_float(high.z), __uint_as_float(high.w)}};
    const float amax = block_amax(layer.quantise, h);
    if (first + token >= of.tile.rows) return;
    hidden.write(first + token, chunk,
                 to_bf16(raised(placed_piece(layer, h, amax, global), p.raise)));
  }
};

// Sums with factor and bias in bf16: a warp has 16 columns.
template <int room>
struct RoundedStore {
  static constexpr std::uint32_t kTokens = 32;
  float factor;
  Two bias;  // of rows g, g + 8
  std::uint8_t* to;
  std::uint64_t stride;

  __device__ RoundedStore(const Product& p, const Sums& of, const Staging& from) {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
    factor = ld_shared_f32(from.factors) * p.input_factor;
    bias = {0.0f, 0.0f};
    if (p.matrix.bias != nullptr)
      bias = {ld_shared_f32(from.bias + row * 4), ld_shared_f32(from.bias + row * 4 + 32)};
    stride = std::uint64_t{p.matrix.groups} * 128;
    to = static_cast<std::uint8_t*>(p.out) + of.tile.first_row * stride + of.group * 128;
  }
  static __device__ std::uint32_t place(std::uint32_t token, std::uint32_t chunk) {
    return token * 128 + (chunk ^ token % 8) * 16;
  }
  __device__ void lay_down(const Product&, const Sums& of, const Staging& space,
                           const float (&sums)[room], std::uint32_t first) const {
    const std::uint32_t token = of.lane / 16 * 8 + of.lane % 8;
    const std::uint32_t chunk = of.thread / 32 * 2 + of.lane / 8 % 2;
#pragma unroll
    for (std::uint32_t t = 0; t < kTokens; t += 16) {
      if (first + t >= of.tile.rows) break;
      std::uint32_t made[4] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t at = first + t + i / 2 * 8;
        if (at >= 2 * room) break;
        const float* two = sums + (first + t) / 2 + 2 * i;
        const float add = i % 2 == 0 ? bias.first : bias.second;
        made[i] = pack_bf16x2(two[0] * factor + add, two[1] * factor + add);
      }
      stmatrix_x4_trans(space.tokens + place(t + token, chunk), made);
    }
  }
  __device__ void write(const Product&, const Sums& of, const Staging& space,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 8;
#pragma unroll
    for (std::uint32_t t = of.thread / 8; t < kTokens; t += 16) {
      if (first + t >= of.tile.rows) break;
      reinterpret_cast<uint4*>(to + (first + t) * stride)[chunk] =
          ld_shared_16(space.tokens + place(t, chunk));
    }
  }
};

// Sums in float32.
template <int room>
struct RawStore {
  static constexpr std::uint32_t kTokens = 16;
  float lower;
  std::uint8_t* to;
  std::uint64_t stride;

  __device__ RawStore(const Product& p, const Sums& of, const Staging&) {
    lower = 1.0f / p.raise;
    stride = std::uint64_t{p.matrix.groups} * 256;
    to = static_cast<std::uint8_t*>(p.out) + of.tile.first_row * stride + of.group * 256;
  }
  static __device__ std::uint32_t place(std::uint32_t token, std::uint32_t column) {
    return token * 256 + (column ^ token / 2 % 4 * 8) * 4;
  }
  __device__ void lay_down(const Product&, const Sums& of, const Staging& space,
                           const float (&sums)[room], std::uint32_t first) const {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
#pragma unroll
    for (std::uint32_t i = 0; i < kTokens / 2; ++i) {
      const std::uint32_t at = first + i / 4 * 8;
      if (at >= 2 * room || at >= of.tile.rows) break;
      const std::uint32_t token = i / 4 * 8 + of.lane % 4 * 2 + i % 2;
      st_shared_f32(space.tokens + place(token, row + i / 2 % 2 * 8), sums[first / 2 + i] * lower);
    }
  }
  __device__ void write(const Product&, const Sums& of, const Staging& space,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 16;
#pragma unroll
    for (std::uint32_t t = of.thread / 16; t < kTokens; t += 8) {
      if (first + t >= of.tile.rows) break;
      reinterpret_cast<uint4*>(to + (first + t) * stride)[chunk] =
          ld_shared_16(space.tokens + place(t, chunk * 4));
    }
  }
};

template <class Store, int room>
__device__ inline void store_by(const Product& p, const Sums& of, const Staging& space,
                                const float (&sums)[room]) {
  const Store store(p, of, space);
#pragma unroll
  for (std::uint32_t first = 0; first < room * 2; first += Store::kTokens) {
    if (first >= of.tile.rows) break;
    store.lay_down(p, of, space, sums, first);
    named_barrier_sync(of.barrier, 128);
    store.write(p, of, space, first);
    // Before tokens are laid down there again; of the next piece they are behind its first wait.
    if (first + Store::kTokens < of.tile.rows) named_barrier_sync(of.barrier, 128);
  }
}

// All threads of the warpgroup.
template <int room>
__device__ inline void store(const Product& p, const Sums& of, const Staging& space,
                             const float (&sums)[room]) {
  cp_async_wait_all();
  named_barrier_sync(of.barrier, 128);
  if (p.epilogue == Epilogue::hidden)
    store_by<HiddenStore<room>>(p, of, space, sums);
  else if (p.epilogue == Epilogue::placed)
    store_by<PlacedStore<room>>(p, of, space, sums);
  else if (p.epilogue == Epilogue::raw)
    store_by<RawStore<room>>(p, of, space, sums);
  else
    store_by<RoundedStore<room>>(p, of, space, sums);
}

}  // namespace fp4moe::kernels::cuda::sm90::product
