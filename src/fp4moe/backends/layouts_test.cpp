#include "fp4moe/backends/layouts.hpp"

#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"

namespace fp4moe::backends {
namespace layouts_test {

using layout::Layout;
using oracle::PolicyDate;

constexpr PolicyDate kDates[] = {
    PolicyDate::january_seed, PolicyDate::january_27, PolicyDate::march_20, PolicyDate::march_27,
    PolicyDate::april_24,     PolicyDate::august_22,  PolicyDate::vllm_033, PolicyDate::native};

platform::Device device(std::string_view name) {
  const Result<platform::Device> found = platform::describe_device(name);
  EXPECT_TRUE(found) << name;
  return found ? *found : platform::Device{};
}

const oracle::Backend& backend(std::string_view name, formats::WeightFormat format,
                               PolicyDate policy_date) {
  static const oracle::Backend kNone{};
  for (const oracle::Backend* row : all_rows())
    if (row->name == name && row->format == format && row->policy_dates.contains(policy_date))
      return *row;
  ADD_FAILURE() << "no backend " << name;
  return kNone;
}

TEST(Layouts, HaveIdsAndGenerationsOfTheirOwn) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  std::set<std::string_view> without;  // ids of one generation, which needs no name
  for (const Layout& row : layouts()) {
    EXPECT_TRUE(seen.insert({row.id, row.generation}).second) << row.id << " " << row.generation;
    if (row.generation.empty()) without.insert(row.id);
  }
  for (const Layout& row : layouts())
    EXPECT_TRUE(row.generation.empty() || !without.contains(row.id)) << row.id;
}

TEST(Layouts, SayTheirFormatInTheirIdAndWhoReadsThem) {
  for (const Layout& row : layouts()) {
    EXPECT_TRUE(row.id.ends_with(name(row.format))) << row.id;
    EXPECT_FALSE(row.reads.empty()) << row.id;
    EXPECT_FALSE(row.codes.name.empty() || row.scales.name.empty()) << row.id;
    EXPECT_EQ(row.one_record, row.codes.record != 0) << row.id;
  }
}

TEST(Layouts, AreFoundByIdAndGeneration) {
  for (const Layout& row : layouts()) {
    const Result<const Layout*> found = require_layout(row.id, row.generation);
    ASSERT_TRUE(found) << row.id;
    EXPECT_EQ((*found)->generation, row.generation);
  }
  const Result<const Layout*> newest = require_layout("marlin.nvfp4", "");
  ASSERT_TRUE(newest);
  EXPECT_EQ((*newest)->generation, "2026-04");
}

TEST(Layouts, UnknownNamesAreRefusedWithTheKnownOnes) {
  const Result<const Layout*> unknown = require_layout("marlin.mxfp5", "");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.why().id, "layout.unknown");
  EXPECT_NE(unknown.why().expected.find("marlin.mxfp4"), std::string::npos);

  const Result<const Layout*> older = require_layout("marlin.nvfp4", "2025-12");
  ASSERT_FALSE(older);
  EXPECT_EQ(older.why().id, "layout.generation");
  EXPECT_NE(older.why().expected.find("2026-01"), std::string::npos);

  const Result<const Layout*> never = require_layout("marlin.mxfp4", "2026-01");
  ASSERT_FALSE(never);
  EXPECT_EQ(never.why().id, "layout.generation");
  EXPECT_EQ(never.why().expected, "no generation");
}

// Every generation that a backend was ever in need of exists.
TEST(Layouts, EveryBackendHasOneOnEveryDeviceOrItsLibraryMakesItsOwn) {
  std::size_t found = 0, external = 0;
  for (const oracle::Backend* row : all_rows())
    for (const platform::DescribedDevice& described : platform::described_devices())
      for (const PolicyDate policy_date : kDates)
        for (const std::uint64_t ranks : {1u, 2u, 4u}) {
          const platform::Device on = device(described.name);
          const Result<const Layout*> layout = layout_of({*row, policy_date, on, ranks});
          if (layout) {
            ++found;
            EXPECT_EQ((*layout)->format, row->format) << row->name;
          } else {
            ++external;
            const bool known =
                layout.why().id == "layout.external" || layout.why().id == "layout.unspecified";
            EXPECT_TRUE(known) << row->name << text(layout.why());
            EXPECT_FALSE(layout.why().remedy.empty());
          }
        }
  EXPECT_GT(found, external);
}

