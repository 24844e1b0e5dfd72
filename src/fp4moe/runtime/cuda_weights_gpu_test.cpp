// Weights on a device are the bytes that the packer makes: uploaded from its tensors, or packed on
// the device from the checkpoint's rows.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/checked.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/device_session.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "fp4moe/runtime/packed_weights.hpp"
#include "support/device.hpp"

namespace fp4moe::runtime {
namespace cuda_weights_gpu_test {

using checkpoint::WeightFormat;
using moe::Activation;
using moe::cuda::DeviceLayer;
using moe::cuda::testing::layer_of;
using moe::cuda::testing::make_layer;
using moe::cuda::testing::problem_of;
using moe::cuda::testing::Sizes;
using moe::testing::TestLayer;

class CudaWeights : public moe::cuda::testing::OnDevice {
 protected:
  // What a layer holds, in the order of sm90::LayerParams.
  struct Found {
    std::vector<std::byte> w13{}, w2{};
    std::vector<float> factor13{}, factor2{}, bias13{}, bias2{}, down_global{};
    friend bool operator==(const Found&, const Found&) = default;
  };
  Found fetch(const DeviceLayer& layer) const {
    using moe::cuda::testing::download;
    const auto& l = layer.layer();
    const std::size_t projections = l.is_gated != 0 ? 2 : 1;
    Found result{.w13 = download<std::byte>(*device, l.w13.tiles, l.experts * l.w13.expert_bytes),
                 .w2 = download<std::byte>(*device, l.w2.tiles, l.experts * l.w2.expert_bytes),
                 .factor13 = download<float>(*device, l.w13.factor, l.experts * projections),
                 .factor2 = download<float>(*device, l.w2.factor, l.experts),
                 .down_global = download<float>(*device, l.down_global, l.experts)};
    if (l.w13.bias != nullptr) {
      result.bias13 =
          download<float>(*device, l.w13.bias, std::size_t{l.experts} * l.w13.m_blocks * 64);
      result.bias2 =
          download<float>(*device, l.w2.bias, std::size_t{l.experts} * l.w2.m_blocks * 64);
    }
    return result;
  }
  // The tensors of native_sm90, sizes padded as its backend does or not at all.
  static PackedWeights pack(const TestLayer& layer, bool pads) {
    const auto layout = backends::require_layout(
        fmt::format("native_sm90.{}", formats::name(layer.shape.format)), {});
    EXPECT_TRUE(layout) << text(layout.why());
    convert::Problem problem{.experts = layer.shape.experts,
                             .real = {layer.shape.hidden, layer.shape.intermediate},
                             .order = layer.shape.order,
                             .has_bias = layer.shape.has_bias,
                             .bias_type = tensor::DType::f32};
    if (pads)
      problem.padded = {round_up(layer.shape.hidden, 64), round_up(layer.shape.intermediate, 64)};
    auto packed = PackedWeights::create(**layout, problem);
    EXPECT_TRUE(packed) << text(packed.why());
    EXPECT_TRUE(packed->load(layer.source()));
    return std::move(*packed);
  }
};

TEST_F(CudaWeights, AreTheSameBytesUploadedAndPackedOnTheDevice) {
  const Sizes sizes[] = {{3, 64, 64}, {2, 160, 96}, {4, 192, 320}, {2, 32, 32}};
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const Sizes& size : sizes)
      for (const Activation activation :
           {Activation::silu, Activation::swigluoai, Activation::relu2_no_mul}) {
        TestLayer layer = layer_of(format, size, activation);
        // Scales at both ends of what the layout holds, and blocks of scale 0.
        const bool mxfp4 = format == WeightFormat::mxfp4;
        layer.down[0].scales[0] = std::byte{mxfp4 ? std::uint8_t{250} : std::uint8_t{0}};
        layer.up[1].scales[1] = std::byte{mxfp4 ? std::uint8_t{1} : std::uint8_t{1}};
        layer.up[1].scales[0] = std::byte{mxfp4 ? std::uint8_t{3} : std::uint8_t{0x7E}};
        const std::string what = fmt::format("{} {} x {} {}", formats::name(format), size.hidden,
                                             size.intermediate, moe::name(activation));
        const auto problem = problem_of(layer);
        const Found packed_here = fetch(make_layer(device, problem, layer.source()));
        for (const bool pads : {true, false}) {
          const PackedWeights packed = pack(layer, pads);
          auto source = packed.source();
          source.shape.order = layer.shape.order;
          const Found uploaded = fetch(make_layer(device, problem, source));
          EXPECT_TRUE(uploaded == packed_here) << what << (pads ? " padded" : "");
          if (!pads) continue;
          const auto* w13 = &packed.tensors()[0];
          EXPECT_TRUE(std::ranges::equal(*w13, packed_here.w13)) << what;
          EXPECT_TRUE(std::ranges::equal(packed.tensors()[1], packed_here.w2)) << what;
        }
      }
}

}  // namespace cuda_weights_gpu_test
}  // namespace fp4moe::runtime
