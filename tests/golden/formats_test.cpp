#include "golden/formats.hpp"

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "golden/schemas.hpp"
#include "golden/test_support.hpp"

namespace fp4moe::golden {
namespace {

using testing::flip_digit;

const std::string kFormatsFile = std::string(FP4MOE_TESTDATA) + "/formats.json";

Json golden_document() {
  const Result<Json> document = read_json_file(kFormatsFile);
  return document ? *document : Json();
}

std::string first_failure(const Report& report) {
  return report.failures.empty() ? "" : text(report.failures.front());
}

Report run(const Json& document) {
  const Result<Report> report = run_golden(document);
  if (report) return *report;
  return {.failed = 1, .failures = {{.what = text(report.why()), .malformed = true}}};
}

TEST(GoldenFormats, EveryCaseOfTheCheckedInFileAgrees) {
  const Result<Report> report = run_golden_file(kFormatsFile);

  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->failed, 0u) << first_failure(*report);
  EXPECT_EQ(report->passed, 5u + 7u + 372u + 4u + 120u + 105u);
  EXPECT_EQ(report->schema, "fp4moe-golden-formats/1");
}

TEST(GoldenFormats, OneChangedDigitOfAnyExpectedValueIsAFailure) {
  const Json good = golden_document();
  const auto expect_one_failure = [](const Json& document, const std::string& where) {
    const Report report = run(document);
    EXPECT_EQ(report.failed, 1u) << where;
    EXPECT_FALSE(report.has_malformed()) << where << ": " << first_failure(report);
  };

  for (const auto& [format, values] : good["tables"].items())
    for (const std::size_t code : {std::size_t{1}, values.size() / 4}) {
      Json bad = good;
      flip_digit(bad["tables"][format][code], 7);
      expect_one_failure(bad, "tables." + format);
    }
  for (std::size_t i = 0; i < good["encode"].size(); ++i) {
    Json bad = good;
    flip_digit(bad["encode"][i]["codes"], bad["encode"][i]["codes"].string().size() - 1);
    expect_one_failure(bad, "encode");
  }
  for (const std::size_t i : {0u, 61u, 130u, 200u, 300u, 350u}) {
    Json bad = good;
    flip_digit(bad["blocks"][i]["codes"], 31);
    expect_one_failure(bad, "blocks.codes");
    bad = good;
    bad["blocks"][i]["scale"] = bad["blocks"][i]["scale"].get<int>() ^ 1;
    expect_one_failure(bad, "blocks.scale");
  }
  for (std::size_t i = 0; i < good["block_scales"].size(); ++i) {
    Json bad = good;
    flip_digit(bad["block_scales"][i]["scale"], 9);
    expect_one_failure(bad, "block_scales");
  }
  for (const std::size_t i : {0u, 57u, 119u}) {
    Json bad = good;
    flip_digit(bad["nvfp4"][i]["codes"], 0);
    expect_one_failure(bad, "nvfp4.codes");
    bad = good;
    bad["nvfp4"][i]["scale_e4m3"] = (bad["nvfp4"][i]["scale_e4m3"].get<int>() + 1) % 256;
    expect_one_failure(bad, "nvfp4.scale");
  }
  Json bad = good;
  bad["rcp_approx_ftz"]["six"] = "3e2aaaac";
  expect_one_failure(bad, "rcp_approx_ftz");
}

TEST(GoldenFormats, EveryActivationColumnIsCompared) {
  const Json good = golden_document();
  const Json& row = good["activations"][2];
  for (const auto& [key, value] : row.items()) {
    if (key == "gate" || key == "up") continue;
    Json bad = good;
    const double shifted = std::stod(value.string()) * 1.00001 + 1e-9;
    bad["activations"][2][key] = std::to_string(shifted + 1.0);
    EXPECT_EQ(run(bad).failed, 1u) << key;
    bad["activations"][2][key] = shifted;  // a number instead of a string, off by 1e-5
    EXPECT_EQ(run(bad).failed, 1u) << key;
  }
}

TEST(GoldenFormats, AChangedInputIsNoticed) {
  Json bad = golden_document();
  bad["blocks"][0]["inputs"].string().replace(0, 8, "7f000000");
  bad["nvfp4"][0]["global_scale"] = "3f800000";
  bad["activations"][0]["gate"] = "40a00000";

  EXPECT_EQ(run(bad).failed, 3u);
}

TEST(GoldenFormats, TheFirstDifferingElementIsNamed) {
  Json bad = golden_document();
  flip_digit(bad["blocks"][0]["codes"], 5);  // byte 2, low nibble: element 4

  const Report report = run(bad);

  ASSERT_EQ(report.failures.size(), 1u);
  const Failure& failure = report.failures.front();
  EXPECT_EQ(failure.case_id, "blocks[0] mxfp4.floor4.rne-0");
  EXPECT_NE(failure.what.find("element 4, bf045a6d"), std::string::npos) << failure.what;
  EXPECT_EQ(failure.expected, "1");
  EXPECT_EQ(failure.found, "14");
}

// Each of these is unreadable; it must be said so, and nothing may crash.
struct FormatDamage {
  const char* name;
  void (*apply)(Json& document);
};

const FormatDamage kFormatDamages[] = {
    {"missing codes", [](Json& d) { d["blocks"][0].erase("codes"); }},
    {"missing id", [](Json& d) { d["blocks"][0].erase("id"); }},
    {"missing scale", [](Json& d) { d["nvfp4"][0].erase("scale_e4m3"); }},
    {"missing rule", [](Json& d) { d["encode"][0].erase("rule"); }},
    {"missing format", [](Json& d) { d["encode"][0].erase("format"); }},
    {"missing n", [](Json& d) { d["encode"][0].erase("n"); }},
    {"wrong n", [](Json& d) { d["encode"][0]["n"] = 3; }},
    {"huge n", [](Json& d) { d["encode"][0]["n"] = 18446744073709551615u; }},
    {"negative n", [](Json& d) { d["encode"][0]["n"] = -1; }},
    {"odd hex", [](Json& d) { d["encode"][0]["codes"] = "000"; }},
    {"not hex", [](Json& d) { d["encode"][0]["codes"] = "zz"; }},
    {"half a float", [](Json& d) { d["blocks"][0]["inputs"] = "3f80"; }},
    {"no inputs", [](Json& d) { d["blocks"][0]["inputs"] = ""; }},
    {"too many inputs",
     [](Json& d) { d["blocks"][0]["inputs"] = std::string(std::size_t{33} * 8, '0'); }},
    {"too many nvfp4 inputs",
     [](Json& d) { d["nvfp4"][0]["inputs"] = std::string(std::size_t{17} * 8, '0'); }},
    {"too few codes", [](Json& d) { d["blocks"][0]["codes"] = "00"; }},
    {"scale of 256", [](Json& d) { d["blocks"][0]["scale"] = 256; }},
    {"scale as text", [](Json& d) { d["blocks"][0]["scale"] = "124"; }},
    {"scale of 1.5", [](Json& d) { d["blocks"][0]["scale"] = 1.5; }},
    {"unknown block rule", [](Json& d) { d["blocks"][0]["rule"] = "mxfp4.floor5.rne"; }},
    {"unknown scale rule", [](Json& d) { d["block_scales"][0]["rule"] = "floor5"; }},
    {"unknown encoding", [](Json& d) { d["encode"][0]["rule"] = "torch_cast"; }},
    {"unknown format", [](Json& d) { d["tables"]["e3m0"] = Json::array(); }},
    {"unknown activation", [](Json& d) { d["activations"][0]["swish"] = "1"; }},
    {"limit of zero", [](Json& d) { d["activations"][0]["swiglustep0"] = "1"; }},
    {"not a decimal", [](Json& d) { d["activations"][0]["swigluoai"] = "1.5x"; }},
    {"no columns",
     [](Json& d) {
       d["activations"][0] = {{"gate", "00000000"}, {"up", "00000000"}};
     }},
    {"short gate", [](Json& d) { d["activations"][0]["gate"] = "0000"; }},
    {"two gates", [](Json& d) { d["activations"][0]["gate"] = "0000000000000000"; }},
    {"short table", [](Json& d) { d["tables"]["e2m1"].erase(0); }},
    {"table of numbers", [](Json& d) { d["tables"]["e2m1"][0] = 0; }},
    {"table of short patterns", [](Json& d) { d["tables"]["e2m1"][0] = "00"; }},
    {"table that is text", [](Json& d) { d["tables"]["e2m1"] = "00"; }},
    {"fewer scales", [](Json& d) { d["block_scales"][0]["scale"] = "00"; }},
    {"unspecified out of range",
     [](Json& d) { d["blocks"][0]["unspecified"] = Json::array({32}); }},
    {"unspecified negative", [](Json& d) { d["blocks"][0]["unspecified"] = Json::array({-1}); }},
    {"unspecified not a list", [](Json& d) { d["blocks"][0]["unspecified"] = 3; }},
    {"unknown dtype", [](Json& d) { d["blocks"][0]["in_dtype"] = "f64"; }},
    {"input beyond its dtype", [](Json& d) { d["blocks"][0]["in_dtype"] = "bf16"; }},
    {"input beyond f16", [](Json& d) { d["blocks"][0]["in_dtype"] = "f16"; }},
    {"case is a number", [](Json& d) { d["nvfp4"][0] = 5; }},
    {"case is null", [](Json& d) { d["encode"][0] = nullptr; }},
    {"activation is a list", [](Json& d) { d["activations"][0] = Json::array(); }},
    {"section is an object", [](Json& d) { d["blocks"] = Json::object(); }},
    {"tables are a list", [](Json& d) { d["tables"] = 3; }},
    {"misspelled section", [](Json& d) { d["blokcs"] = d["blocks"]; }},
    {"bad reciprocal", [](Json& d) { d["rcp_approx_ftz"]["six"] = "3e"; }},
    {"no cases",
     [](Json& d) {
       d = {{"schema", d["schema"]}};
     }},
    {"no schema", [](Json& d) { d.erase("schema"); }},
    {"schema is a number", [](Json& d) { d["schema"] = 1; }},
    {"a list", [](Json& d) { d = Json::array(); }},
    {"null", [](Json& d) { d = nullptr; }},
};

TEST(GoldenFormats, DamagedFilesAreReportedAsMalformed) {
  const Json good = golden_document();
  for (const FormatDamage& damage : kFormatDamages) {
    Json bad = good;
    damage.apply(bad);

    const Report report = run(bad);

    EXPECT_TRUE(report.has_malformed()) << damage.name;
    EXPECT_EQ(report.failed, 1u) << damage.name;
    EXPECT_FALSE(first_failure(report).empty()) << damage.name;
  }
}

TEST(GoldenFormats, TakesFilesWithOtherSectionsOrdersAndSizes) {
  const Result<Json> small = parse_json(R"({
    "activations": [{"gate": "41200000", "up": "41200000",
                     "silu_and_mul_clamp1.5": "1.839542571435698", "swiglustep": 49.0}],
    "block_scales": [{"rule": "even", "amax": "40e00000", "scale": "80"},
                     {"rule": "mxfp4.flashinfer.rne", "amax": "40c00000", "scale": "7F"},
                     {"rule": "mxfp8_e4m3.ceil448", "amax": "43e00000", "scale": "7f"}],
    "blocks": [{"id": "short", "rule": "mxfp8_e4m3.log2", "inputs": "43e00000",
                "scale": 127, "codes": "7e"},
               {"id": "half", "rule": "mxfp4.llama_cpp", "in_dtype": "f16",
                "inputs": "40c00000bf000000", "scale": 127, "codes": "97"}],
    "encode": [{"format": "e2m1", "rule": "rne_satfinite", "n": 3,
                "inputs": "3f80000040400000c0c00000", "codes": "520f"},
               {"format": "e5m2", "rule": "rne_overflow_to_inf", "n": 1,
                "inputs": "7f000000", "codes": "7c"}],
    "prng": {"name": "splitmix64"}, "seed": 7,
    "schema": "fp4moe-golden-formats/1"})");
  ASSERT_TRUE(small);

