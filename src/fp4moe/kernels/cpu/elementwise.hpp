// Functions of single values between and after the GEMMs: plain declarations, includable from
// ISA files. Every operation is rounded once, so all instruction sets give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp4moe::kernels::cpu {

enum class GateFunction : std::uint8_t {
  // g' sigmoid(alpha g') with g' = min(g, limit)
  swish,
  // min(g sigmoid(g), limit)
  swish_at_most,
  // b tanh(g / b) sigmoid(g)
  situ,
  // max(g, 0)^2
  squared_relu,
  // moe/activation.hpp
  gelu,
  gelu_tanh,
};
enum class UpFunction : std::uint8_t {
  // u
  plain,
  // u' = clamp(u, -limit, limit)
  clamped,
  // u' + beta
  clamped_plus,
  // b tanh(u / b)
  situ,
};

struct ActivateGates {
  GateFunction function = GateFunction::swish;
  float alpha = 1.0f, limit = 0.0f, bound = 1.0f;
  const float* gates = nullptr;  // kChunk values
  float* to = nullptr;           // the same
};
// to *= function of ups
struct MultiplyUps {
  UpFunction function = UpFunction::plain;
  float beta = 0.0f, limit = 0.0f, bound = 1.0f;
  const float* ups = nullptr;
  float* to = nullptr;
};

// kChunk gates and ups, interleaved: each times its factor, then plus its bias (null: none).
struct SplitSums {
  const float* sums = nullptr;
  float gate_factor = 1.0f, up_factor = 1.0f;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  float* gates = nullptr;
  float* ups = nullptr;
};
// to = (sums * factor + bias) * weight; no bias: null
struct WeighSums {
  const float* sums = nullptr;
  std::size_t count = 0;
  float factor = 1.0f, weight = 1.0f;
  const float* bias = nullptr;
  float* to = nullptr;
};
// `count` values (a multiple of kChunk) to integers of at most `limit`, and half of each chunk's
// step. A chunk with a value that is not finite gets the step NaN.
struct RoundChunks {
  const float* values = nullptr;
  std::size_t count = 0;
  int limit = 0;
  std::int16_t* rounded = nullptr;
  float* half_steps = nullptr;
};

struct ElementwiseFunctions {
  void (*split)(const SplitSums& call) noexcept;
  void (*gates)(const ActivateGates& call) noexcept;
  void (*ups)(const MultiplyUps& call) noexcept;
  void (*round)(const RoundChunks& call) noexcept;
  void (*weigh)(const WeighSums& call) noexcept;
  // to += from
  void (*add)(const float* from, std::size_t count, float* to) noexcept;
};

}  // namespace fp4moe::kernels::cpu
