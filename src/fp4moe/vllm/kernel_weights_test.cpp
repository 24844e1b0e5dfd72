// Conversion on memory is conversion of files: the same tensors, byte for byte, for every backend of
// every policy whose layout is known.
#include "fp4moe/vllm/kernel_weights.hpp"

#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/vllm/mxfp4.hpp"
#include "fp4moe/vllm/nvfp4.hpp"
#include "support/converted_folder.hpp"
#include "support/tiny_model.hpp"
#include "support/vllm_tensors.hpp"

namespace fp4moe::vllm {
namespace kernel_weights_test {

using checkpoint::testing::FileTensor;
using testing::LayerSizes;
using testing::LoadedTensor;
using testing::Mxfp4Layer;
using testing::NvFp4Layer;

constexpr std::string_view kDevices[] = {"h100", "b200", "mi355x", "mi300x", "cpu"};

void write_config(const std::string& folder, const LayerSizes& sizes, std::string_view model,
                  std::string_view quantization) {
  tensor::testing::write_text(
      folder + "/config.json",
      fmt::format(R"({{"model_type": "{}", "num_local_experts": {}, "num_experts": {},
                       "num_experts_per_tok": 2, "hidden_size": {}, "intermediate_size": {},
                       "moe_intermediate_size": {}, "quantization_config": {}}})",
                  model, sizes.experts, sizes.experts, sizes.hidden, sizes.intermediate,
                  sizes.intermediate, quantization));
}

FileTensor named(std::string name, const LoadedTensor& from, tensor::Shape shape) {
  return {std::move(name), from.dtype, std::move(shape), from.bytes};
}

void write_gpt_oss(const std::string& folder, const Mxfp4Layer& layer) {
  const LayerSizes& sizes = layer.sizes;
  const std::uint64_t e = sizes.experts, h = sizes.hidden, i = sizes.intermediate;
  const std::string at = "model.layers.0.mlp.experts.";
  checkpoint::testing::write_safetensors(
      folder + "/model.safetensors",
      {named(at + "gate_up_proj_blocks", layer.w13, {e, 2 * i, h / 32, 16}),
       named(at + "gate_up_proj_scales", layer.w13_scale, {e, 2 * i, h / 32}),
       named(at + "gate_up_proj_bias", layer.w13_bias, {e, 2 * i}),
       named(at + "down_proj_blocks", layer.w2, {e, h, i / 32, 16}),
       named(at + "down_proj_scales", layer.w2_scale, {e, h, i / 32}),
       named(at + "down_proj_bias", layer.w2_bias, {e, h})});
  write_config(folder, sizes, "gpt_oss", R"({"quant_method": "mxfp4"})");
}

// Bytes [part] of `parts` of one expert.
FileTensor part(std::string name, const LoadedTensor& from, std::uint64_t expert,
                std::uint64_t part, std::uint64_t parts) {
  const std::size_t each = from.bytes.size() / from.shape[0] / parts;
  const std::size_t first = (expert * parts + part) * each;
  tensor::Shape shape;
  if (from.shape.size() == 3) shape = {from.shape[1] / parts, from.shape[2]};
  return {std::move(name), from.dtype, std::move(shape),
          testing::Bytes(from.bytes.begin() + static_cast<std::ptrdiff_t>(first),
                         from.bytes.begin() + static_cast<std::ptrdiff_t>(first + each))};
}

void write_modelopt(const std::string& folder, const NvFp4Layer& layer) {
  std::vector<FileTensor> all;
  const std::uint64_t parts = layer.sizes.gated ? 2 : 1;
  for (std::uint64_t e = 0; e < layer.sizes.experts; ++e) {
    const auto add = [&](std::string_view projection, const LoadedTensor& codes,
                         const LoadedTensor& scales, const LoadedTensor& global,
                         const LoadedTensor& input, std::uint64_t which, std::uint64_t of) {
      const std::string at = fmt::format("model.layers.0.mlp.experts.{}.{}.", e, projection);
      all.push_back(part(at + "weight", codes, e, which, of));
      all.push_back(part(at + "weight_scale", scales, e, which, of));
      all.push_back(part(at + "weight_scale_2", global, e, which, of));
      all.push_back(part(at + "input_scale", input, e, which, of));
    };
    if (parts == 2)
      add("gate_proj", layer.w13, layer.w13_scale, layer.w13_scale_2, layer.a13_scale, 0, 2);
    add("up_proj", layer.w13, layer.w13_scale, layer.w13_scale_2, layer.a13_scale, parts - 1,
        parts);
    add("down_proj", layer.w2, layer.w2_scale, layer.w2_scale_2, layer.a2_scale, 0, 1);
  }
  checkpoint::testing::write_safetensors(folder + "/model.safetensors", all);
  write_config(folder, layer.sizes, layer.sizes.gated ? "qwen3_moe" : "nemotron_h",
               R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16})");
}

