#include "fp4moe/moe/cuda/plan.hpp"

#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/platform/device.hpp"

namespace fp4moe::moe::cuda {
namespace plan_test {

using checkpoint::RowOrder;
using checkpoint::WeightFormat;

ExpertsProblem problem_of(std::uint64_t experts, std::uint64_t hidden, std::uint64_t intermediate,
                          std::string_view numerics = "exact") {
  return {.shape = {.experts = experts, .hidden = hidden, .intermediate = intermediate},
          .numerics = **require_numerics(numerics)};
}

sm90::LayerParams layer_of(const ExpertsProblem& problem) {
  const auto result = describe(problem);
  EXPECT_TRUE(result) << text(result.why());
  return result ? *result : sm90::LayerParams{};
}

CallPlan plan(const ExpertsProblem& problem, const CallSize& size) {
  return plan_call(layer_of(problem), size);
}

TEST(Plan, RowsOfW13FillWholeKBlocksOfW2) {
  const sm90::LayerParams oss = layer_of(problem_of(128, 2880, 2880));
  EXPECT_EQ(oss.w13.m_blocks, 90);
  EXPECT_EQ(oss.w13.k_blocks, 45);
  EXPECT_EQ(oss.w2.m_blocks, 45);
  EXPECT_EQ(oss.w2.k_blocks, 45);
  EXPECT_EQ(oss.w13.expert_bytes, 90 * 45 * 2176);
  // 96 columns of h are two K blocks: all four M blocks exist, though the rows end in the third.
  const sm90::LayerParams ragged = layer_of(problem_of(3, 160, 96));
  EXPECT_EQ(ragged.w13.m_blocks, 4);
  EXPECT_EQ(ragged.w13.k_blocks, 3);
  EXPECT_EQ(ragged.w2.m_blocks, 3);
  EXPECT_EQ(ragged.w2.k_blocks, 2);
  ExpertsProblem single = problem_of(3, 160, 96);
  single.shape.order = RowOrder::single;
  single.activation = Activation::relu2_no_mul;
  EXPECT_EQ(layer_of(single).w13.m_blocks, 2);
}

TEST(Plan, AnEmptyShareOfTheIntermediateSizeIsOneBlockOfPadding) {
  const sm90::LayerParams empty = layer_of(problem_of(3, 160, 0));
  EXPECT_EQ(empty.intermediate, 0);
  EXPECT_EQ(empty.w13.m_blocks, 2);
  EXPECT_EQ(empty.w13.k_blocks, 3);
  EXPECT_EQ(empty.w2.m_blocks, 3);
  EXPECT_EQ(empty.w2.k_blocks, 1);
  EXPECT_EQ(empty.w2.expert_bytes, 3 * 2176);
  // Decode waits for every column of h, and here no block writes one.
  EXPECT_EQ(plan_call(empty, {.tokens = 1, .top_k = 2}).path, Path::rows);
  const auto space = plan_workspace(empty, {.tokens = 4, .top_k = 2}, {.blocks = 132});
  ASSERT_TRUE(space) << text(space.why());
  EXPECT_GT(space->bytes[static_cast<std::size_t>(Region::h)], 0);
}

TEST(Plan, WordsOfKernelsAreThoseOfTheLibrary) {
  ExpertsProblem problem = problem_of(2, 64, 64, "marlin");
  problem.shape.format = WeightFormat::nvfp4;
  problem.activation = Activation::situ;
  problem.quantizes = ActivationKey::fp8_block128;
  const sm90::LayerParams layer = layer_of(problem);
  EXPECT_EQ(layer.act, sm90::Activation::situ);
  EXPECT_EQ(layer.first, sm90::FirstRounding::steps);
  EXPECT_EQ(layer.middle, sm90::MiddleRounding::gate_and_result);
  EXPECT_EQ(layer.second, sm90::SecondRounding::steps);
  EXPECT_EQ(layer.weight, sm90::WeightRounding::bf16_with_global);
  EXPECT_EQ(layer.quantization, sm90::Quantization::fp8_block128);
  EXPECT_EQ(layer.is_nvfp4, 1);
}

TEST(Plan, BlocksOfTheGemmSortFewAssignments) {
  const auto sorts = [](std::uint64_t experts, const CallSize& size,
                        std::string_view numerics = "exact") {
    return plan(problem_of(experts, 64, 64, numerics), size).is_block_sorted;
  };
  EXPECT_TRUE(sorts(96, {.tokens = 20, .top_k = 4}));
  EXPECT_TRUE(sorts(96, {.tokens = 1680, .top_k = 4}));
  EXPECT_FALSE(sorts(96, {.tokens = 1681, .top_k = 4}));  // tiles of 128 tokens
  EXPECT_TRUE(sorts(sm90::kMaxBlockSortExperts, {.tokens = 20, .top_k = 4}));
  EXPECT_FALSE(sorts(sm90::kMaxBlockSortExperts + 1, {.tokens = 20, .top_k = 4}));
  EXPECT_FALSE(sorts(96, {.tokens = 80, .top_k = 1, .is_batched = true}));
  EXPECT_FALSE(sorts(96, {.tokens = 20, .top_k = 4}, "unfused"));
  EXPECT_FALSE(sorts(96, {.tokens = 20, .top_k = 4, .has_adapters = true}));
  EXPECT_TRUE(sorts(256, {.tokens = sm90::kMaxBlockSortAssignments, .top_k = 1}));
  EXPECT_FALSE(sorts(256, {.tokens = sm90::kMaxBlockSortAssignments + 1, .top_k = 1}));
}

TEST(Plan, FewTokensAreDecodedInOneLaunch) {
  const ExpertsProblem problem = problem_of(128, 2880, 2880);
  for (const std::uint64_t tokens : {1u, 8u, 9u, 16u}) {
    const CallPlan result = plan(problem, {.tokens = tokens, .top_k = 4});
    EXPECT_EQ(result.path, Path::decode) << tokens;
    EXPECT_EQ(result.decode.tile_tokens, tokens <= 8 ? 8 : 16);
    EXPECT_GE(result.decode.stages, 3);
    EXPECT_LE(result.decode.shared_bytes, sm90::kMaxSharedBytes);
  }
  EXPECT_EQ(plan(problem, {.tokens = 17, .top_k = 4}).path, Path::rows);
  EXPECT_EQ(plan(problem, {.tokens = 1, .top_k = 4, .form = OutputForm::assignments}).path,
            Path::rows);
  EXPECT_EQ(plan(problem, {.tokens = 1, .top_k = 4, .has_adapters = true}).path, Path::rows);
  // Tokens of so wide a layer leave no shared memory for weights.
  EXPECT_EQ(plan(problem_of(8, 16384, 2880), {.tokens = 16, .top_k = 4}).path, Path::rows);
}

TEST(Plan, WithoutAssignmentsNothingIsComputed) {
  EXPECT_EQ(plan(problem_of(4, 64, 64), {.tokens = 0, .top_k = 2}).path, Path::nothing);
  EXPECT_EQ(plan(problem_of(4, 64, 64), {.tokens = 5, .top_k = 0}).path, Path::nothing);
  EXPECT_EQ(plan(problem_of(0, 64, 64), {.tokens = 5, .top_k = 2}).path, Path::nothing);
}

TEST(Plan, TheActivationIsFusedWhereNothingElseIsRounded) {
  const CallSize size{.tokens = 64, .top_k = 4};
  EXPECT_TRUE(plan(problem_of(4, 64, 64, "exact"), size).has_fused_activation);
  EXPECT_TRUE(plan(problem_of(4, 64, 64, "triton_fused"), size).has_fused_activation);
  EXPECT_FALSE(plan(problem_of(4, 64, 64, "unfused"), size).has_fused_activation);
  EXPECT_FALSE(plan(problem_of(4, 64, 64, "marlin"), size).has_fused_activation);
  ExpertsProblem problem = problem_of(4, 64, 64);
  problem.activation = Activation::gelu;
  EXPECT_FALSE(plan(problem, size).has_fused_activation);
  problem = problem_of(4, 64, 64);
  for (const auto key : {ActivationKey::mxfp8, ActivationKey::mxfp4}) {
    problem.quantizes = key;
    EXPECT_TRUE(plan(problem, size).has_fused_activation);
  }
  for (const auto key : {ActivationKey::fp8_block128, ActivationKey::fp8_token}) {
    problem.quantizes = key;
    EXPECT_FALSE(plan(problem, size).has_fused_activation);  // more columns than a warpgroup has
  }
  EXPECT_FALSE(plan(problem_of(4, 64, 64), {.tokens = 64, .top_k = 4, .has_adapters = true})
                   .has_fused_activation);
}

TEST(Plan, RowsOfGemm2AreBf16UnlessNumericsForbidItOrFewBecomeFloat32) {
  CallSize few{.tokens = 256, .top_k = 4};
  const CallSize many{.tokens = 512, .top_k = 4, .in_float32 = true};
  EXPECT_TRUE(plan(problem_of(128, 2880, 2880), few).has_bf16_rows);
  few.in_float32 = true;
  EXPECT_FALSE(plan(problem_of(128, 2880, 2880), few).has_bf16_rows);
  EXPECT_TRUE(plan(problem_of(128, 2880, 2880), many).has_bf16_rows);
  EXPECT_TRUE(plan(problem_of(128, 2880, 2880, "trtllm"), many).has_bf16_rows);
  EXPECT_FALSE(plan(problem_of(128, 2880, 2880, "unfused"), many).has_bf16_rows);
  EXPECT_FALSE(plan(problem_of(128, 2880, 2880, "marlin"), many).has_bf16_rows);
  EXPECT_FALSE(plan(problem_of(128, 2880, 2880), {.tokens = 512, .top_k = 4, .has_adapters = true})
                   .has_bf16_rows);
}

// Rows that routing makes, as params.hpp cuts them into tiles.
std::uint64_t rows_for(const std::vector<std::uint64_t>& counts, std::uint64_t& tiles) {
  std::uint64_t rows = 0;
  tiles = 0;
  for (const std::uint64_t count : counts) {
    if (count == 0) continue;
    const std::uint64_t pieces = (count + sm90::kMaxTileTokens - 1) / sm90::kMaxTileTokens;
    tiles += pieces;
    rows += (count + 7) / 8 * 8;
  }
  return rows;
}

TEST(Plan, NoRoutingMakesMoreRowsThanAreReserved) {
  SplitMix64 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t experts = 1 + random.next() % 512, assignments = random.next() % 4000;
    std::vector<std::uint64_t> counts(experts, 0);
    const std::uint64_t favored = 1 + random.next() % experts;
    for (std::uint64_t i = 0; i < assignments; ++i) ++counts[random.next() % favored];
    std::uint64_t tiles = 0;
    EXPECT_LE(rows_for(counts, tiles), max_rows(assignments, experts));
    EXPECT_LE(tiles, max_tiles(assignments, experts));
  }
}

TEST(Plan, RegionsOfAWorkspaceDoNotOverlapAndGrowWithTokens) {
  const sm90::LayerParams layer = layer_of(problem_of(128, 2880, 2880));
  std::uint64_t last = 0;
  for (std::uint64_t tokens = 1; tokens <= 8192; tokens *= 2) {
    const auto result = plan_workspace(layer, {.tokens = tokens, .top_k = 4}, {.blocks = 132});
    ASSERT_TRUE(result);
    for (std::size_t i = 0; i + 1 < kRegions; ++i) {
      EXPECT_EQ(result->at[i] % kMemoryAlignment, 0);
      EXPECT_GE(result->at[i + 1], result->at[i] + result->bytes[i]);
    }
    EXPECT_GE(result->total, last);
    last = result->total;
  }
  // Tokens in, h, tokens out: 8192 * 4 assignments of 2880 bf16 numbers each, and little more.
  EXPECT_LT(last, std::uint64_t{3} * 8192 * 4 * 2880 * 2 * 11 / 10);
}

TEST(Plan, GatherFillsTheTilesOfTwoWorkTilesForEveryBlock) {
  const sm90::LayerParams oss = layer_of(problem_of(128, 2880, 2880));
  EXPECT_EQ(initial_tiles(oss, 128, 132), 13);  // 23 work tiles of a token tile
  EXPECT_EQ(initial_tiles(oss, 192, 132), 10);  // 30
  EXPECT_EQ(initial_tiles(layer_of(problem_of(4, 64, 64)), 128, 132), 265);
}

// The table of docs/cuda.md, on a device of 132 SMs.
std::string memory_table() {
  struct Model {
    std::string_view name;
    std::uint64_t experts, hidden, intermediate, top_k;
  };
  constexpr Model kModels[] = {{"gpt-oss-120b", 128, 2880, 2880, 4},
                               {"gpt-oss-20b", 32, 2880, 2880, 4},
                               {"qwen3-30b-a3b", 128, 2048, 768, 8},
                               {"deepseek-v3", 256, 7168, 2048, 8}};
  constexpr std::uint64_t kTokens[] = {1, 16, 64, 256, 1024, 4096, 8192};
  std::string page = "| layer of |";
  for (const std::uint64_t tokens : kTokens) page += fmt::format(" {} |", tokens);
  page += "\n|---|";
  for (std::size_t i = 0; i < std::size(kTokens); ++i) page += "--:|";
  for (const Model& model : kModels) {
    page += fmt::format("\n| {} |", model.name);
    for (const std::uint64_t tokens : kTokens) {
      const auto result =
          plan_workspace(layer_of(problem_of(model.experts, model.hidden, model.intermediate)),
                         {.tokens = tokens, .top_k = model.top_k}, {.blocks = 132});
      EXPECT_TRUE(result) << text(result.why());
      page += fmt::format(" {:.1f} |", static_cast<double>(result->total) / 1048576.0);
    }
  }
  return page + "\n";
}

TEST(Plan, ThePageSaysHowMuchMemoryCallsTake) {
  std::ifstream file(FP4MOE_TESTDATA "/../docs/cuda.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string mark = "<!-- memory -->\n";
  const std::size_t begin = page.find(mark);
  ASSERT_NE(begin, std::string::npos);
  const std::size_t end = page.find(mark, begin + mark.size());
  EXPECT_EQ(page.substr(begin + mark.size(), end - begin - mark.size()), memory_table());
}

TEST(Plan, AdaptersAndRoundedNumericsTakeMore) {
  const auto bytes = [](std::string_view numerics, std::uint64_t rank) {
    return plan_workspace(layer_of(problem_of(32, 2880, 2880, numerics)),
                          {.tokens = 1024, .top_k = 4, .max_rank = rank}, {.blocks = 132})
        ->total;
  };
  EXPECT_GT(bytes("unfused", 0), bytes("exact", 0));
  EXPECT_GT(bytes("exact", 16), bytes("exact", 0));
}

TEST(Plan, RefusesWhatKernelsCannotCount) {
  EXPECT_EQ(describe(problem_of(1025, 64, 64)).why().id, "cuda.limits");
  EXPECT_EQ(describe(problem_of(1, 64, 64 << 20)).why().id, "cuda.limits");
  ExpertsProblem emulated = problem_of(2, 64, 64, "nvfp4_emulation");
  emulated.shape.format = WeightFormat::nvfp4;
  EXPECT_EQ(describe(emulated).why().id, "cuda.numerics");
  EXPECT_EQ(describe(problem_of(2, 60, 64)).why().id, "experts.blocks");
  const sm90::LayerParams layer = layer_of(problem_of(128, 64, 64));
  for (const WorkspaceLimits& limits :
       {WorkspaceLimits{.tokens = std::uint64_t{1} << 40, .top_k = 8},
        WorkspaceLimits{.tokens = ~std::uint64_t{0}, .top_k = 8},
        WorkspaceLimits{.tokens = (1 << 18) + 1, .top_k = 8},
        WorkspaceLimits{.capacity = (1 << 21) + 1}, WorkspaceLimits{.capacity = 1 << 30}})
    EXPECT_EQ(plan_workspace(layer, limits, {.blocks = 132}).why().id, "cuda.limits");
  EXPECT_TRUE(
      plan_workspace(layer, {.tokens = 1 << 18, .top_k = 8, .capacity = 1 << 21}, {.blocks = 132}));
}

// Shared memory of a block by compute capability, in KiB.
std::uint64_t shared_kib(const platform::Capability& capability) {
  if (capability.major == 8) return capability.minor == 0 || capability.minor == 7 ? 163 : 99;
  return capability.major == 12 ? 99 : 227;
}

TEST(Plan, EveryDescribedGpuSinceAmpereHasAPipelineForEveryTile) {
  int seen = 0;
  for (const platform::DescribedDevice& device : platform::described_devices()) {
    if (device.kind != platform::PlatformKind::cuda || device.capability->major < 8) continue;
    ++seen;
    const std::uint64_t shared = shared_kib(*device.capability) * 1024;
    for (const bool is_nvfp4 : {false, true})
      for (const std::uint32_t tokens : sm80::kTileSizes) {
        const sm80::GroupedGemmShape shape = sm80::grouped_gemm_shape(tokens, is_nvfp4, shared);
        EXPECT_GE(shape.stages, 2u) << device.name << ", " << tokens;
        EXPECT_LE(shape.stages, sm80::kMaxStages);
        EXPECT_EQ(shape.shared_bytes, (sm80::SharedStorage{tokens, is_nvfp4}.bytes(shape.stages)));
        EXPECT_LE(shape.blocks_per_sm * (shape.shared_bytes + sm80::kSystemSharedBytes),
                  shared + sm80::kSystemSharedBytes)
            << device.name << ", " << tokens;
      }
  }
  EXPECT_GE(seen, 8);
  EXPECT_EQ(sm80::grouped_gemm_shape(128, false, 32 * 1024).stages, 0u);
}

TEST(Plan, KernelsForEveryGpuTakeTheRowsPath) {
  const sm90::LayerParams layer = layer_of(problem_of(128, 2880, 2880));
  const std::pair<std::uint64_t, std::uint32_t> tiles[] = {
      {1, 32}, {8, 32}, {640, 32}, {641, 64}, {1792, 64}, {1793, 128}, {8192, 128}};
  for (const auto& [tokens, tile] : tiles) {
    const CallPlan found = plan_call(layer, {.tokens = tokens, .top_k = 4}, Family::sm80);
    EXPECT_EQ(found.path, Path::rows);
    EXPECT_EQ(found.tile_tokens, tile) << tokens;
    EXPECT_TRUE(found.has_fused_activation);
    EXPECT_FALSE(found.is_block_sorted);
    EXPECT_EQ(found.prescale, sm90::activation_prescale(tile, false));
  }
  ExpertsProblem quantized = problem_of(128, 2880, 2880);
  quantized.quantizes = ActivationKey::mxfp8;
  const sm90::LayerParams other = layer_of(quantized);
  EXPECT_TRUE(plan_call(other, {.tokens = 64, .top_k = 4}).has_fused_activation);
  EXPECT_FALSE(plan_call(other, {.tokens = 64, .top_k = 4}, Family::sm80).has_fused_activation);
  // Regions of kernels that the family does not have are empty.
  const auto space =
      plan_workspace(other, {.tokens = 64, .top_k = 4}, {.blocks = 128, .family = Family::sm80});
  ASSERT_TRUE(space) << text(space.why());
  EXPECT_EQ(space->bytes[static_cast<std::size_t>(Region::block_sort)], 0u);
  EXPECT_EQ(space->bytes[static_cast<std::size_t>(Region::hidden)], 0u);
  EXPECT_GT(space->bytes[static_cast<std::size_t>(Region::raw)], 0u);
}

TEST(Plan, ARowOfTheActivationMustFitTheDevice) {
  ExpertsProblem problem = problem_of(2, 64, 40000);
  problem.quantizes = ActivationKey::fp8_token;
  EXPECT_TRUE(describe(problem));
  EXPECT_EQ(describe(problem, activate_max_shared(99 * 1024)).why().id, "cuda.limits");
  EXPECT_EQ(activate_max_shared(227 * 1024), kActivateMaxShared);
}

// A launch has a block for every work tile that there may be, however the tokens are routed.
TEST(Plan, BlocksOfTheGroupedGemmCoverEveryTile) {
  SplitMix64 random(5);
  for (int i = 0; i < 200; ++i) {
    const auto experts = static_cast<std::uint32_t>(1 + random.next() % 40);
    const std::uint32_t tile = sm80::kTileSizes[random.next() % 3];
    std::uint64_t assignments = 0, tiles = 0;
    for (std::uint32_t e = 0; e < experts; ++e) {
      const std::uint64_t count = random.next() % 3 == 0 ? 0 : random.next() % 300;
      assignments += count;
      tiles += (count + tile - 1) / tile;
    }
    const std::uint32_t m_blocks = 45, each = (m_blocks + sm80::block_m_blocks(tile) - 1) /
                                              sm80::block_m_blocks(tile);
    EXPECT_GE(sm80::grouped_gemm_blocks(assignments, experts, m_blocks, tile), tiles * each);
  }
}

}  // namespace plan_test
}  // namespace fp4moe::moe::cuda
