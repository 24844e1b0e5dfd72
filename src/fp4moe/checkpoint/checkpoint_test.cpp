#include "fp4moe/checkpoint/checkpoint.hpp"

#include <ctime>
#include <functional>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/survey.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace checkpoint_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

using Tensors = std::vector<FileTensor>;

const DialectRow& modelopt() { return *find_row(Dialect::modelopt, WeightFormat::nvfp4); }
const DialectRow& gpt_oss() { return *find_row(Dialect::gpt_oss, WeightFormat::mxfp4); }
Model small(WeightFormat format) {
  return {.format = format, .experts = 2, .hidden = 64, .intermediate = 64};
}

Result<Checkpoint> open(const Tensors& tensors, std::string_view config = {}) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  if (!config.empty()) write_text(folder / "config.json", config);
  return Checkpoint::open(folder.path());
}

Error refused(const Tensors& tensors, std::string_view config = {}) {
  const auto checkpoint = open(tensors, config);
  EXPECT_FALSE(checkpoint);
  if (checkpoint) return {};
  EXPECT_EQ(checkpoint.why().code, ErrorCode::invalid_input);
  EXPECT_FALSE(checkpoint.why().expected.empty()) << text(checkpoint.why());
  EXPECT_FALSE(checkpoint.why().found.empty()) << text(checkpoint.why());
  return checkpoint.why();
}

Tensors matrices(std::string_view part, DType type, std::uint64_t width) {
  Tensors tensors;
  for (const std::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string name =
        "model.layers.0.mlp.experts.0." + std::string(projection) + std::string(part);
    const Shape shape{64, width};
    tensors.push_back({name, type, shape, Bytes(*tensor::byte_count(type, shape))});
  }
  return tensors;
}

// original/config.json of gpt-oss names neither model nor activation.
TEST(Checkpoint, OpenaisOwnFilesAreGptOssWithoutAName) {
  const DialectRow& openai = *find_row(Dialect::openai, WeightFormat::mxfp4);
  const Model model = small(WeightFormat::mxfp4);
  constexpr std::string_view kConfig =
      R"({"num_experts": 2, "experts_per_token": 1, "hidden_size": 64, "intermediate_size": 64})";
  for (const std::string_view config : {kConfig, std::string_view()}) {
    const auto unnamed = open(tensors_of(model, openai), config);
    ASSERT_TRUE(unnamed) << text(unnamed.why());
    EXPECT_EQ(unnamed->config().model_type, "gpt_oss");
  }
  const auto named = open(tensors_of(model, openai), R"({"model_type": "other"})");
  ASSERT_TRUE(named) << text(named.why());
  EXPECT_EQ(named->config().model_type, "other");
  const auto hugging_face = open(tensors_of(model, gpt_oss()), kConfig);
  ASSERT_TRUE(hugging_face) << text(hugging_face.why());
  EXPECT_EQ(hugging_face->config().model_type, "");
}

TEST(Checkpoint, RefusesFusedCodesWhoseOtherPartsAreOfOneProjectionAlone) {
  for (const std::string_view part : {"_scales", "_bias"})
    for (const std::string_view projection : {"gate_proj", "up_proj"}) {
      Model model = small(WeightFormat::mxfp4);
      model.bias = true;
      Tensors tensors = tensors_of(model, gpt_oss());
      for (FileTensor& tensor : tensors)
        if (const std::size_t at = tensor.name.find("gate_up_proj" + std::string(part));
            at != std::string::npos)
          tensor.name.replace(at, std::string_view("gate_up_proj").size(), projection);
      EXPECT_EQ(refused(tensors).id, "tensor.missing") << part << " of " << projection;
    }
}

TEST(Checkpoint, SaysThatItKnowsTheDialectFromNamesAlone) {
  const auto checkpoint = open(tensors_of(small(WeightFormat::nvfp4), modelopt()));
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_NE(checkpoint->evidence().find("no config.json"), std::string_view::npos);
  EXPECT_NE(checkpoint->evidence().find(".weight_scale_2 F32"), std::string_view::npos);
}

