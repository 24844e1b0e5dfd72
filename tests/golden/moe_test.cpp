#include "golden/moe.hpp"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/moe/reference/engine.hpp"
#include "golden/moe_data.hpp"
#include "golden/schemas.hpp"
#include "golden/test_support.hpp"

namespace fp4moe::golden {
namespace {

using testing::what;

const Json& document() {
  static const Json kDocument = [] {
    const Result<Json> read = read_json_file(std::string(FP4MOE_TESTDATA) + "/moe.json");
    return read ? *read : Json();
  }();
  return kDocument;
}

Json case_of(const char* section, const std::string& name) {
  for (const Json& item : document()[section])
    if (item["name"] == name) return item;
  ADD_FAILURE() << name;
  return {};
}

bool agrees(const Outcome& outcome) { return outcome && !outcome->has_value(); }

TEST(GoldenMoe, EveryRoutingCaseAgrees) {
  ASSERT_EQ(document()["routing"].size(), 26u);
  for (const Json& item : document()["routing"])
    EXPECT_EQ(what(check_moe_routing(item)), "") << item["name"];
}

TEST(GoldenMoe, EveryAuxiliaryCaseAgrees) {
  ASSERT_EQ(document()["auxiliary"].size(), 21u);
  for (const Json& item : document()["auxiliary"])
    EXPECT_EQ(what(check_moe_auxiliary(item)), "") << item["name"];
}

TEST(GoldenMoe, AnotherIdIsFoundWithItsTokenAndAssignment) {
  Json item = case_of("routing", "renormalize_naive");
  item["topk_ids"][3][5] = 21;
  const Outcome outcome = check_moe_routing(item);
  ASSERT_TRUE(outcome && outcome->has_value());
  EXPECT_EQ((*outcome)->what, "token 3, assignment 5, fast path: id");
  EXPECT_EQ((*outcome)->expected, "21");
  EXPECT_EQ((*outcome)->found, "20");
}

// Replaces one double of encoded values, and what is told of them besides.
void alter_value(Json& item, std::string_view name) {
  Json& told = item[std::string(name)];
  told.erase("head");
  told.erase("sum");
  told.erase("absmax");
  auto& text = told["f64_le_base64"].string();
  text[9] = 'P';  // the first value becomes negative and huge
}

TEST(GoldenMoe, AnotherWeightIsFoundInEveryMethod) {
  for (Json item : document()["routing"]) {
    if (item["num_tokens"] == 0) continue;
    alter_value(item, "topk_weights");
    EXPECT_FALSE(agrees(check_moe_routing(item))) << item["name"];
  }
}

TEST(GoldenMoe, QuickLooksMustHold) {
  for (const char* key : {"head", "sum", "absmax"}) {
    Json item = case_of("routing", "topk_raw");
    Json& told = item["topk_weights"][key];
    (told.is_array() ? told[0] : told) = 0.125;
    EXPECT_NE(what(check_moe_routing(item)).find(key), std::string::npos) << key;
  }
}

TEST(GoldenMoe, EveryFieldOfARoutingCaseCounts) {
  const auto altered = [](const std::string& name, auto change) {
    Json item = case_of("routing", name);
    change(item);
    const Outcome outcome = check_moe_routing(item);
    return agrees(outcome) ? std::string("agrees") : what(outcome);
  };
  const std::string grouped = "deepseek_v3_grouped";
  EXPECT_EQ(altered(grouped, [](Json&) {}), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c["params"]["scale"] = 2.0; }), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c["params"]["topk_group"] = 1; }), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c["params"]["n_group"] = 2; }), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c.erase("bias"); }), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c["method"] = "Sigmoid"; }), "agrees");
  EXPECT_NE(altered(grouped, [](Json& c) { c["top_k"] = 5; }), "agrees");
  EXPECT_NE(altered("deepseek_v4_hash", [](Json& c) { c["params"]["input_ids"][0] = 4; }),
            "agrees");
  EXPECT_NE(
      altered("deepseek_v2_grouped_softmax_nobias", [](Json& c) { c["params"]["renorm"] = false; }),
      "agrees");
  // The hash finds another seed, kind, exponent or encoding before anything is compared.
  EXPECT_NE(altered(grouped, [](Json& c) { c["logits"]["seed"] = "0x1"; }).find("golden.input"),
            std::string::npos);
  EXPECT_NE(altered(grouped, [](Json& c) { c["logits"]["exp"] = -12; }).find("golden.input"),
            std::string::npos);
  EXPECT_NE(altered(grouped, [](Json& c) { c["logits"]["kind"] = "grid8"; }).find("golden.input"),
            std::string::npos);
}

