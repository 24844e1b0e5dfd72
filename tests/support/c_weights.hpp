// Weights in memory as a C program gives them, and what it says of their layer.
#pragma once
#include <cstdint>
#include <vector>

#include "fp4moe/fp4moe.h"
#include "support/c_api.hpp"
#include "support/stacked_weights.hpp"

namespace fp4moe::capi::testing {

using checkpoint::testing::Arrangement;
using checkpoint::testing::StackedWeights;

inline fp4moe_matrix matrix_of(const checkpoint::MatrixWeights& from) {
  const auto floats = [](std::span<const float> given) {
    return given.empty() ? nullptr : given.data();
  };
  fp4moe_matrix result{};
  result.size = sizeof result;
  result.codes = from.codes.bytes.data();
  result.codes_bytes = from.codes.bytes.size();
  result.codes_expert_stride = from.codes.expert_stride;
  result.codes_row_stride = from.codes.row_stride;
  result.scales = from.scales.bytes.data();
  result.scales_bytes = from.scales.bytes.size();
  result.scales_expert_stride = from.scales.expert_stride;
  result.scales_row_stride = from.scales.row_stride;
  result.global_scales = floats(from.global_scales);
  result.global_scales_count = from.global_scales.size();
  result.input_scales = floats(from.input_scales);
  result.input_scales_count = from.input_scales.size();
  result.bias = from.bias.bytes.empty() ? nullptr : from.bias.bytes.data();
  result.bias_bytes = from.bias.bytes.size();
  result.bias_dtype = from.bias.dtype == tensor::DType::f32 ? FP4MOE_F32 : FP4MOE_BF16;
  return result;
}

// The first layer of a checkpoint, read into memory by the caller.
struct CWeights {
  explicit CWeights(const std::string& path, Arrangement arrangement = Arrangement::halves,
                    std::uint64_t gap = 0)
      : memory(open(path), arrangement, gap) {
    const checkpoint::LayerWeights all = memory.given();
    w13 = matrix_of(all.w13);
    gate = matrix_of(all.gate);
    up = matrix_of(all.up);
    w2 = matrix_of(all.w2);
  }
  CWeights(const CWeights&) = delete;
  CWeights& operator=(const CWeights&) = delete;

  fp4moe_weights given() const {
    const bool apart = memory.arrangement == Arrangement::apart;
    return {.size = sizeof(fp4moe_weights),
            .format = checkpoint::name(memory.shape.format).data(),
            .row_order = checkpoint::name(memory.shape.order).data(),
            .experts = memory.shape.experts,
            .hidden = memory.shape.hidden,
            .intermediate = memory.shape.intermediate,
            .w13 = apart ? nullptr : &w13,
            .gate = apart ? &gate : nullptr,
            .up = apart ? &up : nullptr,
            .w2 = &w2};
  }

  StackedWeights memory;
  fp4moe_matrix w13{}, gate{}, up{}, w2{};

 private:
  static checkpoint::Checkpoint open(const std::string& path) {
    auto opened = checkpoint::Checkpoint::open(path);
    EXPECT_TRUE(opened) << text(opened.why());
    return std::move(*opened);
  }
};

// gpt-oss, and Qwen3 with as many experts of a token as the small model has.
struct Description {
  fp4moe_routing routing{};
  fp4moe_layer_description given{};

  explicit Description(checkpoint::WeightFormat format = checkpoint::WeightFormat::mxfp4) {
    const bool mxfp4 = format == checkpoint::WeightFormat::mxfp4;
    routing.size = sizeof routing;
    routing.method = "Renormalize";
    given.size = sizeof given;
    given.activation = mxfp4 ? "swigluoai" : "silu";
    given.top_k = mxfp4 ? 4 : kExperts;
    given.routing = &routing;
    given.split_blocks = mxfp4 ? 1 : 0;
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
};

inline fp4moe_layer* layer_of(const CWeights& weights, const Description& description,
                              const fp4moe_layer_options& options = layer_options()) {
  const fp4moe_weights given = weights.given();
  fp4moe_layer* layer = nullptr;
  EXPECT_EQ(fp4moe_layer_from_weights(&description.given, &given, &options, &layer), FP4MOE_OK)
      << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_load(layer), FP4MOE_OK) << fp4moe_last_error();
  EXPECT_EQ(fp4moe_layer_process(layer), FP4MOE_OK) << fp4moe_last_error();
  return layer;
}

}  // namespace fp4moe::capi::testing