// What `fp4moe convert --policy P --backend B --device D` makes of the checkpoint.
class FileSide {
 public:
  void convert(const std::string& checkpoint, const std::string& out, const oracle::Policy& policy,
               const oracle::Backend& backend, const Context& context) {
    const auto opened = checkpoint::Checkpoint::open(checkpoint);
    ASSERT_TRUE(opened) << text(opened.why());
    runtime::Choice choice{.policy = &policy, .backend = &backend, .device = context.device};
    const auto layout = backends::layout_of(
        {.backend = backend, .policy_date = policy.policy_date, .device = context.device});
    ASSERT_TRUE(layout) << text(layout.why());
    choice.layout = *layout;
    const auto activation =
        policy.format == WeightFormat::mxfp4 ? Activation::swigluoai : Activation::silu;
    const auto done = convert::testing::convert(checkpoint, out, choice.recipe({}, activation));
    why_ = done ? "" : done.why().id;
    if (!done) return;
    auto folder = convert::ConvertedFolder::open(out);
    ASSERT_TRUE(folder) << text(folder.why());
    folder_.emplace(*std::move(folder));
  }

  // Compares with what was made in memory.
  void expect_same(const Result<KernelWeights>& found) const {
    if (!why_.empty()) {
      ASSERT_FALSE(found) << why_;
      EXPECT_EQ(found.why().id, why_);
      return;
    }
    ASSERT_TRUE(found) << text(found.why());
    const std::vector<convert::NamedView> expected = folder_->layer(0);
    ASSERT_EQ(expected.size(), found->tensors().size());
    for (const convert::NamedView& tensor : expected) {
      const TensorView view = found->tensor(tensor.name);
      EXPECT_EQ(view.dtype, tensor.view.dtype) << tensor.name;
      EXPECT_EQ(view.shape, tensor.view.shape) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(view.bytes, tensor.view.bytes)) << tensor.name;
    }
  }

 private:
  std::string why_{};  // the error's id
  std::optional<convert::ConvertedFolder> folder_{};
};

// Calls use(policy, backend, context, number) for every layout of every policy, once.
template <class Use>
int each_layout(WeightFormat format, const Use& use) {
  std::set<std::string> seen;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != format) continue;
    for (const oracle::Backend* backend : policy.backends)
      for (const std::string_view name : kDevices) {
        const Context context{.policy = std::string(policy.name),
                              .device = *platform::describe_device(name)};
        const auto layout = backends::layout_of(
            {.backend = *backend, .policy_date = policy.policy_date, .device = context.device});
        if (!layout) continue;
        const auto sizes = oracle::round_sizes(*backend, context.device, {}, {160, 96});
        const std::string what = fmt::format("{} {} {}x{} {}", (*layout)->id, (*layout)->generation,
                                             sizes->hidden, sizes->intermediate, backend->name);
        if (!seen.insert(what).second) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", policy.name, backend->name, name));
        use(policy, *backend, context, seen.size());
      }
  }
  return static_cast<int>(seen.size());
}

TEST(Mxfp4Conversion, OfMemoryIsThatOfFiles) {
  const tensor::testing::TemporaryFolder folder;
  const Mxfp4Layer layer({.experts = 3, .hidden = 160, .intermediate = 96});
  const std::string source = folder.path() + "/in";
  std::filesystem::create_directory(source);
  write_gpt_oss(source, layer);
  const int layouts = each_layout(
      WeightFormat::mxfp4, [&](const oracle::Policy& policy, const oracle::Backend& backend,
                               const Context& context, std::size_t number) {
        FileSide file;
        file.convert(source, fmt::format("{}/out{}", folder.path(), number), policy, backend,
                     context);
        file.expect_same(convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
            *parse_mxfp4_moe_backend(backend.name), layer.tensors(), context,
            {.activation = policy.is_generic ? std::optional(Activation::swigluoai) : std::nullopt,
             .threads = 2}));
      });
  EXPECT_GT(layouts, 20);
}