TEST(Layouts, FollowTheDateTheDeviceAndTheRanks) {
  constexpr auto kMxfp4 = formats::WeightFormat::mxfp4;
  constexpr auto kNvfp4 = formats::WeightFormat::nvfp4;
  const auto generation = [](const oracle::Backend& row, PolicyDate policy_date,
                             std::string_view on, std::uint64_t ranks = 1) {
    const Result<const Layout*> found = layout_of({row, policy_date, device(on), ranks});
    return found ? std::string((*found)->generation) : text(found.why());
  };
  const oracle::Backend& triton = backend("TRITON", kMxfp4, PolicyDate::august_22);
  EXPECT_EQ(generation(triton, PolicyDate::april_24, "h100"), "hopper.v3.6.w8");
  EXPECT_EQ(generation(triton, PolicyDate::august_22, "h100"), "hopper.v3.5.w8.k4");
  EXPECT_EQ(generation(triton, PolicyDate::january_27, "h100"), "hopper.v3.5.w8");
  EXPECT_EQ(generation(triton, PolicyDate::august_22, "b200"), "blackwell.v3.6");
  EXPECT_EQ(generation(triton, PolicyDate::august_22, "a100"), "strided");
  EXPECT_EQ(generation(triton, PolicyDate::august_22, "mi355x", 2), "cdna4.v3.6");
  EXPECT_EQ(generation(triton, PolicyDate::august_22, "mi355x", 4), "strided");
  EXPECT_EQ(generation(triton, PolicyDate::april_24, "mi355x", 4), "cdna4.v3.6");
  EXPECT_EQ(generation(triton, PolicyDate::april_24, "mi300x"), "strided");

  EXPECT_EQ(generation(triton, PolicyDate::vllm_033, "h100"), "hopper.v3.5.w8.k4");
  EXPECT_EQ(generation(triton, PolicyDate::vllm_033, "thor"), "blackwell.v3.6");
  EXPECT_EQ(generation(triton, PolicyDate::vllm_033, "rtx5090"), "blackwell.v3.6");
  EXPECT_EQ(generation(triton, PolicyDate::vllm_033, "mi300x"), "strided");
  const oracle::Backend& aiter = backend("AITER_TRITON_MXFP4_BF16", kMxfp4, PolicyDate::vllm_033);
  EXPECT_EQ(generation(aiter, PolicyDate::vllm_033, "mi355x", 2), "cdna4.v3.6");
  EXPECT_EQ(generation(aiter, PolicyDate::vllm_033, "mi355x", 4), "strided");
  EXPECT_EQ(generation(aiter, PolicyDate::vllm_033, "mi300x"), "strided");

  const oracle::Backend& marlin = backend("MARLIN", kNvfp4, PolicyDate::august_22);
  EXPECT_EQ(generation(marlin, PolicyDate::january_27, "h100"), "2026-01");
  EXPECT_EQ(generation(marlin, PolicyDate::march_27, "h100"), "2026-03");
  EXPECT_EQ(generation(marlin, PolicyDate::april_24, "h100"), "2026-04");
  EXPECT_EQ(generation(marlin, PolicyDate::august_22, "h100"), "2026-04");
}

// Where the reference hands bytes to a library whose layout is not known, the refusal says why.
TEST(Layouts, UnspecifiedOnesAreRefusedWithTheirReason) {
  constexpr auto kMxfp4 = formats::WeightFormat::mxfp4;
  const auto why = [](const LayoutRequest& request) {
    const Result<const Layout*> found = layout_of(request);
    return found ? std::string() : found.why().id + ": " + found.why().message;
  };
  const platform::Device mi355x = device("mi355x"), mi455x = device("mi455x");
  const oracle::Backend& aiter = backend("AITER_MXFP4_BF16", kMxfp4, PolicyDate::vllm_033);
  EXPECT_EQ(why({aiter, PolicyDate::vllm_033, mi355x}), "");
  EXPECT_EQ(why({aiter, PolicyDate::vllm_033, mi355x, 1, oracle::Activation::silu}), "");
  LayoutRequest request{aiter, PolicyDate::vllm_033, mi355x, 1, oracle::Activation::situ};
  EXPECT_NE(why(request).find("gate and up rows apart"), std::string::npos);
  request.environment.set(platform::Variable::rocm_aiter_situv2, "A8W4");
  EXPECT_EQ(why(request), "");
  request.environment.set(platform::Variable::rocm_aiter_a4w4_dsv4, "1");
  EXPECT_TRUE(why(request).starts_with("layout.unspecified"));
  request.policy_date = PolicyDate::august_22;
  EXPECT_EQ(why(request), "");

  for (const std::string_view name : {"TRITON", "TRITON_UNFUSED", "AITER_TRITON_MXFP4_BF16",
                                      "AITER_TRITON_MXFP4_MXFP4", "AITER_MXFP4_FP8"})
    EXPECT_NE(why({backend(name, kMxfp4, PolicyDate::vllm_033), PolicyDate::vllm_033, mi455x})
                  .find("shuffle"),
              std::string::npos)
        << name;
  for (const std::string_view name :
       {"HUMMING", "FLASHINFER_MOE_EP_CUTEDSL", "FLASHINFER_MOE_EP_DEEP_GEMM"})
    EXPECT_TRUE(why({backend(name, kMxfp4, PolicyDate::vllm_033), PolicyDate::vllm_033, mi355x})
                    .starts_with("layout.external"))
        << name;
}

}  // namespace layouts_test
}  // namespace fp4moe::backends
