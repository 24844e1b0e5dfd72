#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "golden/oracle_cases.hpp"
#include "golden/oracle_fields.hpp"

namespace fp4moe::golden {
namespace {

Json json(std::string_view text) {
  const Result<Json> parsed = parse_json(text);
  EXPECT_TRUE(parsed);
  return parsed ? *parsed : Json();
}

const Json kPlatform = json(R"({"name": "h100", "type": "cuda", "capability": [9, 0], "gfx": null,
    "libs": {"flashinfer": true, "triton_kernels": true, "aiter": false}})");
const Json kParallel = json(R"({"tp_size": 1, "pcp_size": 1, "dp_size": 2, "ep_size": 2,
    "tp_rank": 0, "pcp_rank": 0, "dp_rank": 0, "ep_rank": 0, "sp_size": 1, "use_ep": true,
    "all2all_backend": "deepep_low_latency", "enable_eplb": false})");

Json round_case() {
  return {{"version", "2026-04-24"},
          {"format", "mxfp4"},
          {"platform", kPlatform},
          {"backend", "MARLIN"},
          {"hidden", 2880},
          {"intermediate", 2880},
          {"expect", {{"hidden", 3072}, {"intermediate", 2944}}}};
}

Json layer_case() {
  Json item = round_case();
  item.erase("format");
  item["parallel"] = kParallel;
  item["act_dtype"] = "bfloat16";
  item["hidden"] = 4097;
  item["expect"] = {{"hidden", 5120}, {"intermediate", 2944}};
  return item;
}

