// Forms of checkpoints that other people's tools write, in small: what is read, and what is refused
// with which reason. Whole files of those tools are in testdata/producers.
#include <array>
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "fp4moe/checkpoint/fp8_module.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace producers_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

using Tensors = std::vector<FileTensor>;

constexpr WeightFormat kMx = WeightFormat::mxfp4, kNv = WeightFormat::nvfp4;

Model small(WeightFormat format) {
  return {.format = format, .experts = 2, .hidden = 64, .intermediate = 128};
}

std::string config_of(std::string_view model_type, std::string_view quantization) {
  return R"({"model_type": ")" + std::string(model_type) + R"(", "quantization_config": )" +
         std::string(quantization) + "}";
}

constexpr std::string_view kModeloptNvfp4 =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
constexpr std::string_view kQuarkMxfp4 =
    R"({"quant_method": "quark", "global_quant_config": {"weight":
        {"dtype": "fp4", "group_size": 32, "qscheme": "per_group", "scale_format": "e8m0", "scale_type": "float"}}})";
constexpr std::string_view kQuarkNvfp4 =
    R"({"quant_method": "quark", "global_quant_config": {"weight":
        [{"dtype": "fp4", "group_size": 16, "qscheme": "per_group", "scale_format": "float32", "scale_type": "float32"},
         {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_scale_quant": true, "scale_type": "float32"}]}})";

Result<Checkpoint> open(const TemporaryFolder& folder, const Tensors& tensors,
                        std::string_view config) {
  write_safetensors(folder / "model.safetensors", tensors);
  write_text(folder / "config.json", config);
  return Checkpoint::open(folder.path());
}

Error refused(const Tensors& tensors, std::string_view config) {
  const TemporaryFolder folder;
  const auto checkpoint = open(folder, tensors, config);
  EXPECT_FALSE(checkpoint);
  return checkpoint ? Error{} : checkpoint.why();
}

const DialectRow& row_of(Dialect dialect, WeightFormat format, Grouping grouping, bool joined) {
  return *find_row(dialect, format, grouping, joined);
}

// Codes and block scales of every expert against the model.
void expect_rows(const Checkpoint& checkpoint, const Model& model, Slice slice = {}) {
  ExpertReader reader(checkpoint, slice);
  const Rank tp = slice.tensor_parallel;
  const std::uint64_t part = model.intermediate / tp.size, begin = part * tp.rank;
  for (std::uint64_t e = 0; e < model.experts; ++e) {
    const auto view = reader.read(0, e);
    ASSERT_TRUE(view) << text(view.why());
    for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
      const ProjectionView& got = view->at(which);
      const bool down = which == Projection::down;
      ASSERT_EQ(got.codes.rows, down ? model.hidden : part);
      for (std::uint64_t row = 0; row < got.codes.rows; ++row) {
        const std::uint64_t source = down ? row : begin + row;
        const auto same = [&](const Bytes& all, std::span<const std::byte> found,
                              std::uint64_t per_byte) {
          const std::uint64_t first = down ? begin / per_byte : 0;
          ASSERT_LE(first + found.size(), all.size());
          EXPECT_EQ(std::memcmp(all.data() + first, found.data(), found.size()), 0)
              << "expert " << e << " projection " << int(which) << " row " << row;
        };
        same(model.code_row(e, which, source), got.codes.row(row), 2);
        same(model.scale_row(e, which, source), got.scales.row(row), model.block());
      }
    }
  }
}

// gate_up_proj of single experts, as Quark writes gpt-oss: rows take turns.
Tensors joined_tensors(const Model& model, const DialectRow& row) {
  Tensors tensors;
  for (std::uint64_t e = 0; e < model.experts; ++e)
    for (const bool down : {false, true}) {
      const Projection which = down ? Projection::down : Projection::gate;
      const std::string stem = projection_stem(row, "model.layers.0.mlp.", e, which);
      const std::uint64_t rows = down ? model.hidden : 2 * model.intermediate, k = model.k(which);
      Bytes codes, scales;
      for (std::uint64_t r = 0; r < rows; ++r) {
        const Projection own = down ? which : r % 2 == 0 ? Projection::gate : Projection::up;
        append(codes, model.code_row(e, own, down ? r : r / 2));
        append(scales, model.scale_row(e, own, down ? r : r / 2));
      }
      tensors.push_back({stem + ".weight", DType::u8, {rows, k / 2}, codes});
      tensors.push_back(
          {stem + ".weight_scale", row.scales_dtype, {rows, k / model.block()}, scales});
      if (model.format == kNv)
        tensors.push_back(
            {stem + ".weight_scale_2", DType::f32, {}, f32({model.global(e, which)})});
    }
  return tensors;
}

// ModelOpt's fused experts: columns are packed, and all experts have one global scale.
Tensors column_tensors(const Model& model, const DialectRow& row, bool turns) {
  Tensors tensors;
  for (const bool down : {false, true}) {
    const Projection which = down ? Projection::down : Projection::gate;
    const std::uint64_t rows = down ? model.hidden : 2 * model.intermediate, k = model.k(which);
    const auto columns = [&](RowBytes row_bytes, std::uint64_t width) {
      Bytes all(model.experts * width * rows);
      for (std::uint64_t e = 0; e < model.experts; ++e)
        for (std::uint64_t r = 0; r < rows; ++r) {
          const bool second = !down && (turns ? r % 2 == 1 : r >= model.intermediate);
          const Projection own = down ? which : second ? Projection::up : Projection::gate;
          const std::uint64_t source = down ? r : turns ? r / 2 : r % model.intermediate;
          const Bytes bytes = (model.*row_bytes)(e, own, source);
          for (std::uint64_t c = 0; c < width; ++c) all[(e * width + c) * rows + r] = bytes[c];
        }
      return all;
    };
    const std::string stem = projection_stem(row, "model.layers.0.mlp.", 0, which);
    const std::uint64_t blocks = k / model.block();
    tensors.push_back(
        {stem, DType::u8, {model.experts, k / 2, rows}, columns(&Model::code_row, k / 2)});
    tensors.push_back({stem + "_weight_scale",
                       row.scales_dtype,
                       {model.experts, blocks, rows},
                       columns(&Model::scale_row, blocks)});
    if (model.format == kNv)
      tensors.push_back({stem + "_weight_scale_2", DType::f32, {}, f32({0.037f})});
  }
  return tensors;
}

void expect_back(const std::string& source, Dialect through, const std::string& work) {
  const auto first = Checkpoint::open(source);
  ASSERT_TRUE(first) << text(first.why());
  const std::string there = work + (through == Dialect::gguf ? ".gguf" : "");
  const auto result = transcode(*first, through, there);
  ASSERT_TRUE(result) << text(result.why());
  const auto second = Checkpoint::open(there);
  ASSERT_TRUE(second) << text(second.why());
  const auto again = transcode(*second, first->dialect().dialect, work + "-back");
  ASSERT_TRUE(again) << text(again.why());
  const auto last = Checkpoint::open(work + "-back");
  ASSERT_TRUE(last) << text(last.why());
  EXPECT_EQ(first->store().tensors().size(), last->store().tensors().size());
  for (const tensor::StoredTensor& tensor : first->store().tensors()) {
    const tensor::StoredTensor* other = last->store().find(tensor.entry.name);
    ASSERT_NE(other, nullptr) << tensor.entry.name << " through " << name(through);
    EXPECT_EQ(tensor.entry.dtype, other->entry.dtype) << tensor.entry.name;
    EXPECT_EQ(tensor.entry.shape, other->entry.shape) << tensor.entry.name;
    const auto a = first->store().bytes(tensor), b = last->store().bytes(*other);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << tensor.entry.name;
  }
}

TEST(Producers, QuarkJoinsGateAndUpOfGptOss) {
  for (const WeightFormat format : {kMx, kNv}) {
    const Model model = small(format);
    const DialectRow& row = row_of(Dialect::quark, format, Grouping::per_expert, true);
    const Tensors tensors = joined_tensors(model, row);
    const std::string_view quantization = format == kMx ? kQuarkMxfp4 : kQuarkNvfp4;
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "a");
    write_safetensors(folder / "a/model.safetensors", tensors);
    write_text(folder / "a/config.json", config_of("gpt_oss", quantization));
    const auto checkpoint = Checkpoint::open(folder / "a");
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    EXPECT_EQ(checkpoint->layers()[0].shape.order, RowOrder::interleaved);
    expect_rows(*checkpoint, model);
    expect_back(folder / "a", Dialect::compressed_tensors, folder / "b");
    expect_back(folder / "a", Dialect::gguf, folder / "c");
    // Of other families nobody says how the rows lie.
    EXPECT_EQ(refused(tensors, config_of("llama4", quantization)).id, "dialect.unsupported");
  }
}