TEST(Checkpoint, AcceptsAConfigurationThatAgrees) {
  const auto checkpoint = open(tensors_of(small(WeightFormat::nvfp4), modelopt()),
                               R"({"hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 2,
               "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_NE(checkpoint->evidence().find("config.json says"), std::string_view::npos);
}

TEST(Checkpoint, RefusesAConfigurationThatSaysAnotherFormat) {
  for (const std::string_view config :
       {R"({"quantization_config": {"quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp4"}}}})",
        R"({"quantization_config": {"quant_method": "awq"}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})"}) {
    const Error why = refused(tensors_of(small(WeightFormat::nvfp4), modelopt()), config);
    EXPECT_EQ(why.id, "dialect.contradiction");
    EXPECT_NE(why.expected.find("weight_scale_2"), std::string::npos);
    EXPECT_NE(why.found.find("quant_method"), std::string::npos);
  }
}

TEST(Checkpoint, TellsModeloptFromQuarkByTheScales) {
  const Model model = small(WeightFormat::mxfp4);
  const DialectRow& quark = *find_row(Dialect::quark, model.format);
  EXPECT_EQ(open(tensors_of(model, quark))->dialect().dialect, Dialect::quark);
  // E8M0 scales and a second scale belong to different formats.
  Tensors both = tensors_of(model, quark);
  both.push_back({"model.layers.0.mlp.experts.0.up_proj.weight_scale_2", DType::f32, {}, f32({1})});
  EXPECT_EQ(refused(both).id, "dialect.contradiction");
  // E4M3 scales without the second one could be anything.
  Tensors half = tensors_of(small(WeightFormat::nvfp4), modelopt());
  std::erase_if(half, [](const auto& t) { return t.name.ends_with("_scale_2"); });
  EXPECT_EQ(refused(half).id, "dialect.ambiguous");
  EXPECT_EQ(refused(half, R"({"quantization_config": {"quant_method": "modelopt",
                              "quant_algo": "NVFP4"}})")
                .id,
            "tensor.missing");
}

TEST(Checkpoint, RefusesContradictionsInCompressedTensors) {
  const Model model = small(WeightFormat::mxfp4);
  const DialectRow& row = *find_row(Dialect::compressed_tensors, model.format);
  Tensors both = tensors_of(model, row);
  both.push_back(
      {"model.layers.0.mlp.experts.0.up_proj.weight_global_scale", DType::f32, {1}, f32({1})});
  EXPECT_EQ(refused(both).id, "dialect.contradiction");
  EXPECT_EQ(refused(matrices(".weight_packed", DType::u8, 32)).id, "dialect.ambiguous");
}

TEST(Checkpoint, NamesWhatIsNotFp4) {
  EXPECT_EQ(refused(matrices(".weight", DType::bf16, 64)).id, "dialect.unquantized");
  EXPECT_NE(refused(matrices(".weight", DType::bf16, 64)).remedy.find("fp4moe quantize"),
            std::string::npos);
  for (const auto& [part, type, what] :
       {std::tuple{".weight", DType::f8_e4m3, "FP8"}, std::tuple{".qweight", DType::i32, "INT4"},
        std::tuple{".weight", DType::u32, "MLX"}, std::tuple{".weight", DType::i8, "INT8"},
        std::tuple{".weight_packed", DType::i32, "integers"}}) {
    const Error why = refused(matrices(part, type, 64));
    EXPECT_EQ(why.id, "dialect.unsupported") << what;
    EXPECT_NE(why.message.find(what), std::string::npos) << why.message;
  }
}

TEST(Checkpoint, SaysWhenTheConfigurationExcludesTheExperts) {
  const Error why = refused(matrices(".weight", DType::bf16, 64),
                            R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "nvfp4-pack-quantized", "ignore": ["re:.*mlp.experts.*"]}})");
  EXPECT_EQ(why.id, "dialect.unquantized");
  EXPECT_NE(why.found.find("excludes the routed experts"), std::string::npos) << why.found;
}

TEST(Checkpoint, SaysWhenThereAreNoExperts) {
  const Error none = refused({{"model.embed_tokens.weight", DType::bf16, {2}, Bytes(4)}});
  EXPECT_EQ(none.id, "dialect.unknown");
  EXPECT_NE(none.found.find("1 tensors"), std::string::npos);
  const Error strange = refused({{"layers.0.experts.0.fc1.weight", DType::u8, {2}, Bytes(2)}});
  EXPECT_EQ(strange.id, "dialect.unknown");
  EXPECT_NE(strange.found.find("experts.0.fc1"), std::string::npos);
}

TEST(Checkpoint, RefusesFusedRowsOfUnknownOrder) {
  const Model model = small(WeightFormat::mxfp4);
  const DialectRow& row = row_for(Dialect::quark, model.format, Grouping::fused);
  EXPECT_TRUE(open(tensors_of(model, row), R"({"model_type": "gpt_oss"})"));
  EXPECT_EQ(refused(tensors_of(model, row), R"({"model_type": "llama4"})").id, "dialect.ambiguous");
  EXPECT_EQ(refused({{"layers.0.experts.0.gate_up_proj.weight", DType::u8, {2}, Bytes(2)}}).id,
            "dialect.unsupported");
}