TEST(NvFp4Conversion, OfMemoryIsThatOfFiles) {
  const tensor::testing::TemporaryFolder folder;
  for (const LayerSizes sizes : {LayerSizes{.experts = 3, .hidden = 128, .intermediate = 64},
                                 LayerSizes{.experts = 2, .hidden = 256, .intermediate = 80},
                                 LayerSizes{.hidden = 192, .intermediate = 112, .gated = false}}) {
    const NvFp4Layer layer(sizes);
    const std::string source = fmt::format("{}/in{}", folder.path(), sizes.intermediate);
    std::filesystem::create_directory(source);
    write_modelopt(source, layer);
    const int layouts = each_layout(
        WeightFormat::nvfp4, [&](const oracle::Policy& policy, const oracle::Backend& backend,
                                 const Context& context, std::size_t number) {
          FileSide file;
          file.convert(source, fmt::format("{}-{}", source, number), policy, backend, context);
          const auto found = convert_to_nvfp4_moe_kernel_format(
              *parse_nvfp4_moe_backend(backend.name), layer.tensors(), sizes.gated, context);
          file.expect_same(found ? Result<KernelWeights>(found->packed)
                                 : Result<KernelWeights>(found.why()));
        });
    EXPECT_GT(layouts, 8);
  }
}

// The quant config's numbers are those that conversion writes beside the weights.
TEST(NvFp4QuantConfig, HasTheAlphasOfTheLayout) {
  const NvFp4Layer layer({.experts = 3, .hidden = 256, .intermediate = 64});
  int checked = 0;
  each_layout(WeightFormat::nvfp4, [&](const oracle::Policy& policy, const oracle::Backend& backend,
                                       const Context& context, std::size_t) {
    const NvFp4MoeBackend member = *parse_nvfp4_moe_backend(backend.name);
    const auto result = convert_to_nvfp4_moe_kernel_format(member, layer.tensors(), true, context);
    ASSERT_TRUE(result) << text(result.why());
    MoeConfig config;
    config.context = context;
    config.activation_key = kNvfp4Dynamic;
    const auto quant = make_nvfp4_moe_quant_config(member, scales_of(*result), config);
    ASSERT_TRUE(quant) << text(quant.why());
    EXPECT_EQ(quant->weight_quant_dtype, "nvfp4");
    EXPECT_EQ(quant->w1_scale.bytes.data(), result->packed.tensor("w13_scale").bytes.data());
    for (const auto& [name, values] :
         {std::pair("g1_alphas", &quant->g1_alphas), std::pair("g2_alphas", &quant->g2_alphas),
          std::pair("a1_gscale", &quant->a1_gscale), std::pair("a2_gscale", &quant->a2_gscale),
          std::pair("g1_scale_c", &quant->g1_scale_c)}) {
      const std::vector<float> packed = result->packed.numbers(name);
      if (packed.empty()) continue;
      EXPECT_EQ(*values, packed) << name << " of " << policy.name;
      ++checked;
    }
    if (backend.name == "MARLIN") {
      EXPECT_TRUE(result->a13_scale.empty());
      EXPECT_EQ(quant->g1_alphas, result->packed.numbers("w13_scale_2"));
      EXPECT_TRUE(quant->a1_gscale.empty());
    }
  });
  EXPECT_GT(checked, 12);
}

TEST(Conversion, GoesIntoTheCallersMemory) {
  const Mxfp4Layer layer({.experts = 2, .hidden = 128, .intermediate = 128});
  const Context context{.policy = "2026-08-22", .device = *platform::describe_device("h100")};
  const auto own =
      convert_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend::MARLIN, layer.tensors(), context);
  ASSERT_TRUE(own) << text(own.why());
  auto shape = shape_of(layer.tensors(), checkpoint::RowOrder::interleaved);
  ASSERT_TRUE(shape);
  shape->has_bias = true;
  const auto format = kernel_format("MARLIN", *shape, context);
  ASSERT_TRUE(format) << text(format.why());
  std::vector<testing::Bytes> memory;
  for (const convert::PackedTensorSpec& tensor : format->tensors())
    memory.emplace_back(tensor.bytes, std::byte{0xA5});
  const std::vector<std::span<std::byte>> out(memory.begin(), memory.end());
  const auto given = convert_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend::MARLIN, layer.tensors(),
                                                        context, {.out = out});
  ASSERT_TRUE(given) << text(given.why());
  for (std::size_t t = 0; t < memory.size(); ++t) {
    EXPECT_TRUE(std::ranges::equal(memory[t], own->views()[t])) << format->tensors()[t].name;
    EXPECT_EQ(given->views()[t].data(), memory[t].data());
  }
  std::vector<std::span<std::byte>> short_out = out;
  short_out[1] = short_out[1].first(10);
  const auto refused = convert_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend::MARLIN, layer.tensors(),
                                                          context, {.out = short_out});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "convert.targets");
}