TEST(Producers, ModeloptFusesExpertsByColumns) {
  for (const WeightFormat format : {kMx, kNv})
    for (const bool turns : {true, false}) {
      const Model model = small(format);
      const DialectRow& row = row_of(Dialect::modelopt, format, Grouping::fused, true);
      const Tensors tensors = column_tensors(model, row, turns);
      const std::string config =
          config_of(turns ? "gpt_oss" : "llama4_text",
                    format == kNv ? kModeloptNvfp4
                                  : R"({"quant_method": "modelopt", "quant_algo": "mxfp4"})");
      const TemporaryFolder folder;
      std::filesystem::create_directory(folder / "a");
      write_safetensors(folder / "a/model.safetensors", tensors);
      write_text(folder / "a/config.json", config);
      const auto checkpoint = Checkpoint::open(folder / "a");
      ASSERT_TRUE(checkpoint) << text(checkpoint.why());
      EXPECT_EQ(checkpoint->layers()[0].shape.order,
                turns ? RowOrder::interleaved : RowOrder::halves);
      expect_rows(*checkpoint, model);
      expect_rows(*checkpoint, model, {.tensor_parallel = {1, 2}});
      ExpertReader reader(*checkpoint, {});
      EXPECT_EQ(reader.read(0, 1)->down.global_scale, format == kNv ? 0.037f : 1.0f);
      expect_back(folder / "a", Dialect::compressed_tensors, folder / "b");
      expect_back(folder / "a", Dialect::gguf, folder / "c");
      EXPECT_EQ(refused(tensors, config_of("unheard_of", kModeloptNvfp4)).id, "dialect.ambiguous");
    }
}

