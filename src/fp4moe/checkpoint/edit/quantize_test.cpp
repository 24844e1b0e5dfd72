#include "fp4moe/checkpoint/edit/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/synth/synth.hpp"
#include "fp4moe/checkpoint/synth/synth_expert.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace quantize_test {

using tensor::testing::TemporaryFolder;

SynthOptions plain(const char* model, Unquantized form = Unquantized::own) {
  return {.model = model,
          .unquantized = form,
          .layers = 2,
          .experts = 3,
          .hidden = 128,
          .intermediate = 192,
          .seed = 5};
}

void make(const SynthOptions& options, const std::string& out) {
  const Result<SynthReport> result = synth(options, out);
  ASSERT_TRUE(result) << text(result.why());
}

Result<QuantizeReport> run(const std::string& from, const std::string& out,
                           const QuantizeOptions& options) {
  const Result<PlainCheckpoint> source = PlainCheckpoint::open(from);
  if (!source) return source.why();
  return quantize(*source, out, options);
}

std::vector<float> numbers(std::uint64_t seed, std::uint64_t rows, std::uint64_t k) {
  std::vector<std::uint16_t> bits(rows * k);
  fill_normal_bf16(seed, k, bits);
  std::vector<float> values(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = formats::Bf16::decode(bits[i]);
  return values;
}

// The reference: one matrix by the functions of formats/, block by block.
struct Expected {
  std::vector<std::uint8_t> codes{}, scales{};
};

Expected reference(const std::vector<float>& values, WeightFormat format, float divisor,
                   formats::Mxfp4Rule rule = formats::Mxfp4Rule::even_rne) {
  const std::size_t block = block_size(format);
  Expected out{std::vector<std::uint8_t>(values.size() / 2),
               std::vector<std::uint8_t>(values.size() / block)};
  for (std::size_t b = 0; b < out.scales.size(); ++b) {
    const std::span<const float> x(values.data() + b * block, block);
    const std::span<std::uint8_t> codes(out.codes.data() + b * block / 2, block / 2);
    if (format == WeightFormat::mxfp4) {
      formats::quantize_mxfp4(rule, x, out.scales[b], codes);
    } else {
      formats::quantize_nvfp4(divisor, x, out.scales[b], codes);
    }
  }
  return out;
}

void expect_matrix(const ProjectionView& view, const Expected& expected) {
  for (std::uint64_t row = 0; row < view.codes.rows; ++row) {
    const auto codes = view.codes.row(row), scales = view.scales.row(row);
    ASSERT_EQ(std::memcmp(codes.data(), expected.codes.data() + row * codes.size(), codes.size()),
              0)
        << "row " << row;
    ASSERT_EQ(
        std::memcmp(scales.data(), expected.scales.data() + row * scales.size(), scales.size()), 0)
        << "row " << row;
  }
}

float largest(const std::vector<float>& values) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

struct Case {
  const char* model;
  Unquantized form;
  std::uint64_t block;  // of the second MoE layer
};

class EveryForm : public ::testing::TestWithParam<Case> {};

TEST_P(EveryForm, Mxfp4EqualsTheReferenceBlockByBlock) {
  const TemporaryFolder folder;
  const auto [model, form, layer] = GetParam();
  ASSERT_NO_FATAL_FAILURE(make(plain(model, form), folder / "a"));

  const Result<QuantizeReport> report =
      run(folder / "a", folder / "b", {.format = WeightFormat::mxfp4, .threads = 2});

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->experts, 6u);
  const Result<Checkpoint> result = Checkpoint::open(folder / "b");
  ASSERT_TRUE(result) << text(result.why());
  ExpertReader reader(*result, {});
  const Result<ExpertView> view = reader.read(1, 2);
  ASSERT_TRUE(view) << text(view.why());
  const ExpertSeed seed{5, layer, 2};
  if (view->shape.gated())
    expect_matrix(view->gate,
                  reference(numbers(part_seed(seed, 0), 192, 128), WeightFormat::mxfp4, 1));
  expect_matrix(view->up, reference(numbers(part_seed(seed, 1), 192, 128), WeightFormat::mxfp4, 1));
  expect_matrix(view->down,
                reference(numbers(part_seed(seed, 2), 128, 192), WeightFormat::mxfp4, 1));
}

