#include "golden/oracle_cases.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe::golden {
namespace {

const std::string kOracleFile = std::string(FP4MOE_TESTDATA) + "/oracle_cases.json";

Json oracle_document() {
  const Result<Json> read = read_json_file(kOracleFile);
  return read ? *read : Json();
}

Report run_oracle(const Json& cases) {
  const Result<Report> report = run_golden(cases);
  if (report) return *report;
  return {.failed = 1, .failures = {{.what = text(report.why()), .malformed = true}}};
}

Json only(const Json& item) {
  return {{"schema", "fp4moe.oracle_cases.v1"}, {"cases", Json::array({item})}};
}

const Json& first_of(const Json& all, std::string_view kind) {
  for (const Json& item : all["cases"])
    if (item["kind"] == kind) return item;
  return all;
}

TEST(GoldenOracle, EveryCaseOfTheCheckedInFileAgrees) {
  const Result<Report> report = run_golden_file(kOracleFile);

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->failed, 0u) << text(report->failures.front());
  EXPECT_EQ(report->passed, 248u);
}

// Changes one expected value: a case that still passes does not look at it.
TEST(GoldenOracle, EveryChangedExpectationIsAFailure) {
  const Json all = oracle_document();
  std::size_t changed = 0;
  for (const Json& item : all["cases"]) {
    for (const char* where : {"expect", "expect_strict"}) {
      if (!item.contains(where)) continue;
      for (const auto& [key, value] : item[where].items()) {
        Json bad = item;
        Json& target = bad[where][key];
        if (value.is_string())
          target = value.string() + "!";
        else if (value.is_boolean())
          target = !value.get<bool>();
        else if (value.is_number())
          target = value.get<std::int64_t>() + 1;
        else if (value.is_array())
          target.push_back("something else");
        else
          target = "something else";
        EXPECT_EQ(run_oracle(only(bad)).failed, 1u) << item["id"] << " " << where << "." << key;
        ++changed;
      }
    }
  }
  EXPECT_GT(changed, 1500u);
}

TEST(GoldenOracle, AMissingFieldOrAnUnknownWordIsMalformed) {
  const Json all = oracle_document();
  const auto malformed = [](const Json& item) {
    const Report report = run_oracle(only(item));
    return report.failed == 1 && report.has_malformed();
  };
  const Json good = first_of(all, "select");
  for (const char* key : {"kind", "format", "version", "platform", "env", "config", "expect"}) {
    Json bad = good;
    bad.erase(key);
    EXPECT_TRUE(malformed(bad)) << key;
  }
  for (const auto& [key, value] : good["config"].items()) {
    if (key == "router_logits_dtype") continue;  // the input's type when it is missing
    Json bad = good;
    bad["config"].erase(key);
    EXPECT_TRUE(malformed(bad)) << key;
  }
  const std::vector<std::pair<std::vector<std::string>, Json>> words = {
      {{"kind"}, "sing"},
      {{"version"}, "2020-01-01"},
      {{"format"}, "int4"},
      {{"platform", "type"}, "tpu"},
      {{"config", "activation"}, "tanh"},
      {{"config", "routing_method"}, "dice"},
      {{"config", "in_dtype"}, "int8"},
      {{"config", "hidden_dim"}, -4},
      {{"env", "VLLM_UNHEARD_OF"}, "1"},
      {{"env", "VLLM_BATCH_INVARIANT"}, 1},
  };
  for (const auto& [path, value] : words) {
    Json bad = good;
    Json* at = &bad;
    for (const std::string& key : path) at = &(*at)[key];
    *at = value;
    EXPECT_TRUE(malformed(bad)) << path.back();
  }
}

TEST(GoldenOracle, FieldsThatTheOracleDoesNotReadMayStandInACase) {
  Json item = first_of(oracle_document(), "select");
  item["config"]["num_logical_experts"] = 32;

  EXPECT_EQ(run_oracle(only(item)).passed, 1u);
}

TEST(GoldenOracle, ADocumentWithoutCasesIsAnError) {
  EXPECT_FALSE(run_golden({{"schema", "fp4moe.oracle_cases.v1"}}));
  EXPECT_FALSE(run_golden({{"schema", "fp4moe.oracle_cases.v1"}, {"cases", Json::object()}}));
  EXPECT_FALSE(run_golden({{"schema", "fp4moe.oracle_cases.v1"}, {"cases", Json::array()}}));
}

}  // namespace
}  // namespace fp4moe::golden