// ModelOpt 0.47 packs MXFP4 of gpt-oss's experts along the outputs.
TEST(Producers, BlocksOfOutputsAreRefused) {
  Tensors tensors;
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto add = [&](const char* part, tensor::Shape shape) {
    const std::uint64_t bytes = shape[0] * shape[1] * shape[2];
    tensors.push_back({prefix + part, DType::u8, std::move(shape), Bytes(bytes)});
  };
  add("gate_up_proj", {2, 128, 64});
  add("gate_up_proj_weight_scale", {2, 128, 4});
  add("down_proj", {2, 64, 64});
  add("down_proj_weight_scale", {2, 64, 4});
  const Error why = refused(
      tensors, config_of("gpt_oss", R"({"quant_method": "modelopt", "quant_algo": "mxfp4"})"));
  EXPECT_EQ(why.id, "dialect.unsupported");
  EXPECT_NE(text(why).find("blocks of outputs"), std::string::npos) << text(why);
}

TEST(Producers, LintReadsColumnsToo) {
  const Model model = small(kNv);
  const DialectRow& row = row_of(Dialect::modelopt, kNv, Grouping::fused, true);
  Tensors tensors = column_tensors(model, row, true);
  const TemporaryFolder folder;
  write_text(folder / "config.json", config_of("gpt_oss", kModeloptNvfp4));
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(lint(folder.path(), {.deep = true}).errors, 0u);
  find_tensor(tensors, "model.layers.0.mlp.experts.down_proj_weight_scale").bytes[5] =
      std::byte{0x7F};
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(lint(folder.path(), {.deep = true}).counts["scale.nan"], 1u);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  ExpertReader reader(*checkpoint, {});
  const auto view = reader.read(0, 0);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.why().id, "scale.nan");
  EXPECT_NE(view.why().found.find("down row 5, block 0"), std::string::npos) << view.why().found;
}