TEST_P(EveryForm, Nvfp4EqualsTheReferenceWithOneGlobalScaleForGateAndUp) {
  const TemporaryFolder folder;
  const auto [model, form, layer] = GetParam();
  ASSERT_NO_FATAL_FAILURE(make(plain(model, form), folder / "a"));

  const Result<QuantizeReport> report =
      run(folder / "a", folder / "b", {.format = WeightFormat::nvfp4, .threads = 2});

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->to, "modelopt");
  const Result<Checkpoint> result = Checkpoint::open(folder / "b");
  ASSERT_TRUE(result) << text(result.why());
  ExpertReader reader(*result, {});
  const Result<ExpertView> view = reader.read(1, 0);
  ASSERT_TRUE(view) << text(view.why());
  const ExpertSeed seed{5, layer, 0};
  const auto gate = numbers(part_seed(seed, 0), 192, 128);
  const auto up = numbers(part_seed(seed, 1), 192, 128);
  float amax = largest(up);
  if (view->shape.gated()) amax = std::max(amax, largest(gate));
  const float divisor = formats::nvfp4_global_scale(amax);
  EXPECT_EQ(view->up.global_scale, 1.0f / divisor);
  EXPECT_FALSE(view->up.input_scale);
  expect_matrix(view->up, reference(up, WeightFormat::nvfp4, divisor));
  if (view->shape.gated()) {
    EXPECT_EQ(view->gate.global_scale, view->up.global_scale);
    expect_matrix(view->gate, reference(gate, WeightFormat::nvfp4, divisor));
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EveryForm,
                         ::testing::Values(Case{"gpt-oss-20b", Unquantized::own, 1},
                                           Case{"qwen3-30b-a3b", Unquantized::own, 1},
                                           Case{"qwen3-30b-a3b", Unquantized::fused, 1},
                                           Case{"mixtral-8x7b", Unquantized::own, 1},
                                           Case{"nemotron-3-nano", Unquantized::own, 3}));

TEST(Quantize, KeepsBiasesAndOtherTensorsAndSaysWhatItIs) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("gpt-oss-20b"), folder / "a"));

  const Result<QuantizeReport> report = run(folder / "a", folder / "b", {});

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->to, "gpt-oss");
  const Result<tensor::Store> before = tensor::Store::open(folder / "a");
  const Result<tensor::Store> after = tensor::Store::open(folder / "b");
  ASSERT_TRUE(before && after);
  const auto equal = [&](const std::string& was, const std::string& is) {
    const auto *x = before->find(was), *y = after->find(is);
    ASSERT_TRUE(x != nullptr && y != nullptr) << was;
    const auto a = before->bytes(*x), b = after->bytes(*y);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << was;
  };
  equal("model.layers.0.mlp.router.weight", "model.layers.0.mlp.router.weight");
  equal("model.layers.1.self_attn.sinks", "model.layers.1.self_attn.sinks");
  equal("model.layers.1.mlp.experts.gate_up_proj_bias",
        "model.layers.1.mlp.experts.gate_up_proj_bias");
  equal("model.layers.0.mlp.experts.down_proj_bias", "model.layers.0.mlp.experts.down_proj_bias");
  const Result<Json> config = read_json_file(folder / "b/config.json");
  ASSERT_TRUE(config);
  EXPECT_EQ((*config)["quantization_config"]["quant_method"], "mxfp4");
  EXPECT_EQ((*config)["hidden_size"], 128);
}

TEST(Quantize, ErrorsAreThoseOfTheFormatAndDoNotDependOnThreads) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));

  const Result<QuantizeReport> one = run(folder / "a", folder / "b", {.threads = 1});
  const Result<QuantizeReport> many = run(folder / "a", folder / "c", {.threads = 5});

  ASSERT_TRUE(one && many);
  EXPECT_GT(one->up.rms, 0.08);
  EXPECT_LT(one->up.rms, 0.16);
  EXPECT_GT(one->up.max, one->up.rms);
  EXPECT_LT(one->up.max, 0.26);
  EXPECT_EQ(one->up.rms, many->up.rms);
  EXPECT_EQ(one->gate.max, many->gate.max);
  EXPECT_EQ(tensor::testing::read_text(folder / "b/model.safetensors"),
            tensor::testing::read_text(folder / "c/model.safetensors"));
}