TEST(Checkpoint, RefusesTwoDialectsInOne) {
  const Model model = small(WeightFormat::mxfp4);
  Tensors tensors = tensors_of(model, gpt_oss(), 0);
  for (FileTensor& tensor : tensors_of(model, *find_row(Dialect::quark, model.format), 1)) {
    tensors.push_back(std::move(tensor));
  }
  const Error why = refused(tensors);
  EXPECT_EQ(why.id, "dialect.mixed");
  EXPECT_NE((why.expected + why.found).find("gpt-oss"), std::string::npos);
  EXPECT_NE((why.expected + why.found).find("quark"), std::string::npos);
}

TEST(Checkpoint, ListsLayersInOtherTypesWithoutReadingThem) {
  Tensors tensors = tensors_of(small(WeightFormat::nvfp4), modelopt(), 1);
  for (FileTensor& tensor : matrices(".weight", DType::bf16, 64)) {
    tensors.push_back(std::move(tensor));
  }
  const auto checkpoint = open(tensors);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ASSERT_EQ(checkpoint->layers().size(), 1u);
  EXPECT_EQ(checkpoint->layers()[0].index, 1u);
  ASSERT_EQ(checkpoint->others().size(), 1u);
  EXPECT_EQ(checkpoint->others()[0].what, "BF16");
}

TEST(Checkpoint, OrdersLayersByNumberAndDraftLayersLast) {
  const Model model = small(WeightFormat::mxfp4);
  const DialectRow& row = *find_row(Dialect::quark, model.format);
  Tensors tensors;
  for (const std::string prefix : {"model.layers.10.mlp.", "model.layers.2.mlp.",
                                   "model.layers.1.mlp.", "draft.layers.0.mlp."}) {
    for (FileTensor& tensor : per_expert_tensors(model, row, prefix)) {
      tensors.push_back(std::move(tensor));
    }
  }
  const auto checkpoint = open(tensors);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  std::vector<std::string> prefixes;
  for (const LayerTensors& layer : checkpoint->layers()) prefixes.push_back(layer.prefix);
  EXPECT_EQ(prefixes, (std::vector<std::string>{"model.layers.1.mlp.", "model.layers.2.mlp.",
                                                "model.layers.10.mlp.", "draft.layers.0.mlp."}));
}

TEST(Checkpoint, RefusesTwoGroupsForOneLayer) {
  const Model model = small(WeightFormat::mxfp4);
  const DialectRow& row = *find_row(Dialect::quark, model.format);
  for (const std::string second : {"model.layers.3.block_sparse_moe.", "model.layers.03.mlp."}) {
    Tensors tensors = per_expert_tensors(model, row, "model.layers.3.mlp.");
    for (FileTensor& tensor : per_expert_tensors(model, row, second)) {
      tensors.push_back(std::move(tensor));
    }
    EXPECT_EQ(refused(tensors).id, "layer.duplicate");
  }
}

struct Damage {
  std::string_view id;
  std::string_view tensor;
  std::function<void(Tensors&)> apply;
};

const std::string kUp = "model.layers.0.mlp.experts.1.up_proj";