TEST(Producers, QuarkHasNvfp4WithNamesOfItsOwn) {
  Model model = small(kNv);
  model.input_scale = true;
  const DialectRow& row = row_of(Dialect::quark, kNv, Grouping::per_expert, false);
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors_of(model, row));
  write_text(folder / "a/config.json", config_of("qwen3_moe", kQuarkNvfp4));
  const auto checkpoint = Checkpoint::open(folder / "a");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_EQ(checkpoint->dialect().dialect, Dialect::quark);
  EXPECT_TRUE(checkpoint->layers()[0].shape.has_input_scale);
  expect_rows(*checkpoint, model);
  for (const Dialect through : {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf})
    expect_back(folder / "a", through, folder / std::string(name(through)));
}

TEST(Producers, ModeloptHasMxfp4) {
  const Model model = small(kMx);
  const DialectRow& row = row_of(Dialect::modelopt, kMx, Grouping::per_expert, false);
  for (const std::string_view algorithm : {"mxfp4", "MXFP4", "W4A8_MXFP4_FP8"}) {
    const TemporaryFolder folder;
    const auto checkpoint = open(folder, tensors_of(model, row),
                                 config_of("qwen3_moe", R"({"quant_method": "modelopt",
                                           "quant_algo": ")" +
                                                            std::string(algorithm) + R"("})"));
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    EXPECT_EQ(checkpoint->dialect().dialect, Dialect::modelopt);
    expect_rows(*checkpoint, model);
  }
}

TEST(Producers, QuarkWritesInputScalesInTheModelsType) {
  Model model = small(kMx);
  Tensors tensors = tensors_of(model, *find_row(Dialect::quark, kMx));
  for (std::uint64_t e = 0; e < model.experts; ++e)
    for (const std::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
      const std::uint16_t half = formats::Bf16::encode(0.25f);
      Bytes bytes(2);
      std::memcpy(bytes.data(), &half, 2);
      tensors.push_back({"model.layers.0.mlp.experts." + std::to_string(e) + "." +
                             std::string(projection) + ".input_scale",
                         DType::bf16,
                         {},
                         bytes});
    }
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors);
  write_text(folder / "a/config.json", config_of("qwen3_moe", kQuarkMxfp4));
  const auto checkpoint = Checkpoint::open(folder / "a");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {});
  EXPECT_EQ(reader.read(0, 1)->up.input_scale, 0.25f);
  expect_back(folder / "a", Dialect::modelopt, folder / "b");
}

// What each configuration says that tensors of MXFP4's or NVFP4's shape are, and what is told.
struct Unread {
  WeightFormat looks;
  std::string_view quantization, word;
};

TEST(Producers, AnotherKindOfFp4IsRefusedByName) {
  for (
      const Unread& row : {
          Unread{kMx,
                 R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
                  "group_size": 32, "scale_format": "e5m3", "scale_type": "float8_e5m3"}}})",
                 "e5m3"},
          Unread{kMx,
                 R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
                  "group_size": 32, "scale_type": "float8_e5m3"}}})",
                 "float8_e5m3"},
          Unread{kMx,
                 R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
                  "group_size": 16, "scale_format": "e8m0"}}})",
                 "group_size 16"},
          Unread{
              kMx,
              R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
                  "layer_quant_config": {"*experts*": {"weight": {"dtype": "fp4", "group_size": 32,
                  "scale_format": "e5m3"}}}})",
              "e5m3"},
          Unread{kNv, R"({"quant_method": "quark", "global_quant_config": {"weight":
                  [{"dtype": "fp4", "group_size": 16, "scale_format": "e5m3", "scale_type": "float8_e5m3"},
                   {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}]}})",
                 "e5m3"},
          Unread{
              kNv,
              R"({"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8", "group_size": 32})",
              "32 elements instead of 16"},
          Unread{kNv, R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups":
                  {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}})",
                 "32 elements instead of 16"},
          Unread{kNv, R"({"quant_method": "modelopt", "quant_algo": "NVFP4_SVDQUANT"})",
                 "SVDQUANT"},
          Unread{
              kNv,
              R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers":
                  {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 32},
                   "lm_head": {"quant_algo": "NVFP4", "group_size": 16}}})",
              "32 elements instead of 16"},
      }) {
    const Dialect dialect = row.looks == kMx ? Dialect::quark : Dialect::modelopt;
    const Error why = refused(tensors_of(small(row.looks), *find_row(dialect, row.looks)),
                              config_of("qwen3_moe", row.quantization));
    EXPECT_EQ(why.id, "dialect.unsupported") << row.quantization;
    EXPECT_NE(why.message.find(row.word), std::string::npos) << why.message;
  }
  const Error compressed =
      refused(tensors_of(small(kNv), *find_row(Dialect::compressed_tensors, kNv)),
              config_of("qwen3_moe", R"({"quant_method": "compressed-tensors",
                        "format": "nvfp4-pack-quantized", "config_groups": {"group_0":
                        {"targets": ["Linear"], "weights": {"group_size": 16,
                         "scale_dtype": "torch.float8_e5m2"}}}})"));
  EXPECT_EQ(compressed.id, "dialect.unsupported");
  EXPECT_NE(compressed.message.find("float8_e5m2"), std::string::npos);
}

