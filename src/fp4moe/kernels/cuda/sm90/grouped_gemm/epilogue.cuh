// The epilogue of a math warpgroup: accumulators (64 rows of weights x the tokens of a tile) become
// the output of the GEMM.
//
//   registers ─► stage(): some tokens at a time into shared memory, token after token
//             ─► write(): 16 bytes per lane to global memory; neighboring lanes fill whole lines
//
// Factors and biases are fetched while the tensor cores multiply. A lane has rows g and g + 8 of the
// 16 rows of its warp, and tokens 2 j and 2 j + 1 of each row group of 8 (g = lane / 4, j = lane % 4).
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// Addresses of a warpgroup's epilogue buffer.
struct EpilogueBuffer {
  std::uint32_t tokens, bias, factors;

  __device__ explicit EpilogueBuffer(std::uint32_t begin)
      : tokens(begin),
        bias(begin + SharedStorage::kEpilogueBias),
        factors(begin + SharedStorage::kEpilogueFactors) {}
};

// The sums that a warpgroup has computed. Row groups that the tile does not have are not computed.
struct OutputTile {
  TokenTile tile;
  std::uint32_t m_block;
  std::uint32_t barrier;       // named barrier of the warpgroup
  std::uint32_t thread, lane;  // of the warpgroup, of the warp
};

// Starts the copies of factors and biases; store() waits for them.
__device__ inline void fetch_factors(const Gemm& p, const OutputTile& of,
                                     const EpilogueBuffer& to) {
  if (p.epilogue == Epilogue::raw_f32) return;
  const auto expert = static_cast<std::uint64_t>(of.tile.expert);
  if (of.thread < kBlockM) {
    if (p.matrix.bias == nullptr) return;
    const float* bias = p.matrix.bias + (expert * p.matrix.m_blocks + of.m_block) * kBlockM;
    cp_async_4(to.bias + of.thread * 4, bias + of.thread);
  } else if (of.thread < kBlockM + 2) {
    const std::uint32_t projection = of.thread - kBlockM;  // gate, up
    const bool has_two = p.epilogue != Epilogue::scaled_bf16;
    const float* factors = p.matrix.factor;
    cp_async_4(to.factors + projection * 4,
               has_two ? factors + 2 * expert + projection : factors + expert);
  }
}

struct Float2 {
  float first, second;
};

// An M block of w13 gives 32 columns of h, half a K block of the token tiles of h. A warp has eight
// of them.
struct HiddenColumns {
  Float2 factor, bias;  // gate, up
  std::uint8_t* to;
  std::uint32_t half;  // of the K block
  bool is_only_half;   // no M block writes the other half: it becomes 0

  __device__ HiddenColumns(const Gemm& p, const OutputTile& of, const EpilogueBuffer& from) {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
    factor = {ld_shared_f32(from.factors) * p.input_factor,
              ld_shared_f32(from.factors + 4) * p.input_factor};
    bias = {0.0f, 0.0f};
    if (p.matrix.bias != nullptr)
      bias = {ld_shared_f32(from.bias + row * 4), ld_shared_f32(from.bias + row * 4 + 32)};
    half = of.m_block % 2;
    to = static_cast<std::uint8_t*>(p.out) +
         std::uint64_t{of.tile.first_row} * p.out_k_blocks * 128 +
         std::uint64_t{of.m_block / 2} * of.tile.rows * 128;
    is_only_half = half == 0 && of.m_block + 1 == p.matrix.m_blocks;
  }
  // h of two tokens, from their gates and ups.
  __device__ Float2 activate(const Gemm& p, const float* sums, float prescale) const {
    const auto h = [&](float gate, float up) {
      return swiglu(gate * factor.first + bias.first, up * factor.second + bias.second, p.alpha,
                    p.beta, p.limit, prescale);
    };
    return {h(sums[0], sums[2]), h(sums[1], sums[3])};
  }
  // Eight columns of a token.
  __device__ void write(std::uint32_t token, std::uint32_t chunk, const uint4& words) const {
    const std::uint32_t at = (half * 4 + chunk) ^ token % 8;
    auto* row = reinterpret_cast<uint4*>(to + token * 128);
    row[at] = words;
    if (is_only_half) row[at ^ 4] = {0, 0, 0, 0};
  }
};

// Epilogue::swiglu.
template <int accumulators>
struct SwigluStore {
  static constexpr std::uint32_t kTokens =
      accumulators * 2 < 64 ? accumulators * 2 : 64;  // at once
  HiddenColumns hidden;

