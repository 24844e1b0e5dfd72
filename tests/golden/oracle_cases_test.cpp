#include "golden/oracle_cases.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe::golden {
namespace {

struct OracleFile {
  std::string name;
  std::size_t cases;
  std::size_t expectations;  // at least so many values can be changed
};
const OracleFile kOracleFiles[] = {{"/oracle_cases.json", 248, 1500},
                                   {"/oracle_cases-0.33.json", 183, 1100}};

std::string path_of(const OracleFile& file) { return std::string(FP4MOE_TESTDATA) + file.name; }

Json oracle_document(const OracleFile& file = kOracleFiles[0]) {
  const Result<Json> read = read_json_file(path_of(file));
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

TEST(GoldenOracle, EveryCaseOfTheCheckedInFilesAgrees) {
  for (const OracleFile& file : kOracleFiles) {
    const Result<Report> report = run_golden_file(path_of(file));

    ASSERT_TRUE(report) << text(report.why());
    EXPECT_EQ(report->failed, 0u) << text(report->failures.front());
    EXPECT_EQ(report->passed, file.cases);
  }
}

// Changes one expected value: a case that still passes does not look at it.
TEST(GoldenOracle, EveryChangedExpectationIsAFailure) {
  for (const OracleFile& file : kOracleFiles) {
    const Json all = oracle_document(file);
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
    EXPECT_GT(changed, file.expectations) << file.name;
  }
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