TEST(Producers, SchemesOfOtherModulesDoNotConcernExperts) {
  for (const std::string_view quantization :
       {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
            "group_size": 32, "scale_format": "e5m3"}}, "layer_quant_config": {"*experts*":
            {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}}})",
        R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4",
            "group_size": 32, "scale_format": "e8m0"}}, "layer_quant_config": {"*self_attn*":
            {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e5m3"}}}})"}) {
    const TemporaryFolder folder;
    const auto checkpoint = open(folder, tensors_of(small(kMx), *find_row(Dialect::quark, kMx)),
                                 config_of("qwen3_moe", quantization));
    EXPECT_TRUE(checkpoint) << text(checkpoint.why());
  }
}

TEST(Producers, AScaleThatNothingAppliesIsRefused) {
  Tensors tensors = tensors_of(small(kNv), *find_row(Dialect::modelopt, kNv));
  tensors.push_back(
      {"model.layers.0.mlp.experts.1.up_proj.pre_quant_scale", DType::bf16, {64}, Bytes(128)});
  const Error why = refused(tensors, config_of("qwen3_moe", R"({"quant_method": "modelopt",
                                               "quant_algo": "NVFP4_AWQ"})"));
  EXPECT_EQ(why.id, "tensor.unread_scale");
  EXPECT_EQ(why.tensor, "model.layers.0.mlp.experts.1.up_proj.pre_quant_scale");
}

TEST(Producers, APartThatChangesNumbersIsRefused) {
  const Model model = small(kNv);
  const DialectRow& row = *find_row(Dialect::modelopt, kNv);
  const std::string stem = projection_stem(row, "model.layers.0.mlp.", 1, Projection::down);
  for (const std::string part :
       {".weight_zero_point", ".weight_g_idx", ".weight_quantizer.svdquant_lora_a"}) {
    Tensors tensors = tensors_of(model, row);
    tensors.push_back({stem + part, DType::u8, {1}, Bytes(1)});
    const Error why = refused(tensors, config_of("qwen3_moe", kModeloptNvfp4));
    EXPECT_EQ(why.id, "tensor.unread_part") << part;
    EXPECT_EQ(why.tensor, stem + part);
  }
}

// Rotations that a runtime applies; those folded into weights are in the codes already.
TEST(Producers, ExpertsBehindATransformAreRefused) {
  const Model model = small(kNv);
  const Tensors tensors = tensors_of(model, *find_row(Dialect::compressed_tensors, kNv));
  const auto config = [](std::string_view location, std::string_view target) {
    return config_of("qwen3_moe", R"({"quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized", "transform_config": {"config_groups": {"u": {
        "type": "hadamard", "apply": [{"targets": [")" +
                                      std::string(target) + R"("], "location": ")" +
                                      std::string(location) + R"("}]}}}})");
  };
  for (const std::string_view target : {"Linear", "re:.*down_proj$"}) {
    EXPECT_EQ(refused(tensors, config("input", target)).id, "dialect.unsupported") << target;
    EXPECT_EQ(refused(tensors, config("output", target)).id, "dialect.unsupported") << target;
    const TemporaryFolder folder;
    const auto folded = open(folder, tensors, config("weight_input", target));
    ASSERT_TRUE(folded) << text(folded.why());
    const TemporaryFolder work;
    EXPECT_TRUE(transcode(*folded, Dialect::modelopt, work / "out"));
  }
  const TemporaryFolder folder, work;
  const auto elsewhere = open(folder, tensors, config("input", "re:.*q_proj$"));
  ASSERT_TRUE(elsewhere) << text(elsewhere.why());
  const auto other = transcode(*elsewhere, Dialect::modelopt, work / "out");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.why().id, "transcode.transform");
}