  const Report report = run(*small);

  EXPECT_EQ(report.failed, 0u) << first_failure(report);
  EXPECT_EQ(report.passed, 8u);
}

// Every value of a small document, one after another, replaced by every odd value: each answer is a
// report or an error, never a crash (the sanitizers watch).
void replace_each(Json& node, Json& document, std::size_t& runs) {
  static const Json kOdd = Json::array(
      {nullptr, true, -1, 1e308, 18446744073709551615u, "", "0", "zz", "nan", "7fc00000",
       std::string(4096, 'f'), Json::array(), Json::array({Json::array()}), Json::object()});
  for (const Json& odd : kOdd) {
    const Json original = node;
    node = odd;
    (void)run(document);
    node = original;
    ++runs;
  }
  if (!node.is_structured()) return;
  for (std::size_t i = 0; i < node.size(); ++i) {
    auto child = node.begin();
    std::advance(child, i);
    replace_each(*child, document, runs);
  }
}

TEST(GoldenFormats, NoValueCanCrashIt) {
  Json document = golden_document();
  for (const char* section : {"encode", "blocks", "block_scales", "nvfp4", "activations"})
    document[section] = Json::array({Json(document[section].front())});
  for (const char* table : {"e8m0", "e4m3fn", "e5m2", "e4m3fnuz"}) document["tables"].erase(table);
  document["blocks"][0]["unspecified"] = Json::array({3});
  std::size_t runs = 0;

  replace_each(document, document, runs);

  EXPECT_GT(runs, 700u);
  EXPECT_EQ(first_failure(run(document)), "") << "the document is whole again";
}

TEST(GoldenSchemas, AnUnknownSchemaListsTheKnownOnes) {
  const Result<Report> report = run_golden({{"schema", "fp4moe-golden-formats/9"}});

  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().id, "golden.unknown_schema");
  EXPECT_EQ(report.why().code, ErrorCode::invalid_input);
  for (const Schema& schema : schemas())
    EXPECT_NE(report.why().expected.find(schema.name), std::string::npos);
}

TEST(GoldenSchemas, FilesThatSayFormatInsteadOfSchemaAreRecognized) {
  const Result<Report> report = run_golden({{"format", "fp4moe-golden-formats/1"}});

  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().id, "golden.empty");
}

TEST(GoldenSchemas, AMissingFileIsAnErrorThatNamesIt) {
  const Result<Report> report = run_golden_file("/nonexistent/golden.json");

  ASSERT_FALSE(report);
  EXPECT_EQ(report.why().path, "/nonexistent/golden.json");
}

}  // namespace
}  // namespace fp4moe::golden
