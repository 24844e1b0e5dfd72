// The golden layouts of testdata/, made by running the reference, through the functions on memory.
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/base/sha256.hpp"
#include "fp4moe/vllm/mxfp4.hpp"
#include "fp4moe/vllm/nvfp4.hpp"
#include "support/sanitized.hpp"
#include "support/vllm_tensors.hpp"

namespace fp4moe::vllm {
namespace golden_layouts_test {

using tensor::DType;
using testing::LoadedTensor;

// Which function a golden layout is of: the backend, the policy, the generation where it is not the
// policy's own.
struct GoldenRow {
  std::string_view layout, policy, device, backend, generation{};
};
constexpr GoldenRow kRows[] = {
    {"marlin_nvfp4", "2026-08-22", "h100", "MARLIN"},
    {"marlin_nvfp4_2026_01", "2026-01-seed", "h100", "MARLIN"},
    {"trtllm_nvfp4", "2026-08-22", "b200", "FLASHINFER_TRTLLM"},
    {"trtllm_nvfp4_2026_01", "2026-01-seed", "b200", "FLASHINFER_TRTLLM"},
    {"fi_cutlass_nvfp4", "2026-08-22", "b200", "FLASHINFER_CUTLASS"},
    {"vllm_cutlass_nvfp4", "2026-08-22", "b200", "VLLM_CUTLASS"},
    {"cutedsl_nvfp4", "2026-08-22", "b200", "FLASHINFER_CUTEDSL"},
    {"cutedsl_batched_nvfp4", "2026-08-22", "b200", "FLASHINFER_CUTEDSL_BATCHED"},
    {"marlin_mxfp4", "2026-08-22", "h100", "MARLIN"},
    {"trtllm_mxfp4", "2026-04-24", "b200", "FLASHINFER_TRTLLM_MXFP4_BF16"},
    {"fi_cutlass_sm90_mxfp4_seed", "2026-04-24", "h100", "FLASHINFER_CUTLASS_MXFP4_BF16"},
    {"fi_cutlass_sm90_mxfp4_g3", "2026-08-22", "h100", "FLASHINFER_CUTLASS_MXFP4_BF16"},
    {"fi_cutlass_sm100_mxfp4_mxfp8", "2026-08-22", "b200", "FLASHINFER_CUTLASS_MXFP4_MXFP8"},
};

LoadedTensor loaded(const Json& input) {
  const std::string type = input["dtype"].string(), fill = input["fill"].string();
  LoadedTensor result;
  result.dtype = type == "f32"    ? DType::f32
                 : type == "bf16" ? DType::bf16
                 : type == "e4m3" ? DType::f8_e4m3
                 : type == "e8m0" ? DType::f8_e8m0
                                  : DType::u8;
  for (const Json& size : input["shape"]) result.shape.push_back(size.get<std::uint64_t>());
  result.bytes.resize(*tensor::byte_count(result.dtype, result.shape));
  SplitMix64 random(std::stoull(input["seed"].string(), nullptr, 16));
  for (std::size_t i = 0; i < result.bytes.size(); i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(&result.bytes[i], &word, std::min<std::size_t>(8, result.bytes.size() - i));
  }
  for (std::size_t i = 0; i < result.bytes.size(); i += fill == "f32"    ? 4
                                                        : fill == "bf16" ? 2
                                                                         : 1) {
    if (fill == "f32") {
      std::uint32_t x = 0;
      std::memcpy(&x, &result.bytes[i], 4);
      x = ((110 + (x >> 23 & 0xFF) % 16) << 23) | (x & 0x7FFFFF);
      std::memcpy(&result.bytes[i], &x, 4);
      continue;
    }
    if (fill == "bf16") {
      std::uint16_t x = 0;
      std::memcpy(&x, &result.bytes[i], 2);
      x = static_cast<std::uint16_t>((x & 0x8000) | ((120 + (x >> 7 & 0xFF) % 16) << 7) |
                                     (x & 0x7F));
      std::memcpy(&result.bytes[i], &x, 2);
      continue;
    }
    unsigned b = std::to_integer<unsigned>(result.bytes[i]);
    if (fill == "e4m3_pos") b = (b & 0x7F) == 0x7F ? 0x7E : b & 0x7F;
    if (fill == "e4m3_signed" && (b & 0x7F) == 0x7F) b -= 1;
    if (fill == "e4m3_hi") b = 0x38 + b % 0x47;
    if (fill == "e4m3_mid") b = 0x20 + b % 0x30;
    if (fill == "e4m3_lo") b = b % 0x40;
    result.bytes[i] = static_cast<std::byte>(b);
  }
  return result;
}

struct Inputs {
  std::map<std::string, LoadedTensor> all{};
  TensorView view(const std::string& name) const {
    const auto found = all.find(name);
    return found == all.end() ? TensorView{} : found->second.view();
  }
  bool has_nan_scale() const {
    for (const auto& [name, tensor] : all)
      if (tensor.dtype == DType::f8_e8m0 &&
          std::ranges::find(tensor.bytes, std::byte{255}) != tensor.bytes.end())
        return true;
    return false;
  }
};

void expect_outputs(const Json& item, const KernelWeights& found) {
  for (const Json& output : item["outputs"]) {
    const TensorView view = found.tensor(output["name"].string());
    EXPECT_EQ(view.bytes.size(), output["nbytes"].get<std::uint64_t>()) << output["name"].string();
    EXPECT_EQ(sha256_hex(view.bytes), output["sha256"].string()) << output["name"].string();
  }
}

struct Counts {
  int equal = 0, refused = 0;
};

// A case whose sizes the conversion rounds otherwise is of another date.
bool is_of_date(const Json& params, const convert::Problem& problem) {
  const auto told = [&](std::string_view key, std::uint64_t size) {
    const auto found = params.find(key);
    return found == params.end() || found->get<std::uint64_t>() == size;
  };
  return told("H_pad", problem.padded.hidden) && told("I_pad", problem.padded.intermediate);
}

void check_case(const GoldenRow& row, const Json& item, Counts& counts) {
  const Json& params = item["params"];
  Inputs inputs;
  for (const Json& input : item["inputs"]) inputs.all[input["name"].string()] = loaded(input);
  const Context context{.policy = std::string(row.policy),
                        .device = *platform::describe_device(row.device)};
  const bool is_mxfp4 = row.layout.find("mxfp4") != std::string_view::npos;
  ConversionOptions options{.threads = 2};
  if (const auto mode = params.find("pad_mode"); mode != params.end() && *mode == "reference")
    options.generation = "2026-08.reference";
  if (const auto type = params.find("params_dtype"); type != params.end() && *type == "f16")
    options.params_dtype = DType::f16;
  if (is_mxfp4) {
    const auto result = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
        *parse_mxfp4_moe_backend(row.backend),
        {.w13_weight = inputs.view("w13"),
         .w2_weight = inputs.view("w2"),
         .w13_weight_scale = inputs.view("w13_scale"),
         .w2_weight_scale = inputs.view("w2_scale"),
         .w13_bias = inputs.view("w13_bias"),
         .w2_bias = inputs.view("w2_bias")},
        context, options);
    if (inputs.has_nan_scale()) {  // as files with such scales are refused
      ASSERT_FALSE(result);
      EXPECT_EQ(result.why().id, "scale.nan");
      ++counts.refused;
      return;
    }
    ASSERT_TRUE(result) << text(result.why());
    if (!is_of_date(params, result->packer().problem())) return;
    expect_outputs(item, *result);
    ++counts.equal;
    return;
  }
  const auto result =
      convert_to_nvfp4_moe_kernel_format(*parse_nvfp4_moe_backend(row.backend),
                                         {.w13 = inputs.view("w13"),
                                          .w13_scale = inputs.view("w13_scale"),
                                          .w13_scale_2 = inputs.view("w13_scale_2"),
                                          .a13_scale = inputs.view("a13_scale"),
                                          .w2 = inputs.view("w2"),
                                          .w2_scale = inputs.view("w2_scale"),
                                          .w2_scale_2 = inputs.view("w2_scale_2"),
                                          .a2_scale = inputs.view("a2_scale")},
                                         params["gated"].get<bool>(), context, options);
  ASSERT_TRUE(result) << text(result.why());
  if (!is_of_date(params, result->packed.packer().problem())) return;
  expect_outputs(item, result->packed);
  ++counts.equal;
}

TEST(GoldenLayouts, AreMadeFromMemory) {
  const auto document = read_json_file(std::string(FP4MOE_TESTDATA) + "/layouts-nvidia.json");
  ASSERT_TRUE(document) << text(document.why());
  Counts counts;
  std::size_t number = 0;
  for (const Json& item : (*document)["cases"])
    for (const GoldenRow& row : kRows)
      if (item["layout"].string() == row.layout && !item.contains("expect")) {
        if (!is_taken(number++, 5)) continue;
        SCOPED_TRACE(item["id"].string());
        check_case(row, item, counts);
      }
  EXPECT_GE(counts.equal, is_sanitized() ? 10 : 50);
  EXPECT_GE(counts.refused, is_sanitized() ? 1 : 10);
}

}  // namespace golden_layouts_test
}  // namespace fp4moe::vllm