// A projection of all experts in another format: the layer as a whole is none of ours.
TEST(Producers, ALayerWithAProjectionInFp8IsNamed) {
  const Model model = small(kNv);
  Tensors tensors = tensors_of(model, *find_row(Dialect::modelopt, kNv));
  for (FileTensor& tensor : tensors) {
    if (tensor.name.find("down_proj.weight") == std::string::npos || tensor.dtype != DType::u8)
      continue;
    tensor.dtype = DType::f8_e4m3;
  }
  const Error why = refused(tensors, config_of("qwen3_moe", kModeloptNvfp4));
  EXPECT_EQ(why.id, "dialect.unsupported");
  EXPECT_NE(why.message.find("FP4 and F8_E4M3 mixed"), std::string::npos) << why.message;
}

TEST(Producers, GgufMayLeaveScalesOfOneOut) {
  const Model model = small(kNv);
  Tensors tensors = gguf_tensors(model, "blk.0.");
  std::erase_if(tensors, [](const FileTensor& tensor) { return tensor.name.ends_with(".scale"); });
  const TemporaryFolder folder;
  write_gguf(folder / "model.gguf", tensors, {});
  const auto checkpoint = Checkpoint::open(folder / "model.gguf");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  expect_rows(*checkpoint, model);
  ExpertReader reader(*checkpoint, {});
  EXPECT_EQ(reader.read(0, 1)->up.global_scale, 1.0f);
  const auto result = transcode(*checkpoint, Dialect::modelopt, folder / "modelopt");
  ASSERT_TRUE(result) << text(result.why());
  const auto other = Checkpoint::open(folder / "modelopt");
  ASSERT_TRUE(other) << text(other.why());
  ExpertReader again(*other, {});
  EXPECT_EQ(again.read(0, 1)->up.global_scale, 1.0f);
}

TEST(Producers, AGgufLayerInTwoTypesIsPassedOver) {
  const Model model = small(kMx);
  Tensors tensors = gguf_tensors(model, "blk.0.");
  for (FileTensor& tensor : gguf_tensors(model, "blk.1.")) {
    if (tensor.name == "blk.1.ffn_down_exps.weight") {
      tensor.dtype = DType::bf16;
      tensor.bytes.assign(*tensor::byte_count(DType::bf16, tensor.shape), std::byte{0});
    }
    tensors.push_back(std::move(tensor));
  }
  const TemporaryFolder folder;
  write_gguf(folder / "model.gguf", tensors, {});
  const auto checkpoint = Checkpoint::open(folder / "model.gguf");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  EXPECT_EQ(checkpoint->layers().size(), 1u);
  ASSERT_EQ(checkpoint->others().size(), 1u);
  EXPECT_EQ(checkpoint->others()[0].what, "MXFP4 and BF16 mixed");
}