// Rows of the gate before those of the up are not gpt-oss's rows.
TEST(Conversion, KnowsBothOrdersOfRows) {
  const Mxfp4Layer interleaved({.experts = 1, .hidden = 128, .intermediate = 128});
  Mxfp4Layer halves = interleaved;
  for (const auto& [from, to] : {std::pair(&interleaved.w13, &halves.w13),
                                 std::pair(&interleaved.w13_scale, &halves.w13_scale),
                                 std::pair(&interleaved.w13_bias, &halves.w13_bias)}) {
    const std::size_t row = from->bytes.size() / 256;
    for (std::size_t i = 0; i < 256; ++i)
      std::copy_n(from->bytes.begin() + static_cast<std::ptrdiff_t>(i * row), row,
                  to->bytes.begin() + static_cast<std::ptrdiff_t>((i % 2 * 128 + i / 2) * row));
  }
  const Context context{.policy = "2026-08-22", .device = *platform::describe_device("b200")};
  const auto backend = Mxfp4MoeBackend::FLASHINFER_TRTLLM_MXFP4_BF16;
  const auto a =
      convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(backend, interleaved.tensors(), context);
  const auto b = convert_weight_to_mxfp4_moe_kernel_format(backend, halves.tensors(), context);
  ASSERT_TRUE(a && b);
  for (std::size_t t = 0; t < a->views().size(); ++t)
    EXPECT_TRUE(std::ranges::equal(a->views()[t], b->views()[t])) << a->tensors()[t].name;
}

TEST(Conversion, RefusesWhatDoesNotFit) {
  const Mxfp4Layer layer({.experts = 2, .hidden = 128, .intermediate = 128});
  const Context context{.policy = "2026-08-22", .device = *platform::describe_device("h100")};
  const auto id = [&](const Mxfp4Tensors& given,
                      Mxfp4MoeBackend backend = Mxfp4MoeBackend::MARLIN) {
    const auto result = convert_to_mxfp4_moe_kernel_format(backend, given, context);
    return result ? std::string("ok") : result.why().id + " " + result.why().tensor;
  };
  Mxfp4Tensors given = layer.tensors();
  EXPECT_EQ(id(given), "ok");
  given.w13_weight.dtype = tensor::DType::f32;
  EXPECT_EQ(id(given), "vllm.tensor w13_weight");
  given = layer.tensors();
  given.w2_weight.shape = {2, 128};
  EXPECT_EQ(id(given), "vllm.tensor w2_weight");
  given = layer.tensors();
  given.w13_weight.shape[1] -= 1;
  EXPECT_EQ(id(given), "vllm.tensor w13_weight");
  given = layer.tensors();
  given.w2_weight_scale.bytes = {};
  EXPECT_EQ(id(given), "vllm.tensor w2_weight_scale");
  given = layer.tensors();
  given.w13_weight.bytes = {static_cast<const std::byte*>(nullptr), 0};
  EXPECT_EQ(id(given), "vllm.tensor w13_weight");
  given = layer.tensors();
  given.w13_bias.dtype = tensor::DType::u8;
  EXPECT_EQ(id(given), "vllm.tensor w13_bias");
  given = layer.tensors();
  given.w2_weight.shape[2] -= 1;
  EXPECT_EQ(id(given), "vllm.tensor w2_weight");  // an odd size
  EXPECT_EQ(id({}), "vllm.tensor w13_weight");
  EXPECT_EQ(id(layer.tensors(), Mxfp4MoeBackend::HUMMING), "layout.external ");
  EXPECT_EQ(id(layer.tensors(), Mxfp4MoeBackend::CK), "vllm.backend ");
  Mxfp4Layer nan = layer;
  nan.w13_scale.bytes[3] = std::byte{255};
  EXPECT_TRUE(id(nan.tensors()).starts_with("scale.nan")) << id(nan.tensors());
}

