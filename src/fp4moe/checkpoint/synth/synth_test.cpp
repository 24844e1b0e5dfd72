#include "fp4moe/checkpoint/synth/synth.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/synth/synth_expert.hpp"
#include "support/files.hpp"

namespace fp4moe::checkpoint {
namespace synth_test {

using tensor::testing::TemporaryFolder;

SynthOptions small(const char* model, Dialect dialect, WeightFormat format) {
  return {.model = model,
          .dialect = dialect,
          .format = format,
          .layers = 2,
          .experts = 3,
          .hidden = 192,
          .intermediate = 128,
          .seed = 11};
}

struct Kind {
  const char* model;
  Dialect dialect;
  WeightFormat format;
};

class SynthInEveryDialect : public ::testing::TestWithParam<Kind> {};

TEST_P(SynthInEveryDialect, IsReadBackAsTheSameCanonicalWeights) {
  const auto [model, dialect, format] = GetParam();
  const TemporaryFolder folder;

  const Result<SynthReport> report = synth(small(model, dialect, format), folder / "out");

  ASSERT_TRUE(report) << text(report.why());
  const Result<Checkpoint> result = Checkpoint::open(folder / "out");
  ASSERT_TRUE(result) << text(result.why());
  EXPECT_EQ(result->dialect().dialect, dialect);
  ASSERT_EQ(result->layers().size(), 2u);
  ExpertReader reader(*result, {});
  SynthExpert maker;
  for (std::size_t l = 0; l < 2; ++l)
    for (std::uint64_t e = 0; e < 3; ++e) {
      const Result<ExpertView> read = reader.read(l, e);
      ASSERT_TRUE(read) << text(read.why());
      const Result<ExpertView> expected =
          maker.make({11, moe_layer_index(*find_model(model), l), e}, report->shape);
      ASSERT_TRUE(expected);
      for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
        const ProjectionView &a = read->at(which), &b = expected->at(which);
        ASSERT_EQ(a.codes.rows, b.codes.rows);
        for (std::uint64_t row = 0; row < a.codes.rows; ++row) {
          ASSERT_EQ(
              std::memcmp(a.codes.row(row).data(), b.codes.row(row).data(), a.codes.row_bytes), 0);
          ASSERT_EQ(
              std::memcmp(a.scales.row(row).data(), b.scales.row(row).data(), a.scales.row_bytes),
              0);
        }
        EXPECT_FLOAT_EQ(a.global_scale, b.global_scale);
        EXPECT_EQ(a.input_scale.has_value(), b.input_scale.has_value());
        ASSERT_EQ(a.bias.size, b.bias.size);
        for (std::uint64_t i = 0; i < a.bias.size; ++i) {
          // bfloat16 is the upper half of a float32.
          const std::size_t skip = a.bias.dtype == tensor::DType::f32 ? 2 : 0;
          EXPECT_EQ(std::memcmp(a.bias.data + i * a.bias.stride + skip,
                                b.bias.data + i * b.bias.stride, 2),
                    0);
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Dialects, SynthInEveryDialect,
    ::testing::Values(Kind{"gpt-oss-20b", Dialect::gpt_oss, WeightFormat::mxfp4},
                      Kind{"gpt-oss-20b", Dialect::openai, WeightFormat::mxfp4},
                      Kind{"gpt-oss-20b", Dialect::compressed_tensors, WeightFormat::mxfp4},
                      Kind{"gpt-oss-20b", Dialect::quark, WeightFormat::mxfp4},
                      Kind{"gpt-oss-20b", Dialect::gguf, WeightFormat::mxfp4},
                      Kind{"qwen3-30b-a3b", Dialect::modelopt, WeightFormat::nvfp4},
                      Kind{"qwen3-30b-a3b", Dialect::compressed_tensors, WeightFormat::nvfp4},
                      Kind{"qwen3-30b-a3b", Dialect::gguf, WeightFormat::nvfp4},
                      Kind{"nemotron-3-nano", Dialect::modelopt, WeightFormat::nvfp4},
                      Kind{"nemotron-3-nano", Dialect::gguf, WeightFormat::nvfp4},
                      Kind{"nemotron-3-nano", Dialect::compressed_tensors, WeightFormat::mxfp4},
                      Kind{"deepseek-v4-flash", Dialect::deepseek_v4, WeightFormat::mxfp4},
                      Kind{"mixtral-8x7b", Dialect::quark, WeightFormat::mxfp4},
                      Kind{"llama-4-maverick", Dialect::modelopt, WeightFormat::nvfp4}));

TEST(Synth, TheUsualDialectOfEveryModelIsSound) {
  for (const ModelRow& model : models()) {
    const TemporaryFolder folder;
    const SynthOptions options{.model = std::string(model.name),
                               .experts = 2,
                               .hidden = 64,
                               .intermediate = 64,
                               .shards = 2};

    const Result<SynthReport> report = synth(options, folder / "out");

    ASSERT_TRUE(report) << model.name << ": " << text(report.why());
    const Result<Checkpoint> result = Checkpoint::open(folder / "out");
    ASSERT_TRUE(result) << model.name << ": " << text(result.why());
    EXPECT_EQ(result->layers()[0].index, moe_layer_index(model, 0)) << model.name;
    EXPECT_EQ(result->config().model_type, model.model_type);
    EXPECT_EQ(result->config().hidden, 64u);
    EXPECT_EQ(result->config().experts, 2u);
  }
}

TEST(Synth, GgufHasTheRoutersOfEveryModel) {
  for (const ModelRow& model : models()) {
    const TemporaryFolder folder;
    const std::string out = folder / "model.gguf";
    const auto report = synth({.model = std::string(model.name),
                               .dialect = Dialect::gguf,
                               .experts = 2,
                               .hidden = 64,
                               .intermediate = 64},
                              out);
    ASSERT_TRUE(report) << model.name << ": " << text(report.why());
    const Result<tensor::Store> store = tensor::Store::open(out);
    ASSERT_TRUE(store) << text(store.why());
    const std::string layer = "blk." + std::to_string(moe_layer_index(model, 0));
    EXPECT_NE(store->find(layer + ".ffn_gate_inp.weight"), nullptr) << model.name;
  }
}

TEST(Synth, TheSeedDecidesEveryByteAndThreadsNone) {
  const TemporaryFolder folder;
  SynthOptions options = small("gpt-oss-20b", Dialect::gpt_oss, WeightFormat::mxfp4);
  ASSERT_TRUE(synth(options, folder / "a"));
  options.threads = 4;
  ASSERT_TRUE(synth(options, folder / "b"));
  options.seed = 12;
  ASSERT_TRUE(synth(options, folder / "c"));
  const auto bytes = [&](const char* name) {
    return tensor::testing::read_text(folder / name + "/model.safetensors");
  };

  EXPECT_EQ(bytes("a"), bytes("b"));
  EXPECT_NE(bytes("a"), bytes("c"));
}

TEST(Synth, ExpertsOfOneSeedShareNothing) {
  SynthExpert one, other;
  const MoeShape shape{.experts = 2, .hidden = 64, .intermediate = 64};
  const Result<ExpertView> a = one.make({1, 0, 0}, shape);
  for (const ExpertSeed seed : {ExpertSeed{1, 0, 1}, ExpertSeed{1, 1, 0}, ExpertSeed{2, 0, 0}}) {
    const Result<ExpertView> b = other.make(seed, shape);
    ASSERT_TRUE(a && b);
    EXPECT_NE(std::memcmp(a->up.codes.data, b->up.codes.data, 64), 0);
  }
  EXPECT_NE(std::memcmp(a->up.codes.data, a->gate.codes.data, 64), 0);
}

TEST(Synth, ScalesAreWhereTrainedModelsHaveThem) {
  SynthExpert maker;
  const Result<ExpertView> mx =
      maker.make({3, 0, 0}, {.experts = 1, .hidden = 256, .intermediate = 128});
  ASSERT_TRUE(mx);
  for (std::uint64_t r = 0; r < mx->up.scales.rows; ++r)
    for (const std::byte scale : mx->up.scales.row(r)) {
      EXPECT_GE(std::to_integer<int>(scale), 119);
      EXPECT_LE(std::to_integer<int>(scale), 125);
    }
  const Result<ExpertView> nv = maker.make(
      {3, 0, 0}, {.format = WeightFormat::nvfp4, .experts = 1, .hidden = 256, .intermediate = 128});
  ASSERT_TRUE(nv);
  for (std::uint64_t r = 0; r < nv->up.scales.rows; ++r)
    for (const std::byte scale : nv->up.scales.row(r)) {
      EXPECT_GE(std::to_integer<int>(scale), 0x30);
      EXPECT_LE(std::to_integer<int>(scale), 0x6F);
    }
  EXPECT_GE(nv->up.global_scale, 1e-4f);
  EXPECT_LE(nv->up.global_scale, 1e-3f);
  EXPECT_EQ(nv->gate.global_scale, nv->up.global_scale);
}

TEST(Synth, RefusesWhatItCannotMake) {
  const TemporaryFolder folder;
  const auto id = [&](const SynthOptions& options) {
    const Result<SynthReport> report = synth(options, folder / "x");
    return report ? "none" : report.why().id;
  };

  EXPECT_EQ(id({.model = "gpt-oss-21b"}), "models.unknown");
  EXPECT_EQ(id({.layers = 0}), "synth.layers");
  EXPECT_EQ(id({.layers = 25}), "synth.layers");
  EXPECT_EQ(id({.dialect = Dialect::gpt_oss, .format = WeightFormat::nvfp4}), "synth.dialect");
  EXPECT_EQ(id({.model = "nemotron-3-nano", .dialect = Dialect::gpt_oss}), "synth.dialect");
  EXPECT_EQ(id({.hidden = 100}), "synth.size");
  EXPECT_EQ(id({.experts = 0}), "synth.size");
  EXPECT_EQ(id({.model = "qwen3-30b-a3b", .dialect = Dialect::gguf, .hidden = 96}), "synth.size");
  EXPECT_EQ(id({.shards = 0}), "synth.shards");
  EXPECT_EQ(id({.defect = "bored"}), "synth.defect");
  EXPECT_EQ(id({.experts = 1, .hidden = 32, .intermediate = 32, .defect = "zero-global-scale"}),
            "synth.defect");
  EXPECT_TRUE(folder.names().empty());
}

TEST(Synth, EveryDefectIsThereAndNothingElseIsLeft) {
  for (const SynthDefect& defect : synth_defects()) {
    const TemporaryFolder folder;
    SynthOptions options = small("qwen3-30b-a3b", Dialect::modelopt, WeightFormat::nvfp4);
    options.shards = 3;
    options.defect = defect.name;

    const Result<SynthReport> report = synth(options, folder / "out");

    ASSERT_TRUE(report) << defect.name << ": " << text(report.why());
    EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
    const Result<Checkpoint> result = Checkpoint::open(folder / "out");
    bool is_noticed = !result;
    if (result) {
      ExpertReader reader(*result, {});
      const Result<ExpertView> first = reader.read(0, 0);
      is_noticed = !first;
      if (first) {
        // What only lint can call wrong: compare with what a sound one holds.
        SynthExpert maker;
        const Result<ExpertView> sound = maker.make({11, 0, 0}, report->shape);
        ASSERT_TRUE(sound);
        const Result<ExpertView> last = reader.read(0, 2);
        is_noticed = first->gate.scales.data[0] != sound->gate.scales.data[0] ||
                     first->gate.global_scale != sound->gate.global_scale ||
                     first->up.global_scale != sound->up.global_scale ||
                     (last && !last->up.input_scale);
      }
    }
    EXPECT_TRUE(is_noticed) << defect.name;
  }
}

TEST(Synth, ADefectLeavesNothingOfItsCopyNorOfAKilledRuns) {
  const TemporaryFolder folder;
  SynthOptions options = small("qwen3-30b-a3b", Dialect::modelopt, WeightFormat::nvfp4);
  options.defect = "nan-scale";
  std::filesystem::create_directory(folder / ".whole-out");
  std::ofstream(folder / ".whole-out/model.safetensors") << "half";
  const Result<SynthReport> report = synth(options, folder / "out");
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
  EXPECT_EQ(synth(options, folder / "out").why().id, "folder.exists");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
}

}  // namespace synth_test
}  // namespace fp4moe::checkpoint