TEST(Producers, TranscodeTellsWhichModulesAreFp8) {
  Tensors tensors = tensors_of(small(kMx), *find_row(Dialect::quark, kMx));
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight", DType::f8_e4m3, {64, 64}, Bytes(64 * 64)});
  tensors.push_back({"model.layers.0.self_attn.q_proj.weight_scale", DType::bf16, {}, Bytes(2)});
  tensors.push_back({"model.layers.0.self_attn.q_proj.input_scale", DType::bf16, {}, Bytes(2)});
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors);
  write_text(folder / "a/config.json", config_of("qwen3_moe", kQuarkMxfp4));
  for (const Dialect through : {Dialect::modelopt, Dialect::compressed_tensors})
    expect_back(folder / "a", through, folder / std::string(name(through)));

  const auto read = [&](std::string_view path) {
    const auto json = read_json_file(folder / std::string(path));
    EXPECT_TRUE(json) << text(json.why());
    return json ? *json : Json();
  };
  const Json modelopt = read("modelopt/config.json")["quantization_config"];
  EXPECT_EQ(modelopt["quant_algo"], "MIXED_PRECISION");
  const Json& layers = modelopt["quantized_layers"];
  EXPECT_EQ(layers["model.layers.0.self_attn.q_proj"]["quant_algo"], "FP8");
  EXPECT_EQ(layers["model.layers.0.mlp.experts.1.down_proj"]["quant_algo"], "mxfp4");
  EXPECT_EQ(layers.size(), 7u);
  EXPECT_EQ(read("modelopt/hf_quant_config.json")["quantization"]["quantized_layers"], layers);
  const Json compressed = read("compressed-tensors/config.json")["quantization_config"];
  EXPECT_EQ(compressed["format"], "mixed-precision");
  EXPECT_EQ(compressed["config_groups"]["group_1"]["targets"],
            Json::array({"model.layers.0.self_attn.q_proj"}));
  const Json quark = read("modelopt-back/config.json")["quantization_config"];
  EXPECT_EQ(quark["layer_quant_config"]["model.layers.0.self_attn.q_proj"]["weight"]["dtype"],
            "fp8_e4m3");
}

// A weight of attention in FP8 with scales of this shape, beside NVFP4 experts in
// compressed-tensors' form; `group` is what the configuration says of it.
void write_fp8(const std::string& folder, const tensor::Shape& scale, std::string_view group) {
  Tensors tensors = tensors_of(small(kNv), *find_row(Dialect::compressed_tensors, kNv));
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight", DType::f8_e4m3, {256, 64}, Bytes(256 * 64)});
  std::uint64_t bytes = 2;
  for (const std::uint64_t size : scale) bytes *= size;
  tensors.push_back(
      {"model.layers.0.self_attn.q_proj.weight_scale", DType::bf16, scale, Bytes(bytes)});
  std::filesystem::create_directory(folder);
  write_safetensors(folder + "/model.safetensors", tensors);
  write_text(folder + "/config.json",
             config_of("qwen3_moe",
                       R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
         "config_groups": {
           "group_0": {"format": "nvfp4-pack-quantized", "targets": ["re:.*experts.*"],
                       "weights": {"num_bits": 4, "group_size": 16}},
           "group_1": {"format": "float-quantized", "targets": ["re:.*self_attn\\..*proj$"], )" +
                           std::string(group) + "}}}"));
}

constexpr std::string_view kDynamic =
    R"("weights": {"num_bits": 8}, "input_activations": {"dynamic": true})";
constexpr std::string_view kWeightsAlone = R"("weights": {"num_bits": 8})";

TEST(Producers, TranscodeKeepsFp8WithAScaleForEachRow) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {256, 1}, kDynamic);
  for (const Dialect through : {Dialect::modelopt, Dialect::quark})
    expect_back(folder / "a", through, folder / std::string(name(through)));
  const auto modelopt = read_json_file(folder / "modelopt/config.json");
  ASSERT_TRUE(modelopt);
  constexpr std::string_view kModule = "model.layers.0.self_attn.q_proj";
  EXPECT_EQ((*modelopt)["quantization_config"]["quantized_layers"][kModule]["quant_algo"],
            "FP8_PER_CHANNEL_PER_TOKEN");
  const auto quark = read_json_file(folder / "quark/config.json");
  ASSERT_TRUE(quark);
  const Json& layer = (*quark)["quantization_config"]["layer_quant_config"][kModule];
  EXPECT_EQ(layer["weight"]["qscheme"], "per_channel");
  EXPECT_EQ(layer["input_tensors"]["is_dynamic"], true);
  const auto store = tensor::Store::open(folder / "modelopt");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->find(std::string(kModule) + ".weight_scale")->entry.shape, tensor::Shape{256});
  const auto back = read_json_file(folder / "modelopt-back/config.json");
  ASSERT_TRUE(back);
  const Json& group = (*back)["quantization_config"]["config_groups"]["group_1"];
  EXPECT_EQ(group["weights"]["strategy"], "channel");
  EXPECT_EQ(group["input_activations"]["strategy"], "token");
}