  __device__ SwigluStore(const Gemm& p, const OutputTile& of, const EpilogueBuffer& from)
      : hidden(p, of, from) {}
  // Swizzled: 4 chunks of 16 bytes per token.
  static __device__ std::uint32_t offset(std::uint32_t token, std::uint32_t chunk) {
    return token * 64 + (chunk ^ (token / 2 % 4)) * 16;
  }
  __device__ void stage(const Gemm& p, const OutputTile& of, const EpilogueBuffer& buffer,
                        const float (&sums)[accumulators], std::uint32_t first) const {
#pragma unroll
    for (std::uint32_t t = 0; t < kTokens; t += 32) {
      if (first + t >= of.tile.rows) break;
      std::uint32_t matrices[4] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t at = first + t + 8 * i;
        if (at >= 2 * accumulators || at >= of.tile.rows) break;
        const Float2 h = hidden.activate(p, sums + at / 2, p.prescale);
        matrices[i] = pack_bf16x2(h.first, h.second);
      }
      stmatrix_x4_trans(buffer.tokens + offset(t + of.lane, of.thread / 32), matrices);
    }
  }
  __device__ void write(const Gemm&, const OutputTile& of, const EpilogueBuffer& buffer,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 4;
#pragma unroll
    for (std::uint32_t t = of.thread / 4; t < kTokens; t += 32) {
      if (first + t >= of.tile.rows) break;
      hidden.write(first + t, chunk, ld_shared_16(buffer.tokens + offset(t, chunk)));
    }
  }
};

// Epilogue::swiglu_quantized. Columns of a quantization block are in neighboring lanes of write().
template <int accumulators>
struct SwigluQuantizedStore {
  static constexpr std::uint32_t kTokens = 32;
  HiddenColumns hidden;
  LayerParams layer{};  // the members that quantize_dequantize reads
  float global;

  __device__ SwigluQuantizedStore(const Gemm& p, const OutputTile& of, const EpilogueBuffer& from)
      : hidden(p, of, from) {
    layer.quantization = p.hidden.quantization;
    layer.activations_in_bf16 = p.hidden.activations_in_bf16;
    global = scale_of(p.hidden.scales, p.hidden.scales_each != 0,
                      static_cast<std::uint32_t>(of.tile.expert));
  }
  // Swizzled: 4 chunks of 8 floats per token.
  static __device__ std::uint32_t offset(std::uint32_t token, std::uint32_t chunk) {
    return token * 128 + (chunk ^ (token / 2 % 4)) * 32;
  }
  __device__ void stage(const Gemm& p, const OutputTile& of, const EpilogueBuffer& buffer,
                        const float (&sums)[accumulators], std::uint32_t first) const {
    const std::uint32_t column = of.lane / 4, chunk = of.thread / 32;
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t at = first + 8 * i;
      if (at >= 2 * accumulators || at >= of.tile.rows) break;
      Float2 h = hidden.activate(p, sums + at / 2, 1.0f);
      if (p.hidden.middle != MiddleRounding::none)
        h = {round_to_bf16(h.first), round_to_bf16(h.second)};
      const std::uint32_t token = 8 * i + of.lane % 4 * 2;
      st_shared_f32(buffer.tokens + offset(token, chunk) + column * 4, h.first);
      st_shared_f32(buffer.tokens + offset(token + 1, chunk) + column * 4, h.second);
    }
  }
  __device__ void write(const Gemm& p, const OutputTile& of, const EpilogueBuffer& buffer,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 4, token = of.thread / 4;
    const uint4 low = ld_shared_16(buffer.tokens + offset(token, chunk));
    const uint4 high = ld_shared_16(buffer.tokens + offset(token, chunk) + 16);
    const Vec8 h{{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z),
                  __uint_as_float(low.w), __uint_as_float(high.x), __uint_as_float(high.y),
                  __uint_as_float(high.z), __uint_as_float(high.w)}};
    const float amax = block_amax(layer.quantization, h);
    if (first + token >= of.tile.rows) return;
    hidden.write(first + token, chunk,
                 to_bf16(prescaled(quantize_dequantize(layer, h, amax, global), p.prescale)));
  }
};

// Epilogue::scaled_bf16. A warp has 16 columns.
template <int accumulators>
struct ScaledBf16Store {
  static constexpr std::uint32_t kTokens = 32;
  float factor;
  Float2 bias;  // of rows g, g + 8
  std::uint8_t* to;
  std::uint64_t stride;

