#include "golden/layouts.hpp"

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "golden/schemas.hpp"
#include "golden/test_support.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::golden {
namespace {

using testing::flip_digit;
using testing::what;

const std::string kNvidia = std::string(FP4MOE_TESTDATA) + "/layouts-nvidia.json";
const std::string kTritonAmd = std::string(FP4MOE_TESTDATA) + "/layouts-triton-amd.json";

const Json& document(const std::string& path) {
  static const std::map<std::string, Json> kRead = [] {
    std::map<std::string, Json> read;
    for (const std::string& one : {kNvidia, kTritonAmd}) {
      const Result<Json> found = read_json_file(one);
      read[one] = found ? *found : Json();
    }
    return read;
  }();
  return kRead.at(path);
}

std::uint64_t size_of(const Json& item) {
  std::uint64_t bytes = 0;
  for (const Json& output : item["outputs"]) bytes += output["nbytes"].get<std::uint64_t>();
  return bytes;
}

// The smallest case of each layout name, refusals apart.
const std::map<std::string, Json>& smallest_cases() {
  static const std::map<std::string, Json> kCases = [] {
    std::map<std::string, Json> cases;
    for (const std::string& path : {kNvidia, kTritonAmd})
      for (const Json& item : document(path)["cases"]) {
        if (item.contains("expect")) continue;
        Json& known = cases[item["layout"].string()];
        if (known.is_null() || size_of(item) < size_of(known)) known = item;
      }
    return cases;
  }();
  return kCases;
}

const Json& small(const std::string& layout) { return smallest_cases().at(layout); }

const Json& case_of(const std::string& path, const std::string& id) {
  static const Json kNone;
  for (const Json& item : document(path)["cases"])
    if (item["id"] == id) return item;
  return kNone;
}

bool differs(const Outcome& outcome) { return outcome && outcome->has_value(); }

TEST(GoldenLayouts, EveryCaseOfTheCheckedInFilesAgrees) {
  if (is_sanitized())
    GTEST_SKIP() << "one case of each layout: see OneChangedFactIsAFailureForEveryLayout";
  for (const auto& [path, count] : {std::pair{kNvidia, 123u}, std::pair{kTritonAmd, 378u}}) {
    const Result<Report> report = run_golden_file(path);
    ASSERT_TRUE(report) << text(report.why());
    EXPECT_EQ(report->schema, "fp4moe-golden-layouts/1");
    EXPECT_EQ(report->failed, 0u) << text(report->failures.front());
    EXPECT_EQ(report->passed, count);
  }
}

TEST(GoldenLayouts, TheFilesNameEveryKindOfLayout) { EXPECT_EQ(smallest_cases().size(), 45u); }

// --- Each told fact is compared.

struct Change {
  const char* name;
  const char* field;  // the change applies where the output has it
  void (*apply)(Json& output);
};

const Change kChanges[] = {
    {"the digest's first digit", "sha256", [](Json& o) { flip_digit(o["sha256"], 0); }},
    {"the digest's last digit", "sha256", [](Json& o) { flip_digit(o["sha256"], 63); }},
    {"the first byte", "head_hex", [](Json& o) { flip_digit(o["head_hex"], 0); }},
    {"the first byte", "first64", [](Json& o) { flip_digit(o["first64"], 1); }},
    {"the last byte of the head", "head_hex",
     [](Json& o) { flip_digit(o["head_hex"], o["head_hex"].string().size() - 1); }},
    {"the last byte of the head", "first64",
     [](Json& o) { flip_digit(o["first64"], o["first64"].string().size() - 2); }},
    {"the shape", "shape", [](Json& o) { o["shape"].back() = o["shape"].back().get<int>() + 1; }},
    {"the rank", "shape", [](Json& o) { o["shape"].push_back(1); }},
    {"a stride", "strides",
     [](Json& o) {
       for (std::size_t i = 0; i < o["shape"].size(); ++i)
         if (o["shape"][i] != 1) {
           o["strides"][i] = o["strides"][i].get<int>() + 1;
           return;
         }
     }},
    {"the size", "nbytes",
     [](Json& o) {
       o["nbytes"] = o["nbytes"].get<int>() + 1;
       auto& head = o[o.contains("head_hex") ? "head_hex" : "first64"].string();
       if (head.size() < 128) head += "00";
     }},
    {"the type", "dtype", [](Json& o) { o["dtype"] = o["dtype"] == "f16" ? "f32" : "f16"; }},
    {"the logical shape", "logical_shape",
     [](Json& o) { o["logical_shape"][1] = o["logical_shape"][1].get<int>() + 1; }},
    {"the layout's name", "layout", [](Json& o) { o["layout"] = "SomeOtherLayout"; }},
};

TEST(GoldenLayouts, OneChangedFactIsAFailureForEveryLayout) {
  for (const auto& [layout, good] : smallest_cases()) {
    ASSERT_EQ(what(check_layout(good)), "") << layout;
    const std::size_t last = good["outputs"].size() - 1;
    for (const std::size_t output : {std::size_t{0}, last})
      for (const Change& change : kChanges) {
        if (!good["outputs"][output].contains(change.field)) continue;
        Json bad = good;
        change.apply(bad["outputs"][output]);
        const Outcome outcome = check_layout(bad);
        EXPECT_TRUE(differs(outcome)) << layout << ", " << good["outputs"][output]["name"] << ": "
                                      << change.name << ": " << what(outcome);
      }
  }
}

struct ParamChange {
  const char* layout;
  void (*apply)(Json& params);
};

const ParamChange kParamChanges[] = {
    {"marlin_nvfp4", [](Json& p) { p["scale_factor_log2"]["w2"] = 9; }},
    {"marlin_nvfp4", [](Json& p) { p["params_dtype"] = "f16"; }},
    {"marlin_mxfp4", [](Json& p) { p["I_pad"] = 256; }},
    {"trtllm_mxfp4", [](Json& p) { p["w13_rows"] = "w1w3_halves"; }},
    {"op_sm90_interleave_weights", [](Json& p) { p["generation"] = "g3"; }},
    {"op_sm90_interleave_scales", [](Json& p) { p["generation"] = "g3"; }},
    {"op_marlin_permute_scales",
     [](Json& p) {
       p["is_a_8bit"] = !p["is_a_8bit"].get<bool>();
       p.erase("perm");
       p["group_size"] = 32;
     }},
    {"triton.hopper_value", [](Json& p) { p["mma_version"] = p["mma_version"] == 2 ? 3 : 2; }},
    {"triton.hopper_value", [](Json& p) { p["align_n"] = 512; }},
    {"triton.hopper_value", [](Json& p) { p["mx_axis"] = -1; }},
    {"triton.hopper_scale", [](Json& p) { p["num_warps"] = p["num_warps"] == 8 ? 4 : 8; }},
    {"triton.blackwell_value_shuffled", [](Json& p) { p["block_n"] = 64; }},
    {"aiter.shuffle_scale_a16w4", [](Json& p) { p["gate_up"] = !p["gate_up"].get<bool>(); }},
    {"vllm.swizzle_mxfp4", [](Json& p) { p["opt_flags"]["split_k"] = 7; }},
    {"vllm.swizzle_mxfp4", [](Json& p) { p["arch"] = "sm100"; }},
    {"vllm.convert_gpt_oss", [](Json& p) { p["backend"] = "AITER"; }},
};

TEST(GoldenLayouts, AChangedParameterIsNoticed) {
  for (const ParamChange& change : kParamChanges) {
    Json bad = small(change.layout);
    change.apply(bad["params"]);
    const Outcome outcome = check_layout(bad);
    // A single group of scales is permuted in one way only.
    if (bad["params"].contains("size_k") && bad["params"]["size_k"] == 32) continue;
    EXPECT_TRUE(differs(outcome)) << change.layout << " " << bad["params"] << ": " << what(outcome);
  }
}

TEST(GoldenLayouts, GateAndUpAreInterleavedOnlyWhereTheCaseSaysSo) {
  Json bad = case_of(kTritonAmd, "amd-007");
  ASSERT_EQ(bad["params"]["gate_up"], true);
  bad["params"]["gate_up"] = false;
  EXPECT_TRUE(differs(check_layout(bad)));
}

TEST(GoldenLayouts, PaddingAtTheEndOfBothHalvesIsItsOwnGeneration) {
  const Json& at_end = case_of(kNvidia, "trtllm_nvfp4/gated_E3_H384_I80_s2208_refpad");
  Json per_half = case_of(kNvidia, "trtllm_nvfp4/gated_E3_H384_I80_s2208_halfpad");
  ASSERT_FALSE(at_end.is_null() || per_half.is_null());
  ASSERT_EQ(at_end["params"]["pad_mode"], "reference");
  EXPECT_EQ(what(check_layout(at_end)), "");
  per_half["params"]["pad_mode"] = "reference";
  EXPECT_TRUE(differs(check_layout(per_half)));
}

TEST(GoldenLayouts, RefusalsAreExpectedOrNot) {
  for (const auto& [layout, good] : smallest_cases()) {
    Json bad = good;
    bad["expect"] = "error";
    bad["outputs"] = Json::array();
    const Outcome outcome = check_layout(bad);
    ASSERT_TRUE(differs(outcome)) << layout << ": " << what(outcome);
    EXPECT_EQ((*outcome)->what, "the sizes should be refused");
  }
  Json refused = case_of(kTritonAmd, "tk360-078");
  ASSERT_EQ(refused["expect"], "error");
  EXPECT_EQ(what(check_layout(refused)), "");
  Json scale = small("triton.cdna4_scale");
  scale["inputs"][0]["shape"] = Json::array({1, 64, 10});
  scale["inputs"][0].erase("sha256");
  scale["params"]["padded"] = false;
  const Outcome outcome = check_layout(scale);
  ASSERT_TRUE(differs(outcome)) << what(outcome);
  EXPECT_NE((*outcome)->found.find("pad to 16"), std::string::npos) << (*outcome)->found;
}

// --- A failure says where.

TEST(GoldenLayouts, ADifferentByteIsTracedToItsRowAndColumn) {
  Json bad = case_of(kNvidia, "op_block_scale_interleave_128x4/128x4_s121");
  ASSERT_FALSE(bad.is_null());
  bad["outputs"][0]["head_hex"].string().replace(2 * 22, 2, "zz");
  EXPECT_FALSE(check_layout(bad)) << "not hexadecimal";
  // Byte 22 = row 1 * 16 + group 1 * 4 + column 2: row 33.
  bad["outputs"][0]["head_hex"].string().replace(2 * 22, 2, "00");
  const Outcome outcome = check_layout(bad);
  ASSERT_TRUE(differs(outcome)) << what(outcome);
  EXPECT_EQ((*outcome)->what, "tensor s, expert 0, row 33, column 2, offset 22");
  EXPECT_EQ((*outcome)->expected, "0x00");
}

TEST(GoldenLayouts, ADifferentCodeIsTracedThroughTheShuffleToItsProjection) {
  Json bad = small("trtllm_mxfp4");
  // Byte 1 of output row 0, which comes from up row 0.
  bad["outputs"][0]["head_hex"].string().replace(2, 2, "00");
  const Outcome outcome = check_layout(bad);
  ASSERT_TRUE(differs(outcome));
  EXPECT_EQ((*outcome)->what, "tensor w13, expert 0, row 0 (up row 0), column 1, offset 1");

  Json marlin = small("marlin_mxfp4");
  auto& head = marlin["outputs"][0]["head_hex"].string();
  head[4] = head[4] == '0' ? '1' : '0';  // the high nibble of byte 2: offset 5 = (n 0, k 9)
  const Outcome nibble = check_layout(marlin);
  ASSERT_TRUE(differs(nibble));
  EXPECT_EQ((*nibble)->what, "tensor w13, expert 0, row 0 (gate row 0), column 9, offset 5");
  EXPECT_TRUE((*nibble)->expected.starts_with("code ")) << (*nibble)->expected;
}

TEST(GoldenLayouts, ADifferentScatteredBitIsTracedToItsCode) {
  Json bad = small("triton.hopper_value");
  flip_digit(bad["outputs"][0]["first64"], 0);
  const Outcome outcome = check_layout(bad);
  ASSERT_TRUE(differs(outcome));
  EXPECT_TRUE((*outcome)->what.starts_with("tensor value, expert 0, row ")) << (*outcome)->what;
  EXPECT_TRUE((*outcome)->found.starts_with("code ")) << (*outcome)->found;
  EXPECT_NE((*outcome)->found, (*outcome)->expected);
}

TEST(GoldenLayouts, ADifferentScalarIsTracedToItsElement) {
  Json bad = small("trtllm_nvfp4");
  Json& output = bad["outputs"].back();
  ASSERT_EQ(output["name"], "g1_scale_c");
  flip_digit(output["head_hex"], output["head_hex"].string().size() - 1);
  const Outcome outcome = check_layout(bad);
  ASSERT_TRUE(differs(outcome));
  const std::uint64_t last = output["shape"][0].get<std::uint64_t>() - 1;
  EXPECT_EQ((*outcome)->what, "tensor g1_scale_c, element " + std::to_string(last));
}

TEST(GoldenLayouts, ADifferenceBeyondTheHeadGivesBothDigests) {
  Json bad = small("triton.strided");
  flip_digit(bad["outputs"][0]["sha256"], 5);
  const Outcome outcome = check_layout(bad);
  ASSERT_TRUE(differs(outcome));
  EXPECT_NE((*outcome)->what.find("differs beyond its first 64 bytes"), std::string::npos);
  EXPECT_EQ((*outcome)->expected, "SHA-256 " + bad["outputs"][0]["sha256"].string());
  EXPECT_EQ((*outcome)->found, small("triton.strided")["outputs"][0]["sha256"].string());
}

// --- Untrusted files.

struct LayoutDamage {
  const char* name;
  const char* layout;
  void (*apply)(Json& item);
};

Json& input(Json& item) { return item["inputs"][0]; }
Json& output(Json& item) { return item["outputs"][0]; }

const LayoutDamage kLayoutDamages[] = {
    {"no layout", "triton.strided", [](Json& c) { c.erase("layout"); }},
    {"unknown layout", "triton.strided", [](Json& c) { c["layout"] = "triton.stridden"; }},
    {"no params", "triton.strided", [](Json& c) { c.erase("params"); }},
    {"params as text", "triton.strided", [](Json& c) { c["params"] = "x"; }},
    {"expects luck", "triton.strided", [](Json& c) { c["expect"] = "luck"; }},
    {"no inputs", "triton.strided", [](Json& c) { c.erase("inputs"); }},
    {"empty inputs", "triton.strided", [](Json& c) { c["inputs"] = Json::array(); }},
    {"two inputs", "triton.strided",
     [](Json& c) {
       c["inputs"].push_back(c["inputs"][0]);
       c["inputs"][1]["name"] = "other";
     }},
    {"an input twice", "marlin_mxfp4", [](Json& c) { c["inputs"].push_back(c["inputs"][0]); }},
    {"an input missing", "marlin_mxfp4", [](Json& c) { c["inputs"].erase(2); }},
    {"an input of another shape", "marlin_mxfp4", [](Json& c) { input(c)["shape"][1] = 128; }},
    {"no outputs", "triton.strided", [](Json& c) { c["outputs"] = Json::array(); }},
    {"two outputs", "triton.strided", [](Json& c) { c["outputs"].push_back(c["outputs"][0]); }},
    {"an output nobody makes", "marlin_mxfp4", [](Json& c) { output(c)["name"] = "w14"; }},
    {"outputs of a refusal", "triton.strided", [](Json& c) { c["expect"] = "error"; }},
    {"a changed seed", "triton.strided", [](Json& c) { input(c)["seed"] = "0x1"; }},
    {"a seed without 0x", "triton.strided", [](Json& c) { input(c)["seed"] = "12"; }},
    {"a long seed", "triton.strided", [](Json& c) { input(c)["seed"] = "0x11111111111111111"; }},
    {"a seed of letters", "triton.strided", [](Json& c) { input(c)["seed"] = "0xgg"; }},
    {"no seed", "triton.strided", [](Json& c) { input(c).erase("seed"); }},
    {"a seed that is a list", "triton.strided", [](Json& c) { input(c)["seed"] = Json::array(); }},
    {"unknown fill", "marlin_mxfp4", [](Json& c) { input(c)["fill"] = "cooked"; }},
    {"unknown generator", "triton.strided", [](Json& c) { input(c)["gen"] = "nibbles"; }},
    {"a fill of another size", "marlin_mxfp4", [](Json& c) { input(c)["fill"] = "bf16"; }},
    {"unknown type", "triton.strided", [](Json& c) { input(c)["dtype"] = "u7"; }},
    {"floats for an operation on bytes", "op_sm90_interleave_weights",
     [](Json& c) {
       input(c)["dtype"] = "f32";
       input(c)["fill"] = "f32";
     }},
    {"an extent of zero", "triton.strided", [](Json& c) { input(c)["shape"][0] = 0; }},
    {"a negative extent", "triton.strided", [](Json& c) { input(c)["shape"][0] = -1; }},
    {"a huge extent", "triton.strided", [](Json& c) { input(c)["shape"][0] = 4000000000u; }},
    {"a product that overflows", "triton.strided",
     [](Json& c) {
       input(c)["shape"] = Json::array({4000000000u, 4000000000u, 4000000000u});
     }},
    {"a result that is too large", "triton.hopper_value",
     [](Json& c) {
       input(c)["shape"] = Json::array({20000, 1, 1});
       input(c).erase("sha256");
       c["params"]["align_n"] = 4096;
       c["params"]["align_k_bytes"] = 4096;
     }},
    {"a rank of nine", "triton.strided",
     [](Json& c) {
       input(c)["shape"] = Json::array({1, 1, 1, 1, 1, 1, 1, 1, 1});
     }},
    {"a rank of one", "triton.strided",
     [](Json& c) {
       input(c)["shape"] = Json::array({64});
       input(c).erase("sha256");
     }},
    {"no digest", "triton.strided", [](Json& c) { output(c).erase("sha256"); }},
    {"a short digest", "triton.strided", [](Json& c) { output(c)["sha256"] = "00"; }},
    {"a short head", "triton.strided", [](Json& c) { output(c)["first64"] = "00"; }},
    {"no head", "triton.strided", [](Json& c) { output(c).erase("first64"); }},
    {"no size", "triton.strided", [](Json& c) { output(c).erase("nbytes"); }},
    {"a size of 2^60", "triton.strided", [](Json& c) { output(c)["nbytes"] = 1ull << 60; }},
    {"no mma version 4", "triton.hopper_value", [](Json& c) { c["params"]["mma_version"] = 4; }},
    {"no mma version 1", "triton.hopper_value", [](Json& c) { c["params"]["mma_version"] = 1; }},
    {"a pad of 24 rows", "triton.hopper_value", [](Json& c) { c["params"]["align_n"] = 24; }},
    {"axis 0", "triton.hopper_value", [](Json& c) { c["params"]["mx_axis"] = 0; }},
    {"three warps", "triton.hopper_scale", [](Json& c) { c["params"]["num_warps"] = 3; }},
    {"no warps", "triton.hopper_scale", [](Json& c) { c["params"]["num_warps"] = 0; }},
    {"another major", "triton.strided", [](Json& c) { c["params"]["major_dim"] = -1; }},
    {"blocks of 3", "triton.blackwell_value_shuffled", [](Json& c) { c["params"]["block_k"] = 3; }},
    {"a flag as text", "triton.cdna4_scale", [](Json& c) { c["params"]["padded"] = "yes"; }},
    {"eight lanes", "aiter.shuffle_weight_a16w4", [](Json& c) { c["params"]["NLane"] = 8; }},
    {"tiles of 8", "aiter.shuffle_weight_16x16",
     [](Json& c) {
       c["params"]["layout"] = Json::array({8, 8});
     }},
    {"blocks of 16", "cpu.mxfp4_scale_blocked", [](Json& c) { c["params"]["block_n"] = 16; }},
    {"generation 4", "op_sm90_interleave_scales",
     [](Json& c) { c["params"]["generation"] = "g4"; }},
    {"another permutation", "op_marlin_permute_scales",
     [](Json& c) { c["params"]["perm"] = "double"; }},
    {"other groups", "op_marlin_permute_scales", [](Json& c) { c["params"]["size_k"] = 7; }},
    {"scales of experts", "op_marlin_permute_scales",
     [](Json& c) {
       Json shape = Json::array({1});
       for (const Json& extent : input(c)["shape"]) shape.push_back(extent);
       input(c)["shape"] = shape;
     }},
    {"no sizes", "marlin_mxfp4", [](Json& c) { c["params"].erase("H"); }},
    {"a size of zero", "marlin_mxfp4", [](Json& c) { c["params"]["I"] = 0; }},
    {"a padded size of 2^40", "marlin_mxfp4", [](Json& c) { c["params"]["H_pad"] = 1ull << 40; }},
    {"a padded size of 2^24", "marlin_mxfp4", [](Json& c) { c["params"]["H_pad"] = 1 << 24; }},
    {"rows in thirds", "marlin_mxfp4", [](Json& c) { c["params"]["w13_rows"] = "thirds"; }},
    {"a gate of 1", "marlin_nvfp4", [](Json& c) { c["params"]["gated"] = 1; }},
    {"parameters in int8", "marlin_nvfp4", [](Json& c) { c["params"]["params_dtype"] = "u8"; }},
    {"exponents as a list", "marlin_nvfp4",
     [](Json& c) { c["params"]["scale_factor_log2"] = Json::array(); }},
    {"fewer input scales", "trtllm_nvfp4",
     [](Json& c) {
       for (Json& one : c["inputs"])
         if (one["name"] == "a13_scale") one["shape"] = Json::array({1, 3});
     }},
    {"another year", "vllm.swizzle_mxfp4", [](Json& c) { c["params"]["vllm"] = "2019-01-01"; }},
    {"no device", "vllm.swizzle_mxfp4", [](Json& c) { c["params"]["arch"] = "z80"; }},
    {"no such gfx", "vllm.swizzle_mxfp4", [](Json& c) { c["params"]["arch"] = "gfx"; }},
    {"five warps", "vllm.swizzle_mxfp4", [](Json& c) { c["params"]["num_warps"] = 5; }},
    {"flags as a list", "vllm.swizzle_mxfp4",
     [](Json& c) { c["params"]["opt_flags"] = Json::array(); }},
    {"no such backend", "vllm.convert_gpt_oss", [](Json& c) { c["params"]["backend"] = "MAGIC"; }},
    {"a number", "triton.strided", [](Json& c) { c = 5; }},
};

TEST(GoldenLayouts, DamagedCasesAreReportedAsMalformed) {
  for (const LayoutDamage& damage : kLayoutDamages) {
    Json bad = small(damage.layout);
    damage.apply(bad);
    const Outcome outcome = check_layout(bad);
    EXPECT_FALSE(outcome) << damage.name << ": " << what(outcome);
  }
}

Json small_document() {
  Json result = document(kNvidia);
  result["cases"] = Json::array({small("op_shuffle_rows_32")});
  return result;
}

TEST(GoldenLayouts, TheFilesOwnSamplesOfTheGeneratorAreChecked) {
  const auto failures = [](const Json& result) {
    const Result<Report> report = run_golden(result);
    return report ? report->failures : std::vector<Failure>{{.what = text(report.why())}};
  };
  EXPECT_TRUE(failures(small_document()).empty());
  const std::vector<void (*)(Json&)> changes{
      [](Json& d) { flip_digit(d["prng"]["checks"][1]["first_32_bytes_hex"], 63); },
      [](Json& d) { d["prng"]["name"] = "mt19937"; },
      [](Json& d) { d["prng"]["checks"] = 3; },
      [](Json& d) { d["prng"]["checks"][0] = 3; },
      [](Json& d) { d["prng"] = Json::array(); },
      [](Json& d) {
        d["prng"]["check"] = {{"seed", "0x1"}, {"first16", "00"}};
      },
      [](Json& d) { flip_digit(d["fill_checks"]["hex_by_fill"]["bf16"], 3); },
      [](Json& d) { flip_digit(d["fill_checks"]["hex_by_fill"]["f32"], 63); },
      [](Json& d) { d["fill_checks"]["hex_by_fill"]["f32"] = "00"; },
      [](Json& d) { d["fill_checks"]["hex_by_fill"]["cooked"] = "00"; },
      [](Json& d) { d["fill_checks"].erase("seed"); },
      [](Json& d) { d["fill_checks"].erase("hex_by_fill"); },
      [](Json& d) { d["fill_checks"] = 1; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Json bad = small_document();
    changes[i](bad);
    const std::vector<Failure> found = failures(bad);
    ASSERT_EQ(found.size(), 1u) << i;
    EXPECT_EQ(found.front().case_id, "generators") << i << ": " << found.front().what;
    EXPECT_TRUE(found.front().malformed);
  }
}

TEST(GoldenLayouts, DocumentsOfAnotherFormAreRefused) {
  for (const auto& change : std::vector<void (*)(Json&)>{
           [](Json& d) { d["byte_order"] = "big"; }, [](Json& d) { d.erase("cases"); },
           [](Json& d) { d["cases"] = Json::object(); },
           [](Json& d) { d["cases"] = Json::array(); }}) {
    Json bad = small_document();
    change(bad);
    EXPECT_FALSE(run_golden(bad));
  }
  Json nameless = small_document();
  nameless["cases"][0].erase("id");
  const Result<Report> report = run_golden(nameless);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->has_malformed());
  EXPECT_EQ(report->failures.front().case_id, "cases[0]");
}

// Every value of small cases, one after another, replaced by odd ones: each answer is an outcome,
// never a crash (the sanitizers watch).
void replace_each(Json& node, const Json& item, std::size_t& runs) {
  static const Json kOdd =
      Json::array({nullptr, true, -1, 1, 1e308, 18446744073709551615u, "", "0x0", "zz",
                   std::string(200, 'f'), Json::array(), Json::array({1}), Json::object()});
  for (const Json& odd : kOdd) {
    Json original = odd;
    std::swap(node, original);
    (void)check_layout(item);
    std::swap(node, original);
    ++runs;
  }
  if (!node.is_structured()) return;
  for (std::size_t i = 0; i < node.size(); ++i) {
    auto child = node.begin();
    std::advance(child, i);
    replace_each(*child, item, runs);
  }
}

TEST(GoldenLayouts, NoValueCanCrashIt) {
  for (const char* layout :
       {"op_marlin_permute_scales", "triton.hopper_value", "aiter.shuffle_scale_a16w4",
        "cutedsl_nvfp4_swigluoai", "vllm.swizzle_mxfp4"}) {
    Json item = small(layout);
    // Of many tensors alike, the first and the last are enough.
    Json& outputs = item["outputs"];
    while (outputs.size() > 2) outputs.erase(1);
    std::size_t runs = 0;
    replace_each(item, item, runs);
    EXPECT_GT(runs, 200u);
    EXPECT_EQ(what(check_layout(item)), "") << "the case is whole again";
  }
}

}  // namespace
}  // namespace fp4moe::golden