TEST(GoldenMoe, MalformedCasesSayWhatIsWrong) {
  const auto said = [](const std::string& name, auto change) {
    Json item = case_of("routing", name);
    change(item);
    const Outcome outcome = check_moe_routing(item);
    return outcome ? std::string("no error") : outcome.why().tensor;
  };
  const std::string plain = "default_softmax_topk", table = "deepseek_v4_hash";
  for (const char* key : {"method", "num_tokens", "num_experts", "top_k", "logits", "params",
                          "topk_ids", "topk_weights"})
    EXPECT_EQ(said(plain, [&](Json& c) { c.erase(key); }), key);
  EXPECT_EQ(said(plain, [](Json& c) { c["method"] = "Astrology"; }), "method");
  EXPECT_EQ(said(plain, [](Json& c) { c["params"]["mood"] = 1; }), "mood");
  EXPECT_EQ(said(plain, [](Json& c) { c["params"]["scale"] = "x"; }), "scale");
  EXPECT_EQ(said(plain, [](Json& c) { c["params"]["renorm"] = 1; }), "renorm");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"]["kind"] = "gridlock"; }), "logits.kind");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"]["encoding"] = "f8"; }), "logits.encoding");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"]["shape"] = {5, 17}; }), "logits");
  EXPECT_EQ(said(plain,
                 [](Json& c) {
                   c["logits"]["shape"] = {1ull << 40, 1ull << 40};
                 }),
            "logits.shape");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"]["seed"] = "0xg"; }), "logits.seed");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"]["exp"] = 4000; }), "logits.exp");
  EXPECT_EQ(said(plain, [](Json& c) { c["logits"].erase("fnv1a64"); }), "logits.fnv1a64");
  EXPECT_EQ(said(plain, [](Json& c) { c["topk_ids"][0] = 1; }), "topk_ids");
  EXPECT_EQ(said(plain, [](Json& c) { c["topk_ids"][0][0] = 0.5; }), "topk_ids");
  EXPECT_EQ(said(plain, [](Json& c) { c["topk_ids"].erase(0); }), "topk_ids");
  EXPECT_EQ(said(plain, [](Json& c) { c["topk_weights"]["f64_le_base64"] = "A*=="; }),
            "topk_weights.f64_le_base64");
  EXPECT_EQ(said(plain, [](Json& c) { c["topk_weights"]["shape"] = {20}; }), "topk_weights.shape");
  EXPECT_EQ(said(table, [](Json& c) { c["params"].erase("tid2eid"); }), "tid2eid");
  EXPECT_EQ(said(table, [](Json& c) { c["params"]["tid2eid"][0].erase(0); }), "tid2eid");
  EXPECT_EQ(said("deepseek_v3_negative_bias", [](Json& c) { c["bias"]["span"] = 0; }), "bias.span");
  EXPECT_EQ(said("all_equal_logits", [](Json& c) { c["logits"]["values"][0][0] = "much"; }),
            "logits.values");
  EXPECT_EQ(said("all_equal_logits", [](Json& c) { c["logits"]["values"].erase(0); }),
            "logits.values");
}

TEST(GoldenMoe, EveryToldFactOfAnAuxiliaryCaseCounts) {
  for (const Json& given : document()["auxiliary"]) {
    for (const auto& [key, value] : given.items()) {
      if (key == "name" || key == "note") continue;
      Json missing = given;
      missing.erase(key);
      if (key != "expert_map") {  // none: all experts are here
        EXPECT_FALSE(agrees(check_moe_auxiliary(missing))) << given["name"] << key;
      }
      Json other = given;
      Json& fact = other[key];
      if (value.is_string() && (key.ends_with("_hex"))) {
        auto& digits = fact.string();
        digits[3] = digits[3] == '0' ? '1' : '0';
      } else if (key == "topk_ids" || key == "physical_ids") {
        fact[0].back() = fact[0].back().get<int>() + 1;
      } else if (key == "sorted_token_ids" || key == "expert_ids" || key == "load") {
        fact[0] = fact[0].get<int>() + 1;
      } else if (key == "num_tokens_post_padded" || key == "num_physical" || key == "block_size") {
        fact = fact.get<int>() * 2 + 1;
      } else if (key.starts_with("dequant")) {
        alter_value(other, key);
      } else if (key == "ranks") {
        fact[0]["expert_map"][0] = 5;
      } else {
        continue;
      }
      EXPECT_FALSE(agrees(check_moe_auxiliary(other))) << given["name"] << key;
    }
  }
  EXPECT_EQ(check_moe_auxiliary({{"kind", "tea leaves"}}).why().tensor, "kind");
}