TEST(Quantize, EveryRuleCanBeChosen) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));
  for (const formats::Mxfp4RuleRow& row : formats::kMxfp4Rules) {
    const std::string out = folder / std::string(row.name);

    const Result<QuantizeReport> report = run(folder / "a", out, {.mxfp4_rule = row.rule});

    ASSERT_TRUE(report) << text(report.why());
    EXPECT_EQ(report->rule, row.name);
    const Result<Checkpoint> result = Checkpoint::open(out);
    ASSERT_TRUE(result) << text(result.why());
    ExpertReader reader(*result, {});
    const Result<ExpertView> view = reader.read(0, 1);
    ASSERT_TRUE(view);
    expect_matrix(view->down, reference(numbers(part_seed({5, 0, 1}, 2), 128, 192),
                                        WeightFormat::mxfp4, 1, row.rule));
  }
}

TEST(Quantize, GlobalScalesCanBeKeptApartAndInputScalesGiven) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));

  const Result<QuantizeReport> report =
      run(folder / "a", folder / "b",
          {.format = WeightFormat::nvfp4,
           .to = Dialect::compressed_tensors,
           .separate_global_scales = true,
           .input_scales = {{"*.down_proj", 0.25f}, {"*", 0.1f}}});

  ASSERT_TRUE(report) << text(report.why());
  const Result<Checkpoint> result = Checkpoint::open(folder / "b");
  ASSERT_TRUE(result) << text(result.why());
  ExpertReader reader(*result, {});
  const Result<ExpertView> view = reader.read(0, 0);
  ASSERT_TRUE(view);
  EXPECT_NE(view->gate.global_scale, view->up.global_scale);
  const float divisor =
      formats::nvfp4_global_scale(largest(numbers(part_seed({5, 0, 0}, 0), 192, 128)));
  EXPECT_EQ(view->gate.global_scale, 1.0f / divisor);
  EXPECT_EQ(view->down.input_scale, 1.0f / (1.0f / 0.25f));
  EXPECT_EQ(view->up.input_scale, 1.0f / (1.0f / 0.1f));
}

TEST(Quantize, RefusesInputScalesThatDoNotCoverEverything) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));

  const auto partial = run(folder / "a", folder / "b",
                           {.format = WeightFormat::nvfp4, .input_scales = {{"*.down_proj", 1}}});
  const auto needless = run(folder / "a", folder / "b", {.input_scales = {{"*", 1}}});

  ASSERT_FALSE(partial);
  EXPECT_EQ(partial.why().id, "quantize.input_scale");
  ASSERT_FALSE(needless);
  EXPECT_EQ(needless.why().id, "quantize.input_scale");
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

// A copy of a checkpoint with one tensor changed.
void change(const std::string& from, const std::string& to, const std::string& name,
            const std::function<void(NewTensor&)>& edit) {
  const Result<tensor::Store> store = tensor::Store::open(from);
  ASSERT_TRUE(store);
  const tensor::StoredTensor* tensor = store->find(name);
  ASSERT_NE(tensor, nullptr) << name;
  const auto bytes = store->bytes(*tensor);
  CheckpointEdits edits;
  edits.put.push_back({{name, tensor->entry.dtype, tensor->entry.shape},
                       std::vector<std::byte>(bytes.begin(), bytes.end())});
  edit(edits.put[0]);
  ASSERT_TRUE(copy_checkpoint(*store, to, edits));
}

TEST(Quantize, NamesTheWeightThatIsNotFinite) {
  for (const auto& [bits, what] : {std::pair{0x7FC0, "NaN"}, std::pair{0xFF80, "infinity"}}) {
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      const TemporaryFolder folder;
      ASSERT_NO_FATAL_FAILURE(make(plain("gpt-oss-20b"), folder / "a"));
      // gate_up_proj is [3, 128, 384]; expert 1, column 5 of the matrix, row 9 of up.
      ASSERT_NO_FATAL_FAILURE(change(folder / "a", folder / "b",
                                     "model.layers.0.mlp.experts.gate_up_proj",
                                     [bits = bits](NewTensor& tensor) {
                                       const std::size_t at = (1 * 128 + 5) * 384 + 2 * 9 + 1;
                                       const auto value = static_cast<std::uint16_t>(bits);
                                       std::memcpy(tensor.bytes.data() + 2 * at, &value, 2);
                                     }));

      const auto report = run(folder / "b", folder / "c", {.format = format});

      ASSERT_FALSE(report);
      EXPECT_EQ(report.why().id, "quantize.not_finite");
      EXPECT_EQ(report.why().tensor, "model.layers.0.mlp.experts.gate_up_proj");
      EXPECT_EQ(report.why().found, std::string(what) + " at row 9, column 5");
      EXPECT_FALSE(std::filesystem::exists(folder / "c"));
    }
  }
}