  __device__ ScaledBf16Store(const Gemm& p, const OutputTile& of, const EpilogueBuffer& from) {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
    factor = ld_shared_f32(from.factors) * p.input_factor;
    bias = {0.0f, 0.0f};
    if (p.matrix.bias != nullptr)
      bias = {ld_shared_f32(from.bias + row * 4), ld_shared_f32(from.bias + row * 4 + 32)};
    stride = std::uint64_t{p.matrix.m_blocks} * 128;
    to = static_cast<std::uint8_t*>(p.out) + of.tile.first_row * stride + of.m_block * 128;
  }
  // Swizzled: 8 chunks of 16 bytes per token.
  static __device__ std::uint32_t offset(std::uint32_t token, std::uint32_t chunk) {
    return token * 128 + (chunk ^ token % 8) * 16;
  }
  __device__ void stage(const Gemm&, const OutputTile& of, const EpilogueBuffer& buffer,
                        const float (&sums)[accumulators], std::uint32_t first) const {
    const std::uint32_t token = of.lane / 16 * 8 + of.lane % 8;
    const std::uint32_t chunk = of.thread / 32 * 2 + of.lane / 8 % 2;
#pragma unroll
    for (std::uint32_t t = 0; t < kTokens; t += 16) {
      if (first + t >= of.tile.rows) break;
      std::uint32_t matrices[4] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t at = first + t + i / 2 * 8;
        if (at >= 2 * accumulators) break;
        const float* two = sums + (first + t) / 2 + 2 * i;
        const float add = i % 2 == 0 ? bias.first : bias.second;
        matrices[i] = pack_bf16x2(two[0] * factor + add, two[1] * factor + add);
      }
      stmatrix_x4_trans(buffer.tokens + offset(t + token, chunk), matrices);
    }
  }
  __device__ void write(const Gemm&, const OutputTile& of, const EpilogueBuffer& buffer,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 8;
#pragma unroll
    for (std::uint32_t t = of.thread / 8; t < kTokens; t += 16) {
      if (first + t >= of.tile.rows) break;
      reinterpret_cast<uint4*>(to + (first + t) * stride)[chunk] =
          ld_shared_16(buffer.tokens + offset(t, chunk));
    }
  }
};

// Epilogue::raw_f32.
template <int accumulators>
struct RawF32Store {
  static constexpr std::uint32_t kTokens = 16;
  float inverse_prescale;
  std::uint8_t* to;
  std::uint64_t stride;

  __device__ RawF32Store(const Gemm& p, const OutputTile& of, const EpilogueBuffer&) {
    inverse_prescale = 1.0f / p.prescale;
    stride = std::uint64_t{p.matrix.m_blocks} * 256;
    to = static_cast<std::uint8_t*>(p.out) + of.tile.first_row * stride + of.m_block * 256;
  }
  // Swizzled: 8 chunks of 8 floats per token.
  static __device__ std::uint32_t offset(std::uint32_t token, std::uint32_t column) {
    return token * 256 + (column ^ token / 2 % 4 * 8) * 4;
  }
  __device__ void stage(const Gemm&, const OutputTile& of, const EpilogueBuffer& buffer,
                        const float (&sums)[accumulators], std::uint32_t first) const {
    const std::uint32_t row = of.thread / 32 * 16 + of.lane / 4;
#pragma unroll
    for (std::uint32_t i = 0; i < kTokens / 2; ++i) {
      const std::uint32_t at = first + i / 4 * 8;
      if (at >= 2 * accumulators || at >= of.tile.rows) break;
      const std::uint32_t token = i / 4 * 8 + of.lane % 4 * 2 + i % 2;
      st_shared_f32(buffer.tokens + offset(token, row + i / 2 % 2 * 8),
                    sums[first / 2 + i] * inverse_prescale);
    }
  }
  __device__ void write(const Gemm&, const OutputTile& of, const EpilogueBuffer& buffer,
                        std::uint32_t first) const {
    const std::uint32_t chunk = of.thread % 16;
#pragma unroll
    for (std::uint32_t t = of.thread / 16; t < kTokens; t += 8) {
      if (first + t >= of.tile.rows) break;
      reinterpret_cast<uint4*>(to + (first + t) * stride)[chunk] =
          ld_shared_16(buffer.tokens + offset(t, chunk * 4));
    }
  }
};

template <class Store, int accumulators>
__device__ inline void store_with(const Gemm& p, const OutputTile& of, const EpilogueBuffer& buffer,
                                  const float (&sums)[accumulators]) {
  const Store store(p, of, buffer);
#pragma unroll
  for (std::uint32_t first = 0; first < accumulators * 2; first += Store::kTokens) {
    if (first >= of.tile.rows) break;
    store.stage(p, of, buffer, sums, first);
    named_barrier_sync(of.barrier, 128);
    store.write(p, of, buffer, first);
    // The buffer is reused. For the next work tile, the first wait of store() protects it.
    if (first + Store::kTokens < of.tile.rows) named_barrier_sync(of.barrier, 128);
  }
}

// All threads of the warpgroup call.
template <int accumulators>
__device__ inline void store(const Gemm& p, const OutputTile& of, const EpilogueBuffer& buffer,
                             const float (&sums)[accumulators]) {
  cp_async_wait_all();
  named_barrier_sync(of.barrier, 128);
  if (p.epilogue == Epilogue::swiglu)
    store_with<SwigluStore<accumulators>>(p, of, buffer, sums);
  else if (p.epilogue == Epilogue::swiglu_quantized)
    store_with<SwigluQuantizedStore<accumulators>>(p, of, buffer, sums);
  else if (p.epilogue == Epilogue::raw_f32)
    store_with<RawF32Store<accumulators>>(p, of, buffer, sums);
  else
    store_with<ScaledBf16Store<accumulators>>(p, of, buffer, sums);
}

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