TEST(Checkpoint, NamesTheTensorThatIsWrong) {
  const std::vector<Damage> damages{
      {"tensor.missing", ".weight", [](Tensors& t) { erase_tensor(t, kUp + ".weight"); }},
      {"tensor.missing", ".weight_scale",
       [](Tensors& t) { erase_tensor(t, kUp + ".weight_scale"); }},
      {"tensor.missing", ".weight_scale_2",
       [](Tensors& t) { erase_tensor(t, kUp + ".weight_scale_2"); }},
      {"tensor.missing", ".bias", [](Tensors& t) { erase_tensor(t, kUp + ".bias"); }},
      {"tensor.dtype", ".weight_scale",
       [](Tensors& t) { find_tensor(t, kUp + ".weight_scale").dtype = DType::i8; }},
      {"tensor.dtype", ".weight_scale_2",
       [](Tensors& t) { find_tensor(t, kUp + ".weight_scale_2").dtype = DType::u32; }},
      {"tensor.dtype", ".bias",
       [](Tensors& t) { find_tensor(t, kUp + ".bias").dtype = DType::u16; }},
      {"tensor.shape", ".weight",
       [](Tensors& t) {
         find_tensor(t, kUp + ".weight").shape = {32, 64};
       }},
      {"tensor.shape", ".weight",
       [](Tensors& t) { find_tensor(t, kUp + ".weight").shape = {2048}; }},
      {"tensor.shape", ".weight_scale",
       [](Tensors& t) {
         find_tensor(t, kUp + ".weight_scale").shape = {4, 64};
       }},
      {"tensor.shape", ".bias",
       [](Tensors& t) {
         find_tensor(t, kUp + ".bias").shape = {64, 1};
       }},
      {"tensor.shape", ".weight_scale_2",
       [](Tensors& t) {
         find_tensor(t, kUp + ".weight_scale_2").shape = {1, 1};
       }},
      {"tensor.duplicate", "model.layers.0.mlp.experts.1.w3.weight",
       [](Tensors& t) {
         FileTensor copy = find_tensor(t, kUp + ".weight");
         copy.name = "model.layers.0.mlp.experts.1.w3.weight";
         t.push_back(copy);
       }},
  };
  Model model = small(WeightFormat::nvfp4);
  model.bias = true;
  for (const Damage& damage : damages) {
    Tensors tensors = tensors_of(model, modelopt());
    damage.apply(tensors);
    const Error why = refused(tensors);
    EXPECT_EQ(why.id, damage.id);
    const std::string name =
        damage.tensor[0] == '.' ? kUp + std::string(damage.tensor) : std::string(damage.tensor);
    EXPECT_EQ(why.tensor, name) << text(why);
  }
}

TEST(Checkpoint, RefusesPartBlocksAndEmptyMatrices) {
  const Model odd{.format = WeightFormat::mxfp4, .experts = 1, .hidden = 48, .intermediate = 64};
  EXPECT_EQ(refused(tensors_of(odd, *find_row(Dialect::quark, odd.format))).id, "tensor.shape");
  Tensors tensors = tensors_of(small(WeightFormat::nvfp4), modelopt());
  for (FileTensor& tensor : tensors) {
    if (tensor.name.ends_with(".weight")) {
      tensor.shape = {0, std::uint64_t{1} << 63};
      tensor.bytes.clear();
    }
  }
  EXPECT_EQ(refused(tensors).id, "tensor.shape");
}

TEST(Checkpoint, NamesMissingExperts) {
  Model model = small(WeightFormat::nvfp4);
  model.experts = 9;
  Tensors tensors = tensors_of(model, modelopt());
  std::erase_if(tensors, [](const FileTensor& t) {
    return t.name.find("experts.2.") != std::string::npos ||
           t.name.find("experts.5.") != std::string::npos ||
           t.name.find("experts.6.") != std::string::npos;
  });
  const Error why = refused(tensors);
  EXPECT_EQ(why.id, "layer.missing_expert");
  EXPECT_NE(why.found.find("missing 2, 5-6"), std::string::npos) << why.found;
  const Error last = refused(tensors_of(model, modelopt()), R"({"num_experts": 12})");
  EXPECT_EQ(last.id, "layer.missing_expert");
  EXPECT_NE(last.found.find("missing 9-11"), std::string::npos) << last.found;
}

TEST(Checkpoint, NamesExpertsBeyondTheLast) {
  Model model = small(WeightFormat::nvfp4);
  model.experts = 9;
  const Error why = refused(tensors_of(model, modelopt()), R"({"num_experts": 8})");
  EXPECT_EQ(why.id, "layer.extra_expert");
  EXPECT_EQ(why.code, ErrorCode::invalid_input);
  EXPECT_NE(why.tensor.find("experts.8."), std::string::npos) << why.tensor;
  EXPECT_EQ(why.expected, "experts 0 to 7, as the configuration says");
  EXPECT_EQ(why.found, "expert 8");
  EXPECT_FALSE(why.path.empty() || why.remedy.empty());
  EXPECT_EQ(refused(tensors_of(model, modelopt()), R"({"num_experts": 6})").found,
            "3 more, from 6 to 8");
  // A part of one, and numbers that nobody counts to.
  for (const std::string number : {"9", "18446744073709551616", "-1", "+1"}) {
    Tensors tensors = tensors_of(model, modelopt());
    FileTensor more = tensors.front();
    const std::size_t at = more.name.find("experts.");
    ASSERT_NE(at, std::string::npos) << more.name;
    more.name.replace(at + 8, more.name.find('.', at + 8) - at - 8, number);
    tensors.push_back(more);
    EXPECT_EQ(refused(tensors, R"({"num_experts": 9})").id, "layer.extra_expert") << number;
  }
}