// Whoever opens the result compares its config.json with its tensors; so does who writes it.
TEST(Quantize, RefusesAConfigurationThatContradictsTheTensors) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  const Result<Json> config = read_json_file(folder / "a/config.json");
  ASSERT_TRUE(store && config);
  for (const auto& [key, value] : std::vector<std::pair<const char*, int>>{
           {"hidden_size", 256}, {"moe_intermediate_size", 160}, {"num_experts", 2}}) {
    Json changed = *config;
    changed[key] = value;
    const TemporaryFolder other;
    ASSERT_TRUE(copy_checkpoint(*store, other / "b", {.documents = {{"config.json", changed}}}));
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
      const auto report = run(other / "b", other / "c", {.format = format});
      ASSERT_FALSE(report) << key;
      EXPECT_EQ(report.why().id, value == 2 ? "layer.extra_expert" : "config.mismatch") << key;
      EXPECT_EQ(report.why().path, other / "b") << key;
      EXPECT_EQ(other.names(), std::vector<std::string>{"b"}) << key;
    }
  }
}

TEST(Quantize, RefusesWhatItCannotReadForCertain) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b", Unquantized::fused), folder / "fused"));
  ASSERT_NO_FATAL_FAILURE(make(plain("gpt-oss-20b"), folder / "gpt-oss"));
  const auto with_type = [&](const std::string& from, const char* to, Json type) {
    const Result<tensor::Store> store = tensor::Store::open(from);
    Result<Json> config = read_json_file(from + "/config.json");
    ASSERT_TRUE(store && config);
    if (type.is_null()) {
      config->erase("model_type");
    } else {
      (*config)["model_type"] = type;
    }
    ASSERT_TRUE(copy_checkpoint(*store, folder / to, {.documents = {{"config.json", *config}}}));
  };
  with_type(folder / "fused", "no-type", nullptr);
  with_type(folder / "fused", "straight-gpt-oss", "gpt_oss");
  with_type(folder / "gpt-oss", "transposed-qwen", "qwen3_moe");
  ASSERT_NO_FATAL_FAILURE(change(folder / "fused", folder / "misfit",
                                 "model.layers.0.mlp.experts.down_proj", [](NewTensor& tensor) {
                                   tensor.spec.shape = {3, 96, 256};
                                 }));
  const auto id = [&](const char* from) {
    const auto report = run(folder / from, folder / "x", {});
    return report ? "none" : report.why().id;
  };

  EXPECT_EQ(id("no-type"), "quantize.form");
  EXPECT_EQ(id("straight-gpt-oss"), "quantize.form");
  EXPECT_EQ(id("transposed-qwen"), "quantize.form");
  EXPECT_EQ(id("misfit"), "quantize.shape");
}

