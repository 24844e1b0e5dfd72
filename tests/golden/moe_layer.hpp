// A golden case of a whole layer, read and checked: its weights as experts, its tokens and routes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/experts.hpp"
#include "golden/moe_data.hpp"

namespace fp4moe::golden {

// A part of the layer's experts and of its intermediate size.
struct LayerPart {
  std::vector<std::uint64_t> experts{};  // global numbers
  std::uint64_t begin = 0, end = 0;      // of the intermediate size
};

struct MoeLayerCase {
  checkpoint::MoeShape shape{};
  moe::Activation activation{};
  moe::ActivationParams params{};
  std::uint64_t tokens = 0, top_k = 0;
  bool weight_on_input = false;
  MoeNumbers ids{};
  std::vector<double> topk_weights{};
  MoeTensor w13{}, w13_scale{}, w2{}, w2_scale{}, x{};
  std::vector<float> w13_bias{}, w2_bias{};      // empty: none
  std::vector<float> w13_global{}, w2_global{};  // NVFP4: [experts]
  std::optional<MoeTensor> logits{}, correction_bias{};
  float a1_gscale = 1.0f, a2_gscale = 1.0f;
  // LoRA: [adapters, experts, ...] in float32; empty: none
  std::uint64_t adapters = 0, rank = 0;
  std::vector<float> a13{}, b13{}, a2{}, b2{};
  std::vector<std::int32_t> token_adapters{};

  LayerPart whole() const;
  // The experts of a part; views point into this case. The bias of w2 comes with `begin` 0.
  moe::ExpertSource source(const LayerPart& part) const;
  std::vector<moe::LoraExpert> lora() const;  // [adapters, experts], pointing into this case
};

Result<MoeLayerCase> read_layer_case(const Json& item);

}  // namespace fp4moe::golden