Json parallel_case() {
  return {{"version", "2026-04-24"},
          {"input", json(R"({"tp_size": 2, "pcp_size": 1, "dp_size": 1, "tp_rank": 1,
              "pcp_rank": 0, "dp_rank": 0, "sp_size": 1, "enable_expert_parallel": true,
              "all2all_backend": "mori", "enable_eplb": false})")},
          {"expect", json(R"({"tp_size": 1, "ep_size": 2, "ep_rank": 1, "use_ep": true,
              "use_mori_kernels": false, "is_sequence_parallel": false})")}};
}

Json prepare_case() {
  return {{"version", "2026-04-24"},
          {"parallel", kParallel},
          {"monolithic", false},
          {"activation_quant_dtype", nullptr},
          {"expect", {{"class", "DeepEPLLPrepareAndFinalize"}}}};
}

using Check = Outcome (*)(const Json&);

void expect_agrees(Check check, const Json& item) {
  const Outcome outcome = check(item);
  ASSERT_TRUE(outcome) << text(outcome.why());
  EXPECT_FALSE(*outcome) << (*outcome)->what << ": " << (*outcome)->expected << " / "
                         << (*outcome)->found;
}
void expect_differs(Check check, const Json& item) {
  const Outcome outcome = check(item);
  ASSERT_TRUE(outcome) << text(outcome.why());
  EXPECT_TRUE(*outcome) << item.dump();
}
void expect_malformed(Check check, const Json& item) {
  const Outcome outcome = check(item);
  ASSERT_FALSE(outcome) << item.dump();
  EXPECT_EQ(outcome.why().id, "golden.malformed");
}
Json changed(Json item, std::string_view key, Json value) {
  item[std::string(key)] = std::move(value);
  return item;
}
// Without each of its fields in turn, and with each of another kind, a case is malformed.
void expect_every_field_counts(Check check, const Json& item,
                               std::initializer_list<std::string_view> optional) {
  for (const auto& [key, value] : item.items()) {
    Json without = item;
    without.erase(key);
    if (std::find(optional.begin(), optional.end(), std::string_view(key)) == optional.end())
      expect_malformed(check, without);
    expect_malformed(check, changed(item, key, Json::array({1})));
  }
}

TEST(GoldenSizes, AgreeingCasesPass) {
  expect_agrees(check_round, round_case());
  expect_agrees(check_layer_size, layer_case());
  expect_agrees(check_parallel, parallel_case());
  expect_agrees(check_prepare_finalize, prepare_case());
}

TEST(GoldenSizes, OneChangedNumberIsFound) {
  expect_differs(check_round,
                 changed(round_case(), "expect", {{"hidden", 3073}, {"intermediate", 2944}}));
  expect_differs(check_round,
                 changed(round_case(), "expect", {{"hidden", 3072}, {"intermediate", 2945}}));
  expect_differs(check_layer_size, changed(layer_case(), "hidden", 4096));
  expect_differs(check_parallel, changed(parallel_case(), "expect", {{"ep_rank", 0}}));
  expect_differs(check_parallel, changed(parallel_case(), "expect", {{"use_pplx_kernels", false}}));
  expect_differs(check_prepare_finalize, changed(prepare_case(), "expect", {{"class", "Other"}}));
}

TEST(GoldenSizes, ErrorsAreComparedByKindAndText) {
  Json item = changed(layer_case(), "hidden", 9000);
  const std::string message =
      "Hidden Size 9000 is greater than the maximum supported hidden size 8192";
  item["expect"] = {{"error_type", "ValueError"}, {"message", message}};
  expect_agrees(check_layer_size, item);
  item["expect"]["message"] = "another";
  expect_differs(check_layer_size, item);
  item["expect"] = {{"error_type", "TypeError"}, {"message", message}};
  expect_differs(check_layer_size, item);
  item["expect"] = {{"hidden", 9000}, {"intermediate", 2944}};
  expect_differs(check_layer_size, item);
  item = layer_case();
  item["expect"] = {{"error_type", "ValueError"}, {"message", message}};
  expect_differs(check_layer_size, item);
}

TEST(GoldenSizes, AnExchangeWithoutAClassAgreesWithNull) {
  Json item = prepare_case();
  item["parallel"]["all2all_backend"] = "naive";
  item["expect"] = {{"class", nullptr}};
  expect_agrees(check_prepare_finalize, item);
  item["expect"] = {{"error_type", "AssertionError"}};
  expect_agrees(check_prepare_finalize, item);
  expect_differs(check_prepare_finalize, changed(prepare_case(), "expect", {{"class", nullptr}}));
}

TEST(GoldenSizes, TheReferencesNoBackendHasTwoNames) {
  Json item = round_case();
  item["expect"] = {{"hidden", 2880}, {"intermediate", 2880}};
  expect_agrees(check_round, changed(item, "backend", "NONE"));
  expect_agrees(check_round, changed(item, "backend", "None"));
}

TEST(GoldenSizes, MalformedCasesAreErrorsThatNameTheField) {
  expect_every_field_counts(check_round, round_case(), {"format"});
  expect_every_field_counts(check_layer_size, layer_case(), {});
  expect_every_field_counts(check_parallel, parallel_case(), {});
  expect_every_field_counts(check_prepare_finalize, prepare_case(), {"activation_quant_dtype"});
  for (const Check check : {check_round, check_layer_size, check_parallel, check_prepare_finalize})
    expect_malformed(check, Json::array());

  expect_malformed(check_round, changed(round_case(), "backend", "MARLYN"));
  expect_malformed(check_round, changed(round_case(), "version", "2020-01-01"));
  expect_malformed(check_round, changed(round_case(), "version", "2026-01-27"));
  expect_malformed(check_round, changed(round_case(), "format", "fp4"));
  expect_malformed(check_round, changed(round_case(), "activation", "tanh"));
  expect_malformed(check_round, changed(round_case(), "hidden", -1));
  expect_malformed(check_layer_size, changed(layer_case(), "act_dtype", "int8"));
  expect_malformed(check_parallel, changed(parallel_case(), "expect", Json::object()));
  expect_malformed(check_prepare_finalize,
                   changed(prepare_case(), "activation_quant_dtype", "int8"));
}

TEST(OracleFields, DevicesAreReadStrictly) {
  const auto device = device_field(kPlatform);
  ASSERT_TRUE(device);
  EXPECT_EQ(device->kind, platform::PlatformKind::cuda);
  EXPECT_EQ(device->capability, (platform::Capability{9, 0}));
  EXPECT_TRUE(device->libraries.contains(platform::Library::flashinfer));
  EXPECT_FALSE(device->libraries.contains(platform::Library::aiter));

  EXPECT_FALSE(device_field(changed(kPlatform, "type", "tpu")));
  EXPECT_FALSE(device_field(changed(kPlatform, "typo", 1)));
  EXPECT_FALSE(device_field(changed(kPlatform, "gfx", 9)));
  EXPECT_FALSE(device_field(changed(kPlatform, "amx", "yes")));
  for (const char* wrong : {"[9]", "[9, -1]", "[9, 100000]", "\"9.0\"", "[9, 0, 0]"})
    EXPECT_FALSE(device_field(changed(kPlatform, "capability", json(wrong)))) << wrong;
  EXPECT_FALSE(device_field(changed(kPlatform, "libs", {{"cudnn", true}})));
  EXPECT_FALSE(device_field(changed(kPlatform, "libs", {{"aiter", 1}})));
  Json without = kPlatform;
  without.erase("capability");
  EXPECT_FALSE(device_field(without));
}

TEST(OracleFields, AmxMeansAnX86Cpu) {
  Json cpu = kPlatform;
  cpu["type"] = "cpu";
  cpu["capability"] = nullptr;
  EXPECT_EQ(device_field(cpu)->architecture, platform::CpuArchitecture::unknown);
  cpu["amx"] = false;
  EXPECT_EQ(device_field(cpu)->architecture, platform::CpuArchitecture::x86);
  EXPECT_TRUE(device_field(cpu)->cpu.empty());
  cpu["amx"] = true;
  EXPECT_TRUE(device_field(cpu)->cpu.contains(platform::CpuFeature::amx_bf16));
}

TEST(OracleFields, ParallelConfigurationsAreReadStrictly) {
  ASSERT_TRUE(parallel_field(kParallel));
  EXPECT_EQ(parallel_field(kParallel)->ep_size, 2);
  for (const auto& [key, value] : kParallel.items()) {
    Json without = kParallel;
    without.erase(key);
    EXPECT_FALSE(parallel_field(without)) << key;
    EXPECT_FALSE(parallel_field(changed(kParallel, key, Json::object()))) << key;
  }
  EXPECT_FALSE(parallel_field(changed(kParallel, "tp_size", 1ull << 40)));
  EXPECT_FALSE(parallel_field(changed(kParallel, "cp_size", 1)));
}

}  // namespace
}  // namespace fp4moe::golden