TEST(Quantize, RefusesIncompleteMixedAndQuantizedCheckpoints) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));
  ASSERT_NO_FATAL_FAILURE(make(
      {.model = "qwen3-30b-a3b", .experts = 2, .hidden = 64, .intermediate = 64}, folder / "done"));
  const std::string name = "model.layers.0.mlp.experts.1.up_proj.weight";
  ASSERT_NO_FATAL_FAILURE(change(folder / "a", folder / "half", name, [](NewTensor& tensor) {
    tensor.spec.dtype = tensor::DType::f16;
  }));
  ASSERT_NO_FATAL_FAILURE(change(folder / "a", folder / "bytes", name, [](NewTensor& tensor) {
    tensor.spec = {tensor.spec.name, tensor::DType::u8, {192, 256}};
  }));
  ASSERT_NO_FATAL_FAILURE(change(folder / "a", folder / "transposed", name, [](NewTensor& tensor) {
    std::swap(tensor.spec.shape[0], tensor.spec.shape[1]);
  }));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  ASSERT_TRUE(copy_checkpoint(*store, folder / "missing", {.remove = {name}}));
  CheckpointEdits none;
  for (const tensor::StoredTensor& tensor : store->tensors())
    if (tensor.entry.name.find("experts") != std::string::npos)
      none.remove.push_back(tensor.entry.name);
  ASSERT_TRUE(copy_checkpoint(*store, folder / "dense", none));
  const auto id = [&](const char* from, const QuantizeOptions& options = {}) {
    const auto report = run(folder / from, folder / "x", options);
    return report ? "none" : report.why().id;
  };

  EXPECT_EQ(id("half"), "quantize.dtype");
  EXPECT_EQ(id("bytes"), "quantize.already");
  EXPECT_EQ(id("transposed"), "quantize.shape");
  EXPECT_EQ(id("missing"), "quantize.missing");
  EXPECT_EQ(id("dense"), "quantize.no_experts");
  EXPECT_EQ(id("done"), "quantize.already");
  EXPECT_EQ(id("a", {.to = Dialect::deepseek_v4}), "quantize.dialect");
  EXPECT_EQ(id("a", {.format = WeightFormat::nvfp4, .to = Dialect::gpt_oss}), "quantize.dialect");
}

TEST(Quantize, RefusesSizesThatDoNotFillBlocksAndModelsWithoutGateForGptOss) {
  const TemporaryFolder folder;
  SynthOptions odd = plain("qwen3-30b-a3b");
  odd.hidden = 48;
  ASSERT_NO_FATAL_FAILURE(make(odd, folder / "odd"));
  ASSERT_NO_FATAL_FAILURE(make(plain("nemotron-3-nano"), folder / "no-gate"));

  const auto blocks = run(folder / "odd", folder / "x", {});
  const auto fits = run(folder / "odd", folder / "y", {.format = WeightFormat::nvfp4});
  const auto gguf =
      run(folder / "odd", folder / "x", {.format = WeightFormat::nvfp4, .to = Dialect::gguf});
  const auto gate = run(folder / "no-gate", folder / "x", {.to = Dialect::gpt_oss});

  ASSERT_FALSE(blocks);
  EXPECT_EQ(blocks.why().id, "quantize.blocks");
  EXPECT_TRUE(fits);
  ASSERT_FALSE(gguf);
  EXPECT_EQ(gguf.why().id, "quantize.blocks");
  ASSERT_FALSE(gate);
  EXPECT_EQ(gate.why().id, "quantize.dialect");
}

TEST(Quantize, Float16AndFloat32GiveWhatTheirValuesGive) {
  const TemporaryFolder folder;
  SynthOptions options = plain("qwen3-30b-a3b");
  options.layers = 1;
  options.experts = 1;
  ASSERT_NO_FATAL_FAILURE(make(options, folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  ASSERT_TRUE(store);
  CheckpointEdits edits;
  for (const tensor::StoredTensor& tensor : store->tensors()) {
    if (tensor.entry.name.find("experts") == std::string::npos) continue;
    NewTensor wide{{tensor.entry.name, tensor::DType::f32, tensor.entry.shape}};
    const auto bytes = store->bytes(tensor);
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      wide.bytes.insert(wide.bytes.end(), 2, std::byte{0});
      wide.bytes.insert(wide.bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(i),
                        bytes.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    }
    edits.put.push_back(std::move(wide));
  }
  ASSERT_TRUE(copy_checkpoint(*store, folder / "wide", edits));

  ASSERT_TRUE(run(folder / "a", folder / "b", {}));
  ASSERT_TRUE(run(folder / "wide", folder / "c", {}));

  EXPECT_EQ(tensor::testing::read_text(folder / "b/model.safetensors"),
            tensor::testing::read_text(folder / "c/model.safetensors"));
}

TEST(Quantize, WritesGgufAsLlamaCppWantsIt) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));

  const auto report =
      run(folder / "a", folder / "b.gguf", {.format = WeightFormat::mxfp4, .to = Dialect::gguf});

  ASSERT_TRUE(report) << text(report.why());
  ASSERT_EQ(report->notes.size(), 1u);
  EXPECT_NE(report->notes[0].find("no vocabulary"), std::string::npos);
  const Result<tensor::Store> store = tensor::Store::open(folder / "b.gguf");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->find("output_norm.weight")->entry.dtype, tensor::DType::f32);
  EXPECT_TRUE(std::ranges::any_of(store->gguf_fields(), [](const tensor::GgufField& field) {
    return field.key == "tokenizer.ggml.model";
  }));
}

