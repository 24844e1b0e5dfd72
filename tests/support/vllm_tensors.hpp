// Loaded tensors of a small layer in memory, as vLLM's loaders would leave them, seeded.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"

namespace fp4moe::vllm::testing {

using Bytes = std::vector<std::byte>;
using tensor::DType;
using tensor::Shape;

struct LoadedTensor {
  DType dtype = DType::u8;
  Shape shape{};
  Bytes bytes{};

  TensorView view() const { return {dtype, shape, bytes}; }
};

struct LayerSizes {
  std::uint64_t experts = 3, hidden = 128, intermediate = 96;
  bool gated = true, has_bias = true;
  std::uint64_t rows() const { return (gated ? 2 : 1) * intermediate; }
};

class TensorMaker {
 public:
  explicit TensorMaker(std::uint64_t seed) : random_(seed) {}

  LoadedTensor bytes(Shape shape, unsigned first = 0, unsigned count = 256,
                     DType dtype = DType::u8) {
    LoadedTensor result{dtype, std::move(shape)};
    result.bytes.resize(*tensor::element_count(result.shape));
    for (std::byte& byte : result.bytes)
      byte = static_cast<std::byte>(first + (random_.next() >> 40) % count);
    return result;
  }
  LoadedTensor bf16(Shape shape) {
    LoadedTensor result{DType::bf16, std::move(shape)};
    result.bytes.resize(2 * *tensor::element_count(result.shape));
    for (std::size_t i = 0; i < result.bytes.size(); i += 2) {
      const std::uint16_t code = formats::Bf16::encode(random_.unit() - 0.5f);
      std::memcpy(&result.bytes[i], &code, 2);
    }
    return result;
  }
  // Of one size, about `scale`.
  LoadedTensor f32(Shape shape, float scale) {
    LoadedTensor result{DType::f32, std::move(shape)};
    result.bytes.resize(4 * *tensor::element_count(result.shape));
    for (std::size_t i = 0; i < result.bytes.size(); i += 4) {
      const float value = scale * (1.0f + random_.unit());
      std::memcpy(&result.bytes[i], &value, 4);
    }
    return result;
  }

 private:
  SplitMix64 random_;
};

struct Mxfp4Layer {
  LayerSizes sizes{};
  LoadedTensor w13, w2, w13_scale, w2_scale, w13_bias{}, w2_bias{};

  explicit Mxfp4Layer(LayerSizes result, std::uint64_t seed = 1) : sizes(result) {
    TensorMaker make(seed);
    const std::uint64_t e = sizes.experts, h = sizes.hidden, i = sizes.intermediate;
    w13 = make.bytes({e, sizes.rows(), h / 2});
    w2 = make.bytes({e, h, i / 2});
    w13_scale = make.bytes({e, sizes.rows(), h / 32}, 118, 6);
    w2_scale = make.bytes({e, h, i / 32}, 118, 6);
    if (!sizes.has_bias) return;
    w13_bias = make.bf16({e, sizes.rows()});
    w2_bias = make.bf16({e, h});
  }
  Mxfp4Tensors tensors() const {
    return {.w13_weight = w13.view(),
            .w2_weight = w2.view(),
            .w13_weight_scale = w13_scale.view(),
            .w2_weight_scale = w2_scale.view(),
            .w13_bias = w13_bias.view(),
            .w2_bias = w2_bias.view()};
  }
};

struct NvFp4Layer {
  LayerSizes sizes{};
  LoadedTensor w13, w2, w13_scale, w2_scale, w13_scale_2, w2_scale_2, a13_scale, a2_scale;

  explicit NvFp4Layer(LayerSizes result, std::uint64_t seed = 1) : sizes(result) {
    TensorMaker make(seed);
    const std::uint64_t e = sizes.experts, h = sizes.hidden, i = sizes.intermediate;
    const std::uint64_t s = sizes.gated ? 2 : 1;
    w13 = make.bytes({e, sizes.rows(), h / 2});
    w2 = make.bytes({e, h, i / 2});
    w13_scale = make.bytes({e, sizes.rows(), h / 16}, 0x40, 0x20, DType::f8_e4m3);
    w2_scale = make.bytes({e, h, i / 16}, 0x40, 0x20, DType::f8_e4m3);
    w13_scale_2 = make.f32({e, s}, 0.00048828125f);
    w2_scale_2 = make.f32({e}, 0.0078125f);
    // Gate and up have one global scale, as kernels have it.
    if (sizes.gated)
      for (std::uint64_t x = 0; x < e; ++x)
        std::memcpy(&w13_scale_2.bytes[8 * x + 4], &w13_scale_2.bytes[8 * x], 4);
    a13_scale = make.f32({e, s}, 0.001f);
    a2_scale = make.f32({e}, 0.01f);
  }
  NvFp4Tensors tensors() const {
    return {.w13 = w13.view(),
            .w13_scale = w13_scale.view(),
            .w13_scale_2 = w13_scale_2.view(),
            .a13_scale = a13_scale.view(),
            .w2 = w2.view(),
            .w2_scale = w2_scale.view(),
            .w2_scale_2 = w2_scale_2.view(),
            .a2_scale = a2_scale.view()};
  }
};

}  // namespace fp4moe::vllm::testing
