#include "fp4moe/checkpoint/edit/transcode_fp4.hpp"

#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode.hpp"
#include "support/producers.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace transcode_fp4_test {

using namespace testing;             // NOLINT: the test's own words
using namespace testing::producers;  // NOLINT
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;

constexpr std::string_view kModule = "model.layers.0.self_attn.k_proj";
constexpr std::string_view kModeloptNvfp4 =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
constexpr std::string_view kCompressedMxfp4 =
    R"({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"})";

FileTensor named(std::string name, DType dtype, Shape shape) {
  const std::uint64_t bytes = *tensor::byte_count(dtype, shape);
  return {std::move(name), dtype, std::move(shape), Bytes(bytes, std::byte{0x38})};
}
// A part of a module outside the experts.
FileTensor part(std::string_view ending, DType dtype, Shape shape) {
  return named(std::string(kModule) + std::string(ending), dtype, std::move(shape));
}

void write(const std::string& folder, const DialectRow& row, std::string_view quantization,
           const Tensors& parts) {
  Tensors tensors = tensors_of(small(row.format), row);
  tensors.insert(tensors.end(), parts.begin(), parts.end());
  std::filesystem::create_directory(folder);
  write_safetensors(folder + "/model.safetensors", tensors);
  write_text(folder + "/config.json", config_of("qwen3_moe", quantization));
}

// Nothing is written.
Error refused(const std::string& from, Dialect to, const std::string& out) {
  const auto source = Checkpoint::open(from);
  EXPECT_TRUE(source) << text(source.why());
  if (!source) return {};
  const auto result = transcode(*source, to, out);
  EXPECT_FALSE(result) << name(to);
  EXPECT_FALSE(std::filesystem::exists(out));
  return result ? Error{} : result.why();
}

// NVFP4 as ModelOpt writes it; a part given replaces the one of its name.
Tensors nvfp4(const Tensors& others = {}) {
  Tensors parts{part(".weight", DType::u8, {8, 32}), part(".weight_scale", DType::f8_e4m3, {8, 4}),
                part(".weight_scale_2", DType::f32, {}), part(".input_scale", DType::f32, {})};
  for (const FileTensor& other : others) {
    erase_tensor(parts, other.name);
    parts.push_back(other);
  }
  return parts;
}

TEST(TranscodeFp4, ModulesOfTheExpertsFormatComeBack) {
  const TemporaryFolder folder;
  write(folder / "nv", *find_row(Dialect::modelopt, kNv), kModeloptNvfp4, nvfp4());
  for (const Dialect through : {Dialect::compressed_tensors, Dialect::quark, Dialect::gguf})
    expect_back(folder / "nv", through, folder / ("nv-" + std::string(name(through))));
  // The KV cache's scales are no part of the codes.
  write(folder / "kv", *find_row(Dialect::modelopt, kNv), kModeloptNvfp4,
        nvfp4({part(".k_scale", DType::f32, {}), part(".output_scale", DType::f32, {})}));
  expect_back(folder / "kv", Dialect::compressed_tensors, folder / "kv-through");

  const DialectRow& mx = *find_row(Dialect::compressed_tensors, kMx);
  write(folder / "mx", mx, kCompressedMxfp4,
        {part(".weight_packed", DType::u8, {8, 32}), part(".weight_scale", DType::u8, {8, 2})});
  for (const Dialect through : {Dialect::modelopt, Dialect::quark, Dialect::gguf})
    expect_back(folder / "mx", through, folder / ("mx-" + std::string(name(through))));
  write(
      folder / "e8m0", mx, kCompressedMxfp4,
      {part(".weight_packed", DType::u8, {8, 32}), part(".weight_scale", DType::f8_e8m0, {8, 2})});
  expect_back(folder / "e8m0", Dialect::quark, folder / "e8m0-through");
}