// Routers under names that no table of GGUF's has.
TEST(Quantize, GgufHasTheRouterWhateverItWasCalled) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("qwen3-30b-a3b"), folder / "a"));
  const Result<tensor::Store> store = tensor::Store::open(folder / "a");
  Result<Json> config = read_json_file(folder / "a/config.json");
  ASSERT_TRUE(store && config);
  const std::string mlp = "model.layers.1.mlp.";
  for (const auto& [family, router, bias] :
       {std::tuple{"hy_v3", "gate", "e_score_correction_bias"},
        {"ernie4_5_moe", "gate", "moe_statics.e_score_correction_bias"},
        {"lfm2_moe", "gate", "expert_bias"},
        {"granitemoe", "router.layer", ""},
        {"jamba", "router", ""}}) {
    (*config)["model_type"] = family;
    CheckpointEdits edits{.documents = {{"config.json", *config}}};
    const tensor::StoredTensor& weight = *store->find(mlp + "gate.weight");
    const auto bytes = store->bytes(weight);
    edits.remove = {mlp + "gate.weight"};
    edits.put.push_back({{mlp + router + ".weight", weight.entry.dtype, weight.entry.shape},
                         std::vector<std::byte>(bytes.begin(), bytes.end())});
    if (edits.put[0].spec.name == edits.remove[0]) edits.remove.clear();
    if (*bias != '\0')
      edits.put.push_back(
          {{mlp + bias, tensor::DType::f32, {3}}, std::vector<std::byte>(12, std::byte{0x3F})});
    const std::string named = folder / family, out = named + ".gguf";
    ASSERT_TRUE(copy_checkpoint(*store, named, edits));

    const auto report = run(named, out, {.format = WeightFormat::mxfp4, .to = Dialect::gguf});

    ASSERT_TRUE(report) << family << ": " << text(report.why());
    const Result<tensor::Store> result = tensor::Store::open(out);
    ASSERT_TRUE(result);
    const tensor::StoredTensor* found = result->find("blk.1.ffn_gate_inp.weight");
    ASSERT_NE(found, nullptr) << family;
    EXPECT_TRUE(std::ranges::equal(result->bytes(*found), bytes)) << family;
    EXPECT_EQ(result->find("blk.1.exp_probs_b.bias") != nullptr, *bias != '\0') << family;
    // The way back knows the names.
    const Result<Checkpoint> quantized = Checkpoint::open(out);
    ASSERT_TRUE(quantized) << text(quantized.why());
    const auto back = transcode(*quantized, Dialect::compressed_tensors, named + "-back");
    ASSERT_TRUE(back) << text(back.why());
    const Result<tensor::Store> again = tensor::Store::open(named + "-back");
    ASSERT_TRUE(again);
    for (const NewTensor& put : edits.put) {
      const tensor::StoredTensor* same = again->find(put.spec.name);
      ASSERT_NE(same, nullptr) << put.spec.name;
      EXPECT_EQ(same->entry.dtype, put.spec.dtype) << put.spec.name;
      EXPECT_TRUE(std::ranges::equal(again->bytes(*same), put.bytes)) << put.spec.name;
    }
  }
}

TEST(Quantize, SaysWhereLlamaCppLeavesGlobalScalesOut) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make(plain("gpt-oss-20b"), folder / "a"));
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const auto report = run(folder / "a", folder / std::string(name(format)) + ".gguf",
                            {.format = format, .to = Dialect::gguf});
    ASSERT_TRUE(report) << text(report.why());
    const bool is_told = std::ranges::any_of(report->notes, [](const std::string& note) {
      return note.find("global scales") != std::string::npos;
    });
    EXPECT_EQ(is_told, format == WeightFormat::nvfp4);
  }
}

}  // namespace quantize_test
}  // namespace fp4moe::checkpoint
