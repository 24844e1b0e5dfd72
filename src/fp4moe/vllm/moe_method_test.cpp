// A layer's whole life on weights in memory, against the same weights through runtime::MoeLayer and
// its exact result.
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/vllm/mxfp4_moe_method.hpp"
#include "fp4moe/vllm/nvfp4_moe_method.hpp"
#include "support/tiny_layer.hpp"
#include "support/vllm_tensors.hpp"

namespace fp4moe::vllm {
namespace moe_method_test {

using moe::dense_rows;
using tensor::DType;
using testing::LayerSizes;
using testing::LoadedTensor;
using testing::Mxfp4Layer;
using testing::NvFp4Layer;

constexpr std::uint64_t kTokens = 5, kTopK = 2;

MoeConfig config_for(const LayerSizes& sizes, std::string_view policy, std::string_view device) {
  MoeConfig result{.num_experts = sizes.experts,
                   .num_local_experts = sizes.experts,
                   .experts_per_token = kTopK,
                   .hidden_dim = sizes.hidden,
                   .intermediate_size_per_partition = sizes.intermediate,
                   .is_act_and_mul = sizes.gated,
                   .has_bias = sizes.has_bias};
  result.context = {.policy = std::string(policy), .device = *platform::describe_device(device)};
  return result;
}

// Rows of a loaded tensor to the leading corner of a parameter; halves of w13 to halves.
void fill(tensor::Tensor* to, const LoadedTensor& from, std::uint64_t halves = 1) {
  ASSERT_NE(to, nullptr);
  ASSERT_EQ(to->shape().size(), from.shape.size());
  const std::uint64_t experts = from.shape[0];
  const std::uint64_t rows = from.shape.size() == 3 ? from.shape[1] : halves;
  const std::uint64_t to_rows = to->shape().size() == 3 ? to->shape()[1] : halves;
  const std::size_t row = from.bytes.size() / experts / rows;
  const std::size_t to_row = to->bytes().size() / experts / to_rows;
  for (std::uint64_t e = 0; e < experts; ++e)
    for (std::uint64_t r = 0; r < rows; ++r) {
      const std::uint64_t half = r / (rows / halves), at = r % (rows / halves);
      std::memcpy(to->bytes().data() + (e * to_rows + half * (to_rows / halves) + at) * to_row,
                  from.bytes.data() + (e * rows + r) * row, row);
    }
}

void fill(Mxfp4MoeMethod& method, const Mxfp4Layer& layer, std::uint64_t halves) {
  fill(method.parameter("w13_weight"), layer.w13, halves);
  fill(method.parameter("w13_weight_scale"), layer.w13_scale, halves);
  fill(method.parameter("w2_weight"), layer.w2);
  fill(method.parameter("w2_weight_scale"), layer.w2_scale);
  if (!layer.sizes.has_bias) return;
  fill(method.parameter("w13_bias"), layer.w13_bias, halves);
  fill(method.parameter("w2_bias"), layer.w2_bias);
}

checkpoint::LayerWeights weights_of(const Mxfp4Layer& layer, checkpoint::RowOrder order) {
  checkpoint::LayerWeights result{.shape = {.format = WeightFormat::mxfp4,
                                            .experts = layer.sizes.experts,
                                            .hidden = layer.sizes.hidden,
                                            .intermediate = layer.sizes.intermediate,
                                            .order = order}};
  result.w13 = {.codes = {layer.w13.bytes}, .scales = {layer.w13_scale.bytes}};
  result.w2 = {.codes = {layer.w2.bytes}, .scales = {layer.w2_scale.bytes}};
  if (layer.sizes.has_bias) {
    result.w13.bias = {.bytes = layer.w13_bias.bytes};
    result.w2.bias = {.bytes = layer.w2_bias.bytes};
  }
  return result;
}

struct Call {
  moe::testing::TestTokens tokens;
  std::vector<float> logits;