TEST(TranscodeFp4, RefusesWhatIsNoModuleOfTheFormat) {
  struct Case {
    Tensors parts;
    std::string_view id, found;
  };
  const Case cases[] = {
      {nvfp4({part(".weight_scale", DType::u8, {8, 2})}), "transcode.mixed_precision",
       "weight_scale U8 [8, 2]"},
      {nvfp4({part(".weight_scale", DType::f8_e4m3, {1})}), "transcode.mixed_precision",
       "weight_scale F8_E4M3 [1]"},
      {nvfp4({part(".weight", DType::u8, {1, 8, 32})}), "transcode.mixed_precision", "U8"},
      {nvfp4({part(".weight", DType::u8, {8, 28}), part(".weight_scale", DType::f8_e4m3, {8, 3})}),
       "transcode.mixed_precision", "weight_scale F8_E4M3 [8, 3]"},
      {{part(".weight", DType::u8, {8, 32}), part(".weight_scale", DType::f8_e4m3, {8, 4})},
       "transcode.mixed_precision",
       "no weight_scale_2"},
      {nvfp4({part(".weight_scale_2", DType::f64, {})}), "tensor.dtype", "F64"},
      {nvfp4({part(".weight_scale_2", DType::i32, {})}), "tensor.dtype", "I32"},
      {nvfp4({part(".weight_scale_2", DType::u8, {})}), "tensor.dtype", "U8"},
      {nvfp4({part(".weight_scale_2", DType::bf16, {})}), "tensor.dtype", "BF16"},
      {nvfp4({part(".weight_scale_2", DType::f32, {8})}), "tensor.shape", "[8]"},
      {nvfp4({part(".input_scale", DType::u8, {1})}), "tensor.dtype", "U8"},
      {nvfp4({part(".input_scale", DType::f32, {2})}), "tensor.shape", "[2]"},
      {nvfp4({part(".pre_quant_scale", DType::bf16, {64})}), "transcode.mixed_precision",
       "pre_quant_scale"},
      {nvfp4({part(".g_idx", DType::i32, {64})}), "transcode.mixed_precision", "g_idx"},
      {nvfp4({part(".lora_A.weight", DType::bf16, {4, 64})}), "transcode.mixed_precision",
       "lora_A.weight"},
  };
  const TemporaryFolder folder;
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    const std::string from = folder / std::to_string(i);
    write(from, *find_row(Dialect::modelopt, kNv), kModeloptNvfp4, cases[i].parts);
    for (const Dialect to : {Dialect::compressed_tensors, Dialect::quark, Dialect::gguf}) {
      const Error why = refused(from, to, folder / "out");
      EXPECT_EQ(why.id, cases[i].id) << i << ": " << text(why);
      EXPECT_NE(why.found.find(cases[i].found), std::string::npos) << i << ": " << text(why);
      EXPECT_TRUE(why.tensor.starts_with(kModule)) << why.tensor;
    }
  }
}

TEST(TranscodeFp4, RefusesNvfp4ModulesBesideMxfp4Experts) {
  const TemporaryFolder folder;
  write(folder / "a", *find_row(Dialect::quark, kMx, Grouping::per_expert, false), kQuarkMxfp4,
        {part(".weight", DType::u8, {8, 32}), part(".weight_scale", DType::f8_e4m3, {8, 4}),
         part(".weight_scale_2", DType::f32, {})});
  for (const Dialect to : {Dialect::modelopt, Dialect::compressed_tensors, Dialect::gguf}) {
    const Error why = refused(folder / "a", to, folder / "b");
    EXPECT_EQ(why.id, "transcode.mixed_precision");
    EXPECT_EQ(why.tensor, std::string(kModule) + ".weight");
    EXPECT_NE(why.found.find("F8_E4M3 [8, 4]"), std::string::npos) << why.found;
  }
}

TEST(TranscodeFp4, RefusesPartsOfFp8ModulesThatNothingApplies) {
  const TemporaryFolder folder;
  write(folder / "a", *find_row(Dialect::modelopt, kNv), kModeloptNvfp4,
        {part(".weight", DType::f8_e4m3, {8, 64}), part(".weight_scale", DType::f32, {}),
         part(".input_scale", DType::f32, {}), part(".pre_quant_scale", DType::bf16, {64})});
  const Error why = refused(folder / "a", Dialect::quark, folder / "b");
  EXPECT_EQ(why.id, "transcode.mixed_precision");
  EXPECT_EQ(why.tensor, std::string(kModule) + ".pre_quant_scale");
}