TEST(NvFp4Conversion, RefusesWhatDoesNotFit) {
  const NvFp4Layer layer({.experts = 2, .hidden = 128, .intermediate = 64});
  const Context context{.policy = "2026-08-22", .device = *platform::describe_device("b200")};
  const auto id = [&](const NvFp4Tensors& given,
                      NvFp4MoeBackend backend = NvFp4MoeBackend::FLASHINFER_CUTLASS) {
    const auto result = convert_to_nvfp4_moe_kernel_format(backend, given, true, context);
    return result ? std::string("ok") : result.why().id + " " + result.why().tensor;
  };
  NvFp4Tensors given = layer.tensors();
  EXPECT_EQ(id(given), "ok");
  given.a2_scale = {};
  EXPECT_EQ(id(given), "vllm.tensor a2_scale");
  given = layer.tensors();
  given.a13_scale = given.a2_scale = {};
  EXPECT_EQ(id(given), "scale.input ");
  EXPECT_EQ(id(given, NvFp4MoeBackend::MARLIN), "ok");
  given = layer.tensors();
  given.w13_scale_2.shape = {4};
  EXPECT_EQ(id(given), "vllm.tensor w13_scale_2");
  given = layer.tensors();
  given.w2_scale.dtype = tensor::DType::f8_e8m0;
  EXPECT_EQ(id(given), "vllm.tensor w2_scale");
}

// Some backends take one input scale for the experts of all ranks.
TEST(NvFp4Conversion, TakesInputScalesOfAllRanks) {
  const NvFp4Layer layer({.experts = 2, .hidden = 128, .intermediate = 64});
  testing::TensorMaker make(9);
  const LoadedTensor a13 = make.f32({8, 2}, 0.5f), a2 = make.f32({8}, 0.25f);
  NvFp4Tensors given = layer.tensors();
  given.a13_scale = a13.view();
  given.a2_scale = a2.view();
  const Context context{.policy = "2026-08-22", .device = *platform::describe_device("b200")};
  const auto shared =
      convert_to_nvfp4_moe_kernel_format(NvFp4MoeBackend::FLASHINFER_CUTLASS, given, true, context);
  ASSERT_TRUE(shared) << text(shared.why());
  float largest = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    float value = 0;
    std::memcpy(&value, &a13.bytes[4 * i], 4);
    largest = std::max(largest, value);
  }
  EXPECT_EQ(shared->a13_scale, std::vector<float>(2, largest));
  const auto own =
      convert_to_nvfp4_moe_kernel_format(NvFp4MoeBackend::VLLM_CUTLASS, given, true, context);
  ASSERT_FALSE(own);
  EXPECT_EQ(own.why().tensor, "a13_scale");
}

// 0.33.0's list for gpt-oss has a backend that its conversion does not know (Q25).
TEST(Mxfp4Conversion, OfGptOssForCutlassIsRefusedAsIn033AndDoneInStrictMode) {
  const Mxfp4Layer layer({.experts = 2, .hidden = 256, .intermediate = 128});
  Context context{.policy = "vllm-0.33.0",
                  .mode = oracle::Mode::compat,
                  .device = *platform::describe_device("b200")};
  const auto refused = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
      Mxfp4MoeBackend::CUTLASS_MXFP4_MXFP4, layer.tensors(), context);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "vllm.refused");
  const std::string& said = refused.why().message;
  EXPECT_TRUE(said.starts_with(
      "Unsupported mxfp4_backend: Mxfp4MoeBackend.CUTLASS_MXFP4_MXFP4: should be "
      "one of: [<Mxfp4MoeBackend.NONE: 'None'>, <Mxfp4MoeBackend.B12X_MXFP4_MXFP8: "
      "'B12X_MXFP4_MXFP8'>, "))
      << said;
  EXPECT_TRUE(
      said.ends_with("<Mxfp4MoeBackend.FLASHINFER_MOE_EP_DEEP_GEMM: "
                     "'FLASHINFER_MOE_EP_DEEP_GEMM'>]."))
      << said;
  EXPECT_EQ(std::ranges::count(said, '<'), 24);
  context.mode = oracle::Mode::strict;
  const auto strict = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
      Mxfp4MoeBackend::CUTLASS_MXFP4_MXFP4, layer.tensors(), context);
  ASSERT_TRUE(strict) << text(strict.why());
  EXPECT_EQ(strict->layout().id, "vllm_cutlass.mxfp4");
}

}  // namespace kernel_weights_test
}  // namespace fp4moe::vllm