TEST(Checkpoint, DoesNotAllocateByClaimedNumbers) {
  Tensors tensors = tensors_of(small(WeightFormat::nvfp4), modelopt());
  for (FileTensor& tensor : tensors) {
    const std::size_t at = tensor.name.find("experts.1.");
    if (at != std::string::npos) tensor.name.replace(at + 8, 1, "999999999");
  }
  EXPECT_EQ(refused(tensors).id, "layer.missing_expert");
  EXPECT_EQ(refused(tensors_of(small(WeightFormat::nvfp4), modelopt()),
                    R"({"num_experts": 18446744073709551615})")
                .id,
            "layer.missing_expert");
}

TEST(Checkpoint, RefusesSizesThatTheConfigurationDenies) {
  for (const std::string_view config :
       {R"({"hidden_size": 128})", R"({"moe_intermediate_size": 32})", R"({"num_experts": 1})"}) {
    for (const bool fused : {false, true}) {
      if (!fused && config.find("num_experts") != config.npos) continue;  // extra experts
      const Error why = refused(fused ? tensors_of(small(WeightFormat::mxfp4), gpt_oss())
                                      : tensors_of(small(WeightFormat::nvfp4), modelopt()),
                                config);
      EXPECT_EQ(why.id, "config.mismatch");
      EXPECT_NE(why.expected.find("configuration"), std::string::npos);
      EXPECT_NE(why.found.find("tensors"), std::string::npos);
    }
  }
}

TEST(Checkpoint, AllowsInputScalesOnSomeExpertsOnly) {
  Model model = small(WeightFormat::nvfp4);
  model.input_scale = true;
  Tensors tensors = tensors_of(model, modelopt());
  erase_tensor(tensors, kUp + ".input_scale");
  const auto checkpoint = open(tensors);
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_TRUE(checkpoint->layers()[0].shape.has_input_scale);
  EXPECT_EQ(checkpoint->layers()[0].up[1].input_scale.tensor, nullptr);
}

TEST(Checkpoint, RefusesGgufProjectionsOfDifferentTypes) {
  const TemporaryFolder folder;
  Tensors tensors = gguf_tensors(small(WeightFormat::mxfp4), "blk.0.");
  FileTensor& down = find_tensor(tensors, "blk.0.ffn_down_exps.weight");
  down.dtype = DType::gguf_q8_0;
  down.bytes.resize(down.bytes.size() / 17 * 34);
  write_gguf(folder / "a.gguf", tensors, {});
  EXPECT_EQ(Checkpoint::open(folder / "a.gguf").why().id, "dialect.unsupported");
  EXPECT_NE(Checkpoint::open(folder / "a.gguf").why().message.find("MXFP4 and Q8_0 mixed"),
            std::string::npos);

  Tensors mixed = gguf_tensors(small(WeightFormat::mxfp4), "blk.0.");
  Tensors other = gguf_tensors(small(WeightFormat::nvfp4), "blk.0.");
  find_tensor(mixed, "blk.0.ffn_down_exps.weight") =
      find_tensor(other, "blk.0.ffn_down_exps.weight");
  write_gguf(folder / "b.gguf", mixed, {});
  EXPECT_EQ(Checkpoint::open(folder / "b.gguf").why().id, "dialect.mixed");
}

TEST(Checkpoint, PassesOnWhatTheFilesSay) { EXPECT_FALSE(Checkpoint::open("/does/not/exist")); }

TEST(Checkpoint, RecognizesAHundredThousandTensorsWithoutComparingEachWithAll) {
  Tensors tensors;
  for (int layer = 0; layer < 60; ++layer) {
    for (int expert = 0; expert < 256; ++expert) {
      for (const std::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.experts." +
                                 std::to_string(expert) + "." + std::string(projection);
        tensors.push_back({stem + ".weight", DType::u8, {32, 16}, Bytes(512)});
        tensors.push_back({stem + ".weight_scale", DType::u8, {32, 1}, Bytes(32)});
      }
    }
  }
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  const auto store = tensor::Store::open(folder.path());
  ASSERT_TRUE(store);
  const std::clock_t begin = std::clock();
  const Survey found = survey(*store);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_TRUE(found.problems.empty());
  EXPECT_EQ(found.layers.size(), 60u);
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  // CPU time, so that other programs do not count, with a margin for sanitizers. Comparing each
  // name with all would be eight thousand million comparisons.
  EXPECT_LT(seconds, 10.0);
}

}  // namespace checkpoint_test
}  // namespace fp4moe::checkpoint
