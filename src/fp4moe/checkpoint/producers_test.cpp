// Forms of checkpoints that other people's tools write, in small: what is read, and what is refused
// with which reason. Whole files of those tools are in testdata/producers.
#include "support/producers.hpp"

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

using namespace testing;             // NOLINT: the test's own words
using namespace testing::producers;  // NOLINT
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

constexpr std::string_view kModeloptNvfp4 =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
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

// gate_up_proj of single experts, as Quark writes gpt-oss: interleaved rows.
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
Tensors column_tensors(const Model& model, const DialectRow& row, bool is_interleaved) {
  Tensors tensors;
  for (const bool down : {false, true}) {
    const Projection which = down ? Projection::down : Projection::gate;
    const std::uint64_t rows = down ? model.hidden : 2 * model.intermediate, k = model.k(which);
    const auto columns = [&](RowBytes row_bytes, std::uint64_t width) {
      Bytes all(model.experts * width * rows);
      for (std::uint64_t e = 0; e < model.experts; ++e)
        for (std::uint64_t r = 0; r < rows; ++r) {
          const bool second = !down && (is_interleaved ? r % 2 == 1 : r >= model.intermediate);
          const Projection own = down ? which : second ? Projection::up : Projection::gate;
          const std::uint64_t source = down ? r : is_interleaved ? r / 2 : r % model.intermediate;
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
    // The order of rows is not known for other families.
    EXPECT_EQ(refused(tensors, config_of("llama4", quantization)).id, "dialect.unsupported");
  }
}

TEST(Producers, ModeloptFusesExpertsByColumns) {
  for (const WeightFormat format : {kMx, kNv})
    for (const bool is_interleaved : {true, false}) {
      const Model model = small(format);
      const DialectRow& row = row_of(Dialect::modelopt, format, Grouping::fused, true);
      const Tensors tensors = column_tensors(model, row, is_interleaved);
      const std::string config =
          config_of(is_interleaved ? "gpt_oss" : "llama4_text",
                    format == kNv ? kModeloptNvfp4
                                  : R"({"quant_method": "modelopt", "quant_algo": "mxfp4"})");
      const TemporaryFolder folder;
      std::filesystem::create_directory(folder / "a");
      write_safetensors(folder / "a/model.safetensors", tensors);
      write_text(folder / "a/config.json", config);
      const auto checkpoint = Checkpoint::open(folder / "a");
      ASSERT_TRUE(checkpoint) << text(checkpoint.why());
      EXPECT_EQ(checkpoint->layers()[0].shape.order,
                is_interleaved ? RowOrder::interleaved : RowOrder::halves);
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
          Unread{
              kNv,
              R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers":
                  {"model.layers.0.mlp.experts.0.down_proj": {"quant_algo": "NVFP4"},
                   "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4_SVD"}}})",
              "NVFP4_SVD"},
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

TEST(Producers, AScaleOfNoProjectionIsRefused) {
  const Tensors plain = tensors_of(small(kNv), *find_row(Dialect::modelopt, kNv));
  const std::string config = config_of("qwen3_moe", kModeloptNvfp4);
  const auto with = [&](std::string_view name) {
    Tensors tensors = plain;
    tensors.push_back({std::string(name), DType::f32, {1}, f32({2.0f})});
    return tensors;
  };
  for (const auto& [name, id] :
       {std::pair{"model.layers.0.mlp.experts.0.scale", "tensor.unread_scale"},
        std::pair{"model.layers.0.mlp.experts.act_scale", "tensor.unread_scale"},
        std::pair{"model.layers.0.mlp.experts.lora_a", "tensor.unread_part"}}) {
    const Error why = refused(with(name), config);
    EXPECT_EQ(why.id, id) << name;
    EXPECT_EQ(why.tensor, name);
  }
  // Parts that change no number, and other modules' experts.
  for (const std::string_view name :
       {"model.layers.0.mlp.experts.0.tokens_seen", "model.layers.0.mlp.shared_experts.act_scale",
        "draft.layers.0.mlp.experts.act_scale"}) {
    const TemporaryFolder folder;
    const auto checkpoint = open(folder, with(name), config);
    EXPECT_TRUE(checkpoint) << name << ": " << text(checkpoint.why());
  }
  const TemporaryFolder folder;
  Tensors gguf = gguf_tensors(small(kMx), "blk.0.");
  gguf.push_back({"blk.0.ffn_norm_exps.scale", DType::f32, {1}, f32({2.0f})});
  write_gguf(folder / "model.gguf", gguf, {});
  const auto stacked = Checkpoint::open(folder / "model.gguf");
  ASSERT_FALSE(stacked);
  EXPECT_EQ(stacked.why().id, "tensor.unread_scale");
  EXPECT_EQ(stacked.why().tensor, "blk.0.ffn_norm_exps.scale");
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
  for (const std::string_view target : {"Linear", "re:.*down_proj$", "re:.*up_proj$"}) {
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

// A projection of all experts in another format: the layer as a whole is not supported.
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