// Tensors of NVFP4's shape whose configuration speaks of another block.
TEST(TranscodeFp4, RefusesModulesThatTheConfigurationCallsAnotherFormat) {
  const TemporaryFolder folder;
  write(folder / "a", *find_row(Dialect::compressed_tensors, kNv),
        R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
              "group_0": {"format": "nvfp4-pack-quantized", "targets": ["re:.*experts.*"],
                          "weights": {"num_bits": 4, "group_size": 16}},
              "group_1": {"format": "nvfp4-pack-quantized", "targets": ["re:.*self_attn.*"],
                          "weights": {"num_bits": 4, "group_size": 32}}}})",
        {part(".weight_packed", DType::u8, {8, 32}), part(".weight_scale", DType::f8_e4m3, {8, 4}),
         part(".weight_global_scale", DType::f32, {1})});
  const Error why = refused(folder / "a", Dialect::modelopt, folder / "b");
  EXPECT_EQ(why.id, "transcode.mixed_precision");
  EXPECT_NE(why.found.find("32 elements"), std::string::npos) << why.found;
}

TEST(TranscodeFp4, RefusesScalesOfGgufBlocksThatAreNotOneNumber) {
  struct Case {
    WeightFormat format;
    Tensors parts;
    std::string_view id;
  };
  const Case cases[] = {
      {kNv, {named("blk.0.attn_k.scale", DType::f64, {1})}, "tensor.dtype"},
      {kNv, {named("blk.0.attn_k.scale", DType::f32, {8})}, "tensor.shape"},
      {kNv, {named("blk.0.attn_k.input_scale", DType::i32, {1})}, "tensor.dtype"},
      {kMx, {named("blk.0.attn_k.scale", DType::f32, {1})}, "transcode.mixed_precision"},
  };
  const TemporaryFolder folder;
  const tensor::GgufField architecture{"general.architecture", tensor::GgufType::string,
                                       std::string("qwen3moe")};
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    Tensors tensors = gguf_tensors(small(cases[i].format), "blk.0.");
    const bool is_nv = cases[i].format == kNv;
    tensors.push_back(
        named("blk.0.attn_k.weight", is_nv ? DType::gguf_nvfp4 : DType::gguf_mxfp4, {8, 64}));
    tensors.insert(tensors.end(), cases[i].parts.begin(), cases[i].parts.end());
    const std::string from = folder / (std::to_string(i) + ".gguf");
    write_gguf(from, tensors, {architecture});
    const Error why = refused(from, Dialect::compressed_tensors, folder / "out");
    EXPECT_EQ(why.id, cases[i].id) << i << ": " << text(why);
  }
}

// The experts' input scales fit BF16, that of another module does not.
TEST(TranscodeFp4, AnInputScaleThatBf16HasNotStaysFloat32) {
  const TemporaryFolder folder;
  Model model = small(kMx);
  model.input_scale = true;
  Tensors tensors = tensors_of(model, *find_row(Dialect::quark, kMx, Grouping::per_expert, false));
  for (FileTensor& tensor : tensors)
    if (tensor.name.ends_with(".input_scale")) {
      tensor.dtype = DType::bf16;
      tensor.bytes.erase(tensor.bytes.begin(), tensor.bytes.begin() + 2);
    }
  tensors.push_back(part(".weight", DType::u8, {8, 32}));
  tensors.push_back(part(".weight_scale", DType::u8, {8, 2}));
  tensors.push_back(part(".input_scale", DType::f32, {}));
  std::filesystem::create_directory(folder / "a");
  write_safetensors(folder / "a/model.safetensors", tensors);
  write_text(folder / "a/config.json", config_of("qwen3_moe", kQuarkMxfp4));
  expect_back(folder / "a", Dialect::modelopt, folder / "b");
}

}  // namespace transcode_fp4_test
}  // namespace fp4moe::checkpoint