TEST(GoldenMoe, TheReportNamesSectionsAndCases) {
  Json small = {{"routing", Json::array({case_of("routing", "topk_raw"), Json(7), Json::object()})},
                {"auxiliary", Json::array({case_of("auxiliary", "eplb_map")})}};
  small["routing"][0]["topk_ids"][0][0] = 3;
  Report report;
  ASSERT_TRUE(run_moe(small, report));
  EXPECT_EQ(report.passed, 1u);
  ASSERT_EQ(report.failures.size(), 3u);
  EXPECT_EQ(report.failures[0].case_id, "routing/topk_raw");
  EXPECT_EQ(report.failures[1].case_id, "routing[1]");
  EXPECT_EQ(report.failures[2].case_id, "routing[2]");
  EXPECT_EQ(run_moe({{"routing", 1}}, report).why().tensor, "routing");
}

// Computes as the reference does, but for one element that is a little larger.
class WrongExperts : public moe::Experts {
 public:
  WrongExperts(std::unique_ptr<moe::Experts> right, double factor)
      : right_(std::move(right)), factor_(factor) {}
  const moe::ExpertsProblem& problem() const override { return right_->problem(); }
  std::string_view engine() const override { return "wrong"; }
  std::string kernel() const override { return "wrong/wrong"; }
  Result<Done> compute(const moe::ExpertsCall& call, moe::OutputForm form,
                       const moe::MutableRows& out) override {
    const Result<Done> done = right_->compute(call, form, out);
    if (!done || out.rows == 0) return done;
    std::vector<double> row(out.columns);
    moe::read_row(moe::ConstRows(out), 0, std::span(row));
    for (double& value : row) value *= factor_;
    moe::write_row(std::span<const double>(row), out, 0);
    return done;
  }

 private:
  std::unique_ptr<moe::Experts> right_;
  double factor_;
};

class WrongEngine : public moe::Engine {
 public:
  explicit WrongEngine(double factor) : factor_(factor) {}
  std::string_view name() const override { return "wrong"; }
  Result<std::unique_ptr<moe::Experts>> make(const moe::ExpertsProblem& problem,
                                             const moe::ExpertSource& source) const override {
    auto right = engine_.make(problem, source);
    if (!right) return right.why();
    return std::unique_ptr<moe::Experts>(new WrongExperts(std::move(*right), factor_));
  }

 private:
  moe::reference::ReferenceEngine engine_{std::make_shared<ThreadPool>(1)};
  double factor_;
};

TEST(GoldenMoe, EnginesAreAllowedLastBitsAndNothingMore) {
  const Json layers{{"format", "fp4moe-golden-moe/1"},
                    {"layers", Json::array({case_of("layers", "mxfp4_swigluoai_bias"),
                                            case_of("layers", "mxfp4_ep2_linear_and_rr"),
                                            case_of("layers", "nvfp4_tp4_nongated")})}};
  const auto failures = [&](double factor) {
    const WrongEngine engine(factor);
    const Result<Report> report = run_golden(layers, &engine);
    EXPECT_TRUE(report) << text(report.why());
    return report->failures;
  };
  EXPECT_EQ(failures(1.0).size(), 0u);
  EXPECT_EQ(failures(1.0 + 5e-5).size(), 0u);
  const std::vector<Failure> exact = failures(1.001);
  EXPECT_GE(exact.size(), 5u);  // the exact outputs, and partial ones
  for (const Failure& failure : exact) {
    EXPECT_EQ(failure.case_id.find("staged"), std::string::npos) << failure.case_id;
    EXPECT_FALSE(failure.malformed);
  }
  EXPECT_GT(failures(1.2).size(), exact.size() + 5);
}

TEST(GoldenMoe, TheReferenceAgreesWithEveryLayer) {
  const Result<Report> report =
      run_golden({{"format", "fp4moe-golden-moe/1"}, {"layers", document()["layers"]}});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->failed, 0u);
  EXPECT_GT(report->passed, 100u);
}

TEST(GoldenMoe, EnginesAreForLayersOnly) {
  const WrongEngine engine(1);
  EXPECT_EQ(run_golden({{"schema", "fp4moe-golden-formats/1"}}, &engine).why().id, "golden.engine");
}

}  // namespace
}  // namespace fp4moe::golden
