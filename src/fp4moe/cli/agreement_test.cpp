// One truth: explain, plan, matrix, convert and run give one answer, for every device, policy and
// model of the tables.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/plan/plan.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::cli {
namespace agreement_test {

using runtime::Answer;
using runtime::SelectionOptions;

// Splits of every kind: that are, that cannot be cut, that hold no expert.
constexpr plan::Ranks kRanks[] = {{},
                                  {.tp = 7},
                                  {.tp = 8},
                                  {.tp = 7, .dp = 2},
                                  {.ep = 8},
                                  {.ep = 200},
                                  {.tp = 4, .dp = 2, .ep = 8}};

SelectionOptions words(std::string_view device, const oracle::Policy& policy,
                       const checkpoint::ModelRow& row, const plan::Ranks& ranks) {
  SelectionOptions options;
  options.device = device;
  options.policy = policy.name;
  options.format = formats::name(policy.format);
  options.model = row.name;
  options.tp = ranks.tp;
  options.dp = ranks.dp;
  if (ranks.ep > 1) options.ep = ranks.ep;
  return options;
}

std::string chosen(const Answer& answer) {
  return answer.record.selection.backend == nullptr
             ? "-"
             : std::string(answer.record.selection.backend->name);
}

// One rule says which splits are offered instead. Where the policy serves none at all, plan, which
// needs no choice, still names those that sizes allow.
void expect_same_offers(const Answer& answer, const Error& planned, const std::string& what) {
  ASSERT_TRUE(answer.impossible) << what;
  if (!answer.impossible->remedy.empty()) {
    EXPECT_EQ(planned.remedy, answer.impossible->remedy) << what;
  }
  std::vector<std::string> offered;
  for (const runtime::ToChange& to : answer.to_change)
    if (!to.remedy.asks.empty() && to.remedy.asks.front() == "--tp")
      offered.push_back(join(to.remedy.asks, " "));
  for (const std::string& words : offered)
    EXPECT_NE((planned.remedy + ",").find(words), std::string::npos)
        << what << ": " << words << " is not in \"" << planned.remedy << "\"";
}

// What plan, and with it convert and run, choose.
void expect_plan_agrees(const Answer& answer, const plan::Ranks& ranks, const std::string& what) {
  const runtime::SelectionRequest& request = answer.request;
  plan::PlanRequest wanted{.model = request.model, .device = request.request.device};
  wanted.policy = request.policy;
  wanted.mode = request.mode;
  wanted.ranks = ranks;
  const auto result = plan::make_plan(wanted);
  ASSERT_EQ(static_cast<bool>(result), static_cast<bool>(*request.split)) << what;
  if (!result) {
    EXPECT_FALSE(answer.is_served()) << what;
    EXPECT_EQ(result.why().id, answer.impossible->id) << what;
    expect_same_offers(answer, result.why(), what);
    return;
  }
  const auto row = std::ranges::find(result->backends, true, &plan::BackendPlan::chosen);
  EXPECT_EQ(row == result->backends.end() ? "-" : std::string(row->backend->name), chosen(answer))
      << what;
  EXPECT_EQ(row != result->backends.end() && !row->impossible, answer.is_served()) << what;
  if (row != result->backends.end() && row->impossible && answer.refused_before.empty())
    expect_same_offers(answer, *row->impossible, what);
  for (const plan::BackendPlan& each : result->backends) {
    const auto known =
        std::ranges::find(answer.record.rows, each.backend, &oracle::BackendRow::backend);
    if (known == answer.record.rows.end() || each.chosen) continue;
    EXPECT_EQ(each.refused.empty(), known->would_run()) << what << " " << each.backend->name;
  }
  if (ranks.tp * ranks.dp * ranks.ep != 1) return;
  const auto choice = runtime::choose(request.model, {},
                                      {.policy = std::string(request.policy->name),
                                       .mode = request.mode,
                                       .device = request.request.device});
  ASSERT_EQ(static_cast<bool>(choice), row != result->backends.end()) << what;
  if (choice) {
    EXPECT_EQ(choice->backend, answer.record.selection.backend) << what;
  }
}

// A remedy is asked again in its own words.
void expect_remedies_help(const Answer& answer, const SelectionOptions& asked,
                          const std::string& what) {
  for (const runtime::ToChange& to : answer.to_change) {
    if (!to.remedy.can_be_asked) continue;
    SelectionOptions again = asked;
    const std::vector<std::string>& asks = to.remedy.asks;
    for (std::size_t i = 0; i < asks.size(); ++i) {
      if (asks[i].starts_with("--lib="))
        again.libraries.push_back(asks[i].substr(6));
      else if (asks[i] == "--env")
        again.variables.push_back(asks[++i]);
      else if (asks[i] == "--backend")
        again.fields["moe_backend"] = asks[++i];
      else if (asks[i] == "--tp")
        again.tp = std::stoull(asks[++i]);
      else if (asks[i] == "--dp")
        again.dp = std::stoull(asks[++i]);
      else if (asks[i] == "--ep")
        again.ep = std::stoull(asks[++i]);
      else if (asks[i] == "--all2all")
        again.all2all = asks[++i];
      else
        ADD_FAILURE() << what << " " << asks[i];
    }
    const auto request = runtime::resolve(again);
    ASSERT_TRUE(request) << what << ": " << text(request.why());
    const oracle::Selection result = select(*request->policy, request->mode, request->request);
    EXPECT_EQ(result.backend, to.backend) << what << ": " << to.remedy.steps.front();
  }
}

TEST(Agreement, OfExplainPlanConvertAndRunForEveryDevicePolicyModeAndModel) {
  std::size_t asked = 0;
  for (const oracle::Policy& policy : backends::policies())
    for (const std::string_view mode : oracle::kModeNames)
      for (const checkpoint::ModelRow& row : checkpoint::models())
        for (const platform::DescribedDevice& part : platform::described_devices())
          for (const plan::Ranks& ranks : kRanks) {
            if (!is_taken(asked++, 11)) continue;
            const std::string what =
                fmt::format("{} {} {} {} --tp {} --dp {} --ep {}", part.name, policy.name, mode,
                            row.name, ranks.tp, ranks.dp, ranks.ep);
            SelectionOptions options = words(part.name, policy, row, ranks);
            options.mode = mode;
            Result<runtime::SelectionRequest> request = runtime::resolve(options);
            ASSERT_TRUE(request) << what << ": " << text(request.why());
            const Answer answer = runtime::answer(*std::move(request));
            expect_plan_agrees(answer, ranks, what);
            expect_remedies_help(answer, options, what);
          }
  EXPECT_EQ(asked, backends::policies().size() * std::size(oracle::kModeNames) *
                       checkpoint::models().size() * platform::described_devices().size() *
                       std::size(kRanks));
}

// Models that others quantized, by their config.json: Quark's MXFP4 goes through gpt-oss's entry with
// a request of its own.
TEST(Agreement, OfExplainPlanAndRunForModelsOfQuark) {
  const tensor::testing::TemporaryFolder folder;
  const std::string path = folder / "config.json";
  for (const std::string input :
       {"null", R"({"dtype": "fp4", "group_size": 32, "is_dynamic": true})",
        R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false})"}) {
    tensor::testing::write_text(path, R"({"model_type": "qwen3_moe", "num_experts": 128,
      "num_experts_per_tok": 8, "hidden_size": 2048, "moe_intermediate_size": 768,
      "num_hidden_layers": 48, "quantization_config": {"quant_method": "quark",
      "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32},
      "input_tensors": )" + input + "}}}");
    for (const oracle::Policy& policy : backends::policies()) {
      if (policy.format != formats::WeightFormat::mxfp4) continue;
      for (const platform::DescribedDevice& part : platform::described_devices())
        for (const std::uint64_t tp : {1u, 7u}) {
          SelectionOptions options;
          options.device = part.name;
          options.policy = policy.name;
          options.model = path;
          options.tp = tp;
          Result<runtime::SelectionRequest> request = runtime::resolve(options);
          ASSERT_TRUE(request) << text(request.why());
          const std::string what =
              std::string(part.name) + " " + std::string(policy.name) + " " + input;
          expect_plan_agrees(runtime::answer(*std::move(request)), {.tp = tp}, what);
        }
    }
  }
  const testing::Outcome mi355x =
      testing::run({"explain", path, "--device", "mi355x", "--vllm", "0.33.0", "--json"});
  const auto record = parse_json(mi355x.out);
  ASSERT_TRUE(record) << mi355x.err;
  EXPECT_EQ((*record)["policy"], "vllm-0.33.0");
  EXPECT_EQ((*record)["layer"]["activation_quant"], "fp8_static_tensor");
}