  explicit Call(const LayerSizes& sizes, std::uint64_t seed = 3)
      : tokens(kTokens, sizes.hidden, kTopK, sizes.experts, seed) {
    SplitMix64 random(seed + 1);
    for (std::uint64_t i = 0; i < kTokens * sizes.experts; ++i)
      logits.push_back(4.0f * random.unit());
  }
  moe::ConstRows router_logits() const {
    return dense_rows(std::span(logits), DType::f32, kTokens, logits.size() / kTokens);
  }
};

// The same call of a layer that was made from a view of the weights.
std::vector<float> through_layer(const checkpoint::LayerWeights& given, Activation activation,
                                 const oracle::Backend& backend, const oracle::Policy& policy,
                                 const platform::Device& device, const Call& call, bool monolithic,
                                 std::optional<moe::NumericsKind> numerics = {}) {
  const auto view = checkpoint::LayerWeightsView::make(given);
  EXPECT_TRUE(view) << text(view.why());
  runtime::LayerDescription description{.activation = activation, .top_k = kTopK};
  description.router = moe::routing::RouterOptions{.method = moe::routing::Method::renormalize};
  runtime::LayerOptions options{
      .engine = runtime::EngineKind::reference, .threads = 1, .numerics = numerics};
  options.backend_request = {
      .policy = std::string(policy.name), .backend = std::string(backend.name), .device = device};
  auto layer = runtime::MoeLayer::create(description, *view, options);
  EXPECT_TRUE(layer) << text(layer.why());
  if (!layer || !layer->load() || !layer->process()) return {};
  const std::uint64_t hidden = given.shape.hidden;
  std::vector<float> out(kTokens * hidden);
  const auto rows = dense_rows(std::span(out), DType::f32, kTokens, hidden);
  const auto done =
      monolithic ? layer->run({.x = call.tokens.rows(), .logits = call.router_logits()}, rows)
                 : layer->apply(call.tokens.routed(), rows);
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

template <class Method>
std::vector<float> through_method(Method& method, const Call& call, std::uint64_t hidden) {
  std::vector<float> out(kTokens * hidden, -1.0f);
  const auto rows = dense_rows(std::span(out), DType::f32, kTokens, hidden);
  const auto done =
      method.is_monolithic()
          ? method.apply_monolithic(call.tokens.rows(), call.router_logits(), rows)
          : method.apply(call.tokens.rows(), call.tokens.weights, call.tokens.ids, rows);
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

struct Case {
  std::string_view policy, device, backend;
  Activation activation = Activation::swigluoai;
};

TEST(Mxfp4MoeMethod, ComputesWhatTheLayerComputes) {
  for (const Case& given :
       {Case{"2026-04-24", "h100", "auto"}, Case{"2026-08-22", "b200", "auto"},
        Case{"2026-08-22", "h100", "marlin"}, Case{"2026-03-20", "h100", "flashinfer_cutlass"},
        Case{"2026-04-24", "mi355x", "triton"},
        Case{"2026-08-22", "h100", "marlin", Activation::silu}, Case{"native", "h100", "auto"},
        Case{"native", "cpu", "auto"}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", given.policy, given.device, given.backend));
    const Mxfp4Layer layer({.experts = 4, .hidden = 160, .intermediate = 96});
    MoeConfig config = config_for(layer.sizes, given.policy, given.device);
    config.moe_backend = given.backend;
    config.activation = given.activation;
    auto method = Mxfp4MoeMethod::make(
        config, {.kernel = {.engine = runtime::EngineKind::reference, .threads = 1}});
    ASSERT_TRUE(method) << text(method.why());
    ASSERT_TRUE(method->create_weights());
    const bool is_interleaved = given.activation == Activation::swigluoai;
    fill(*method, layer, is_interleaved ? 1 : 2);
    const auto done = method->process_weights_after_loading();
    ASSERT_TRUE(done) << text(done.why());

    const Call call(layer.sizes);
    const std::vector<float> found = through_method(*method, call, layer.sizes.hidden);
    const checkpoint::LayerWeights weights = weights_of(
        layer, is_interleaved ? checkpoint::RowOrder::interleaved : checkpoint::RowOrder::halves);
    const oracle::Backend& backend = *method->record().selection.backend;
    const oracle::Policy& policy = *method->record().selection.policy;
    EXPECT_EQ(found, through_layer(weights, given.activation, backend, policy,
                                   config.context.device, call, method->is_monolithic()));
    const std::vector<float> exact =
        through_layer(weights, given.activation, backend, policy, config.context.device, call,
                      method->is_monolithic(), moe::NumericsKind::exact);
    EXPECT_LT(moe::testing::distance(doubles(exact), doubles(found)), 0.05);
  }
}

TEST(Mxfp4MoeMethod, IsReloadedByProcessingAgain) {
  const Mxfp4Layer first({.experts = 3, .hidden = 128, .intermediate = 128}, 1);
  const Mxfp4Layer second({.experts = 3, .hidden = 128, .intermediate = 128}, 2);
  const MoeConfig config = config_for(first.sizes, "2026-04-24", "h100");
  auto method =
      Mxfp4MoeMethod::make(config, {.kernel = {.engine = runtime::EngineKind::cpu, .threads = 1}});
  ASSERT_TRUE(method) << text(method.why());
  EXPECT_EQ(method->mxfp4_backend(), Mxfp4MoeBackend::TRITON);
  const Call call(first.sizes);
  std::vector<float> out(kTokens * 128);
  const auto rows = dense_rows(std::span(out), DType::f32, kTokens, 128);
  EXPECT_EQ(method->apply_monolithic(call.tokens.rows(), call.router_logits(), rows).why().id,
            "vllm.order");
  EXPECT_EQ(method->process_weights_after_loading().why().id, "vllm.order");
  EXPECT_EQ(method->get_fused_moe_quant_config().why().id, "vllm.order");
  ASSERT_TRUE(method->create_weights());
  EXPECT_EQ(method->parameters().size(), 6u);
  EXPECT_EQ(method->parameter("w3_weight"), nullptr);
  std::vector<std::vector<float>> results;
  for (const Mxfp4Layer* layer : {&first, &second, &first}) {
    fill(*method, *layer, 1);
    ASSERT_TRUE(method->process_weights_after_loading());
    results.push_back(through_method(*method, call, 128));
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_NE(results[0], results[1]);
  const auto quant = method->get_fused_moe_quant_config();
  ASSERT_TRUE(quant);
  EXPECT_EQ(quant->scheme, oracle::QuantScheme::mxfp4_w4a16);
  EXPECT_TRUE(quant->has_precision_configs);
  EXPECT_EQ(quant->gemm1_alpha, 1.702);
  EXPECT_EQ(quant->gemm1_clamp_limit, 7.0);
  EXPECT_FALSE(quant->w1_bias.bytes.empty());
  // What is refused leaves the layer as it was.
  method->parameter("w2_weight_scale")->bytes()[0] = std::byte{255};
  EXPECT_EQ(method->process_weights_after_loading().why().id, "scale.nan");
  EXPECT_EQ(through_method(*method, call, 128), results[0]);
  // Without parameters it runs on.
  method->drop_parameters();
  EXPECT_EQ(through_method(*method, call, 128), results[0]);
  EXPECT_EQ(method->process_weights_after_loading().why().id, "vllm.order");
}

TEST(Mxfp4MoeMethod, TakesTokensOfTheRoundedSize) {
  const Mxfp4Layer layer({.experts = 3, .hidden = 160, .intermediate = 96});
  MoeConfig config = config_for(layer.sizes, "2026-08-22", "h100");
  config.moe_backend = "marlin";
  auto method = Mxfp4MoeMethod::make(
      config, {.kernel = {.engine = runtime::EngineKind::reference, .threads = 1}});
  ASSERT_TRUE(method) << text(method.why());
  EXPECT_EQ(method->sizes(), (oracle::Sizes{256, 128}));
  EXPECT_FALSE(method->skip_forward_padding());
  EXPECT_FALSE(method->is_monolithic());
  ASSERT_TRUE(method->create_weights());
  EXPECT_EQ(method->parameter("w13_weight")->shape(), (tensor::Shape{3, 256, 128}));
  fill(*method, layer, 1);
  ASSERT_TRUE(method->process_weights_after_loading());
  const Call call(layer.sizes);
  const std::vector<float> plain = through_method(*method, call, 160);
  std::vector<std::uint16_t> wide(kTokens * 256, 0x7FC0);  // NaN in columns that must not be read
  for (std::uint64_t t = 0; t < kTokens; ++t)
    std::copy_n(call.tokens.x.begin() + static_cast<std::ptrdiff_t>(160 * t), 160,
                wide.begin() + static_cast<std::ptrdiff_t>(256 * t));
  std::vector<float> out(kTokens * 256, -1.0f);
  const auto done = method->apply(
      dense_rows(std::span(std::as_const(wide)), DType::bf16, kTokens, 256), call.tokens.weights,
      call.tokens.ids, dense_rows(std::span(out), DType::f32, kTokens, 256));
  ASSERT_TRUE(done) << text(done.why());
  for (std::uint64_t t = 0; t < kTokens; ++t)
    for (std::uint64_t i = 0; i < 256; ++i)
      ASSERT_EQ(out[256 * t + i], i < 160 ? plain[160 * t + i] : 0.0f);
}

TEST(Mxfp4MoeMethod, SkipsPaddingWhereTheQuantizerPads) {
  MoeConfig config =
      config_for({.experts = 4, .hidden = 256, .intermediate = 256}, "2026-04-24", "b200");
  config.moe_backend = "flashinfer_trtllm_afp8";
  const auto method = Mxfp4MoeMethod::make(config);
  ASSERT_TRUE(method) << text(method.why());
  EXPECT_TRUE(method->skip_forward_padding());
  EXPECT_TRUE(method->is_monolithic());
}

TEST(Mxfp4MoeMethod, SaysSoWhereNothingRuns) {
  const LayerSizes sizes{.experts = 4, .hidden = 128, .intermediate = 128};
  auto none = Mxfp4MoeMethod::make(config_for(sizes, "2026-04-24", "cpu"));
  ASSERT_TRUE(none) << text(none.why());
  EXPECT_EQ(none->mxfp4_backend(), Mxfp4MoeBackend::NONE);
  ASSERT_TRUE(none->create_weights());
  EXPECT_TRUE(none->process_weights_after_loading());
  const Call call(sizes);
  std::vector<float> out(kTokens * 128);
  const auto rows = dense_rows(std::span(out), DType::f32, kTokens, 128);
  EXPECT_EQ(none->apply(call.tokens.rows(), call.tokens.weights, call.tokens.ids, rows).why().id,
            "vllm.no_kernel");
  MoeConfig named = config_for(sizes, "2026-04-24", "a100");
  named.moe_backend = "triton";
  oracle::Record record;
  const auto refused = Mxfp4MoeMethod::make(named, {}, &record);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "vllm.refused");
  EXPECT_FALSE(record.survey.empty());
}

TEST(Kernel, RefusesWhatItsClassIsNotFor) {
  const Mxfp4Layer layer({.experts = 3, .hidden = 128, .intermediate = 128});
  const MoeConfig config = config_for(layer.sizes, "2026-08-22", "h100");
  const auto classes = backend_to_kernel_cls(Mxfp4MoeBackend::TRITON, config.context);
  ASSERT_TRUE(classes);
  const auto weights = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
      Mxfp4MoeBackend::TRITON, layer.tensors(), config.context);
  ASSERT_TRUE(weights) << text(weights.why());
  const auto quant = make_mxfp4_moe_quant_config(Mxfp4MoeBackend::TRITON, {}, config);
  ASSERT_TRUE(quant);
  const Call call(layer.sizes);
  std::vector<float> out(kTokens * 128);
  const auto rows = dense_rows(std::span(out), DType::f32, kTokens, 128);
  const KernelOptions options{.engine = runtime::EngineKind::cpu, .threads = 1};
  auto monolithic = make_mxfp4_moe_kernel(*quant, config, (*classes)[0], Mxfp4MoeBackend::TRITON,
                                          *weights, options);
  auto modular = make_mxfp4_moe_kernel(*quant, config, (*classes)[1], Mxfp4MoeBackend::TRITON,
                                       *weights, options);
  ASSERT_TRUE(monolithic) << text(monolithic.why());
  ASSERT_TRUE(modular) << text(modular.why());
  EXPECT_EQ(
      monolithic->apply(call.tokens.rows(), call.tokens.weights, call.tokens.ids, rows).why().id,
      "vllm.kind");
  EXPECT_EQ(modular->apply_monolithic(call.tokens.rows(), call.router_logits(), rows).why().id,
            "vllm.kind");
  EXPECT_TRUE(modular->apply(call.tokens.rows(), call.tokens.weights, call.tokens.ids, rows));
  EXPECT_EQ(modular
                ->apply(call.tokens.rows(), std::span(call.tokens.weights).first(3),
                        call.tokens.ids, rows)
                .why()
                .id,
            "vllm.routes");
  auto thin = call.tokens.rows();
  thin.columns = 64;
  EXPECT_EQ(modular->apply(thin, call.tokens.weights, call.tokens.ids, rows).why().id,
            "rows.columns");
  MoeConfig other = config;
  other.num_local_experts = other.num_experts = 5;
  EXPECT_EQ(make_mxfp4_moe_kernel(*quant, other, (*classes)[1], Mxfp4MoeBackend::TRITON, *weights,
                                  options)
                .why()
                .id,
            "vllm.weights");
  EXPECT_EQ(
      make_mxfp4_moe_kernel(*quant, config, nullptr, Mxfp4MoeBackend::TRITON, *weights, options)
          .why()
          .id,
      "vllm.no_class");
}

// Two ranks with half of the experts each: their sum is the whole layer's.
TEST(Kernel, HoldsARanksExperts) {
  const Mxfp4Layer layer({.experts = 4, .hidden = 128, .intermediate = 128});
  const Call call(layer.sizes);
  std::vector<std::vector<float>> parts;
  for (int rank = -1; rank < 2; ++rank) {
    MoeConfig config = config_for(layer.sizes, "2026-08-22", "h100");
    config.moe_backend = "marlin";
    Mxfp4Layer part = layer;
    if (rank >= 0) {
      config.num_local_experts = 2;
      config.moe_parallel_config =
          oracle::derive({.tp_size = 2, .tp_rank = rank, .enable_expert_parallel = true});
      for (LoadedTensor* tensor :
           {&part.w13, &part.w2, &part.w13_scale, &part.w2_scale, &part.w13_bias, &part.w2_bias}) {
        const std::size_t half = tensor->bytes.size() / 2;
        tensor->shape[0] = 2;
        tensor->bytes = testing::Bytes(
            tensor->bytes.begin() +
                static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * half),
            tensor->bytes.begin() +
                static_cast<std::ptrdiff_t>((static_cast<std::size_t>(rank) + 1) * half));
      }
    }
    auto method = Mxfp4MoeMethod::make(
        config, {.kernel = {.engine = runtime::EngineKind::reference, .threads = 1}});
    ASSERT_TRUE(method) << text(method.why());
    ASSERT_TRUE(method->create_weights());
    fill(*method, part, 1);
    const auto done = method->process_weights_after_loading();
    ASSERT_TRUE(done) << text(done.why());
    parts.push_back(through_method(*method, call, 128));
  }
  std::vector<double> sum = doubles(parts[1]);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double{parts[2][i]};
  EXPECT_LT(moe::testing::distance(doubles(parts[0]), sum), 0.02);
}

void fill(NvFp4MoeMethod& method, const NvFp4Layer& layer, bool packs) {
  const auto reciprocal = [](LoadedTensor tensor) {
    for (std::size_t i = 0; i < tensor.bytes.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, &tensor.bytes[i], 4);
      value = 1.0f / value;
      std::memcpy(&tensor.bytes[i], &value, 4);
    }
    return tensor;
  };
  const std::string weight = packs ? "_weight_packed" : "_weight";
  const std::string global = packs ? "_weight_global_scale" : "_weight_scale_2";
  const std::string input = packs ? "_input_global_scale" : "_input_scale";
  const auto put = [&](const std::string& name, const LoadedTensor& from, bool is_factor) {
    tensor::Tensor* to = method.parameter(name);
    ASSERT_NE(to, nullptr) << name;
    const LoadedTensor given = packs && is_factor ? reciprocal(from) : from;
    ASSERT_EQ(to->bytes().size(), given.bytes.size()) << name;
    std::ranges::copy(given.bytes, to->bytes().begin());
  };
  put("w13" + weight, layer.w13, false);
  put("w13_weight_scale", layer.w13_scale, false);
  put("w13" + global, layer.w13_scale_2, true);
  put("w13" + input, layer.a13_scale, true);
  put("w2" + weight, layer.w2, false);
  put("w2_weight_scale", layer.w2_scale, false);
  put("w2" + global, layer.w2_scale_2, true);
  put("w2" + input, layer.a2_scale, true);
}

checkpoint::LayerWeights weights_of(const NvFp4Layer& layer,
                                    std::vector<std::vector<float>>& keep) {
  checkpoint::LayerWeights result{.shape = {.format = WeightFormat::nvfp4,
                                            .experts = layer.sizes.experts,
                                            .hidden = layer.sizes.hidden,
                                            .intermediate = layer.sizes.intermediate,
                                            .order = layer.sizes.gated
                                                         ? checkpoint::RowOrder::halves
                                                         : checkpoint::RowOrder::single}};
  const auto floats = [&](const LoadedTensor& from) -> std::span<const float> {
    keep.emplace_back(from.bytes.size() / 4);
    std::memcpy(keep.back().data(), from.bytes.data(), from.bytes.size());
    return keep.back();
  };
  keep.reserve(4);
  result.w13 = {.codes = {layer.w13.bytes},
                .scales = {layer.w13_scale.bytes},
                .global_scales = floats(layer.w13_scale_2),
                .input_scales = floats(layer.a13_scale)};
  result.w2 = {.codes = {layer.w2.bytes},
               .scales = {layer.w2_scale.bytes},
               .global_scales = floats(layer.w2_scale_2),
               .input_scales = floats(layer.a2_scale)};
  return result;
}

TEST(NvFp4MoeMethod, ComputesWhatTheLayerComputes) {
  for (const bool packs : {false, true})
    for (const Case& given :
         {Case{"2026-08-22", "h100", "auto"}, Case{"2026-08-22", "b200", "auto"},
          Case{"2026-08-22", "b200", "cutlass"}, Case{"2026-04-24", "b200", "flashinfer_cutlass"},
          Case{"2026-01-27", "h100", "auto"}, Case{"2026-04-24", "mi355x", "emulation"},
          Case{"native", "cpu", "auto"}}) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", given.policy, given.device, given.backend, packs));
      const NvFp4Layer layer({.experts = 4, .hidden = 256, .intermediate = 64, .has_bias = false});
      MoeConfig config = config_for(layer.sizes, given.policy, given.device);
      config.moe_backend = given.backend;
      config.activation = Activation::silu;
      auto method =
          NvFp4MoeMethod::make(config, kNvfp4Dynamic,
                               {.kernel = {.engine = runtime::EngineKind::reference, .threads = 1},
                                .names = packs ? oracle::BufferNames::compressed_tensors
                                               : oracle::BufferNames::modelopt});
      ASSERT_TRUE(method) << text(method.why());
      ASSERT_TRUE(method->create_weights());
      fill(*method, layer, packs);
      const auto done = method->process_weights_after_loading();
      ASSERT_TRUE(done) << text(done.why());
      ASSERT_TRUE(method->get_fused_moe_quant_config());
      if (packs) continue;  // reciprocals of reciprocals differ in their last bit
      const Call call(layer.sizes);
      const std::vector<float> found = through_method(*method, call, 256);
      std::vector<std::vector<float>> keep;
      const checkpoint::LayerWeights weights = weights_of(layer, keep);
      const oracle::Backend& backend = *method->record().selection.backend;
      const oracle::Policy& policy = *method->record().selection.policy;
      EXPECT_EQ(found, through_layer(weights, Activation::silu, backend, policy,
                                     config.context.device, call, method->is_monolithic()));
      const std::vector<float> exact =
          through_layer(weights, Activation::silu, backend, policy, config.context.device, call,
                        method->is_monolithic(), moe::NumericsKind::exact);
      EXPECT_LT(moe::testing::distance(doubles(exact), doubles(found)), 0.5);
    }
}

TEST(NvFp4MoeMethod, LeavesActivationsOfAWeightOnlyCheckpoint) {
  const NvFp4Layer layer({.experts = 2, .hidden = 128, .intermediate = 64, .has_bias = false});
  MoeConfig config = config_for(layer.sizes, "2026-08-22", "h100");
  config.activation = Activation::silu;
  auto method = NvFp4MoeMethod::make(config, std::nullopt);
  ASSERT_TRUE(method) << text(method.why());
  EXPECT_EQ(method->nvfp4_backend(), NvFp4MoeBackend::MARLIN);
  ASSERT_TRUE(method->create_weights());
  fill(*method, layer, false);
  const auto done = method->process_weights_after_loading();
  ASSERT_TRUE(done) << text(done.why());
  EXPECT_EQ(method->get_fused_moe_quant_config()->quant_dtype, ActivationKey::none);
}

}  // namespace moe_method_test
}  // namespace fp4moe::vllm
