// Activations on their way to a kernel that wants them in 8 or 4 bits. Encoded rows are what
// travels between ranks; decoded rows are what engines compute with. Decoded values are exact in
// float32 (those of MXFP8, MXFP4, NVFP4 and per-tensor FP8 also in bf16), and a factor that all
// values of a tensor share is left out of them: it multiplies the accumulator.
//
//   key                 block   codes   scale of a block                factor
//   none                        bf16                                    1
//   mxfp8               32      e4m3    e8m0, ceil(log2(amax / 448))    1
//   mxfp4               32      e2m1    e8m0, "even"                    1
//   nvfp4               16      e2m1    e4m3 of G amax / 6              1 / G
//   fp8_static_tensor   tensor  e4m3    -                               the static scale
//   fp8_block128        128     e4m3    f32, amax / 448                 1
//   fp8_token           row     e4m3    f32, amax / 448                 1
//   nvfp4_token         16      e2m1    as nvfp4; of the row f32,       1
//                                       1 / G = amax / (448 * 6)
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/oracle/words.hpp"

namespace fp4moe::moe {

using oracle::ActivationKey;

struct RowQuantizer {
  ActivationKey key = ActivationKey::none;
  float global_scale = 1.0f;  // NVFP4: G = 1 / input_scale. Static FP8: the scale. Else not read.
};

// Bytes of an encoded row: codes, then scales.
std::size_t encoded_bytes(ActivationKey key, std::size_t columns);
void encode_row(const RowQuantizer& how, std::span<const float> values, std::span<std::byte> to);
void decode_row(const RowQuantizer& how, std::span<const std::byte> from, std::span<float> values);
// The factor of every decoded value.
float shared_factor(const RowQuantizer& how);

// There and back in one step.
void quantize_dequantize(const RowQuantizer& how, std::span<float> values);

}  // namespace fp4moe::moe