// A column of the matrix in the words of explain.
SelectionOptions situation(std::string_view title) {
  SelectionOptions options;
  options.model = "gpt-oss-20b";
  if (title == "gpt-oss") return options;
  options.fields["activation"] = "silu";
  options.off["has_bias"] = true;
  if (title == "DeepSeek routing") options.fields["routing_method"] = "DeepSeekV3";
  if (title == "no gate") options.fields["activation"] = "relu2_no_mul";
  if (title == "LoRA") options.on["is_lora_enabled"] = true;
  if (title == "batch invariant") options.variables = {"VLLM_BATCH_INVARIANT=1"};
  if (title == "batched tokens") {
    options.dp = 2;
    options.expert_parallel = true;
    options.all2all = "deepep_low_latency";
  }
  return options;
}

TEST(Agreement, OfMatrixAndExplain) {
  const testing::Outcome said = testing::run({"matrix", "--markdown", "--json"});
  const auto result = parse_json(said.out);
  ASSERT_TRUE(result) << text(result.why());
  std::size_t compared = 0;
  for (const Json& policy : (*result)["policies"])
    for (const Json& row : policy["choices"]) {
      SelectionOptions options = situation(row["situation"].string());
      options.device = row["device"].string();
      options.policy = policy["policy"].string();
      options.format = policy["format"].string();
      if (!row["environment"].is_null()) options.variables.push_back(row["environment"].string());
      Result<runtime::SelectionRequest> request = runtime::resolve(options);
      ASSERT_TRUE(request) << text(request.why());
      const Answer answer = runtime::answer(*std::move(request));
      EXPECT_EQ(row["backend"].is_null() ? "-" : row["backend"].string(),
                answer.refused_before.empty() ? chosen(answer) : "-")
          << options.device << " " << options.policy << " " << row["situation"].string();
      ++compared;
    }
  constexpr std::size_t kSituations = 7;
  EXPECT_GE(compared,
            backends::policies().size() * platform::described_devices().size() * kSituations);
}

TEST(Agreement, OfTheExitStatusesOfExplainAndPlan) {
  for (const char* tp : {"1", "7", "8"})
    for (const char* model : {"gpt-oss-120b", "qwen3-30b-a3b"})
      for (const char* device : {"h100", "b200", "v100", "cpu-avx512"}) {
        const std::vector<std::string> request{"--model", model, "--device", device,
                                               "--tp",    tp,    "--policy", "2026-04-24"};
        std::vector<std::string> explain{"explain"}, plan{"plan"};
        explain.insert(explain.end(), request.begin(), request.end());
        plan.insert(plan.end(), request.begin(), request.end());
        const auto explained = testing::run(explain), planned = testing::run(plan);
        const bool agree = explained.status == 0 ? planned.status == 0
                                                 : planned.status == 0 || planned.status == 4;
        EXPECT_TRUE(agree) << model << " " << device << " " << tp << ": " << explained.status
                           << " and " << planned.status;
        EXPECT_TRUE(planned.status == 0 || explained.status == planned.status)
            << model << " " << device << " " << tp;
      }
}

}  // namespace agreement_test
}  // namespace fp4moe::cli