TEST(Producers, TranscodeKeepsFp8WithAScaleForEachBlock) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {2, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]})");
  for (const Dialect through : {Dialect::modelopt, Dialect::quark})
    expect_back(folder / "a", through, folder / std::string(name(through)));
  const auto store = tensor::Store::open(folder / "modelopt");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->find("model.layers.0.self_attn.q_proj.weight_scale")->entry.shape,
            (tensor::Shape{2, 1, 1, 1}));
  const auto back = read_json_file(folder / "quark-back/config.json");
  ASSERT_TRUE(back);
  const Json& group = (*back)["quantization_config"]["config_groups"]["group_1"];
  EXPECT_EQ(group["weights"]["block_structure"], Json::array({128, 128}));
  EXPECT_TRUE(group["input_activations"].is_null());
}

// Where a weight is one block, compressed-tensors' scale is [1, 1] and ModelOpt's a scalar.
TEST(Producers, TranscodeKeepsFp8OfOneBlock) {
  const TemporaryFolder folder;
  write_fp8(folder / "a", {1, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [256, 128]})");
  expect_back(folder / "a", Dialect::quark, folder / "quark");
  write_fp8(folder / "b", {2, 1},
            R"("weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
               "input_activations": {"dynamic": true})");
  expect_back(folder / "b", Dialect::modelopt, folder / "modelopt");
  const auto module = [&](const std::string& path) {
    const auto store = tensor::Store::open(path);
    EXPECT_TRUE(store);
    const auto facts = read_facts(*store);
    EXPECT_TRUE(facts);
    return find_fp8_module(*store, *store->find("model.layers.0.self_attn.q_proj.weight"),
                           facts->claims);
  };
  const auto one = module(folder / "a");
  ASSERT_TRUE(one);
  EXPECT_EQ(fp8_scale_shape(Dialect::modelopt, *one, {1, 1}), tensor::Shape{});
  EXPECT_EQ(fp8_scale_shape(Dialect::quark, *one, {1, 1}), (tensor::Shape{1, 1}));
  EXPECT_EQ(module(folder / "b")->inputs, Fp8Inputs::dynamic);
  EXPECT_EQ(module(folder / "modelopt")->inputs, Fp8Inputs::none);
}

TEST(Producers, TranscodeRefusesModulesThatATargetCannotTell) {
  const TemporaryFolder folder;
  write_fp8(folder / "rows", {256, 1}, kWeightsAlone);  // ModelOpt has rows with dynamic inputs
  write_fp8(folder / "tensor", {1}, kDynamic);          // and one scale with a stored one
  write_fp8(folder / "odd", {3, 5}, kDynamic);          // no block divides so
  const auto expect_refused = [&](const char* from, Dialect target, std::string_view words) {
    const auto checkpoint = Checkpoint::open(folder / from);
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    const auto result = transcode(*checkpoint, target, folder / "b");
    ASSERT_FALSE(result) << from << " " << name(target);
    EXPECT_EQ(result.why().id, "transcode.mixed_precision");
    EXPECT_NE(text(result.why()).find(words), std::string::npos) << text(result.why());
  };
  expect_refused("rows", Dialect::modelopt, "a scale for each row, activations not quantized");
  expect_refused("rows", Dialect::gguf, "a scale for each row");
  expect_refused("tensor", Dialect::modelopt, "one scale, activations quantized dynamically");
  for (const Dialect target : {Dialect::modelopt, Dialect::quark, Dialect::gguf})
    expect_refused("odd", target, "not known");
  const auto same = Checkpoint::open(folder / "odd");
  ASSERT_TRUE(same);
  EXPECT_TRUE(transcode(*same, Dialect::compressed_tensors, folder / "c"));
}

TEST(Producers, NamesAroundTheExpertsComeBackFromGguf) {
  Tensors tensors = tensors_of(small(kMx), *find_row(Dialect::quark, kMx));
  for (const std::string_view name :
       {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.e_score_correction_bias",
        "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"})
    tensors.push_back({std::string(name), DType::bf16, {2, 64}, Bytes(256)});
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors);
  // The family's own names are block_sparse_moe.gate and w1, w2, w3.
  write_text(folder / "a/config.json", config_of("minimax_m2", kQuarkMxfp4));
  expect_back(folder / "a", Dialect::gguf, folder / "b");
}

}  // namespace producers_test
}  // namespace fp4moe::checkpoint
