#include "fp4moe/platform/findings.hpp"

#include <algorithm>
#include <cctype>

#include <unistd.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace {

// Real variables of the reference that are spelled much like one of the table.
struct Neighbor {
  std::string_view name;
  std::string_view now;  // its present name; empty: it has nothing to do with FP4 experts
};
constexpr Neighbor kNeighbors[] = {
    {"VLLM_USE_FLASHINFER_MXFP4_BF16_MOE", "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16"},
    {"VLLM_USE_FLASHINFER_MXFP4_MOE", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8"},
    {"VLLM_USE_FLASHINFER_MOE_FP8", ""},
    {"VLLM_USE_FLASHINFER_MOE_FP16", ""},
    {"VLLM_USE_FLASHINFER_MOE_INT4", ""},
    {"VLLM_ROCM_USE_AITER_MHA", ""},
    {"VLLM_ROCM_USE_AITER_MLA", ""},
    {"VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", "VLLM_ROCM_USE_AITER_MOE_SITUV2"},
    {"VLLM_ROCM_USE_AITER_FP4_ASM_GEMM", ""},
    {"VLLM_ROCM_USE_AITER_FP4BMM", ""},
    {"VLLM_ROCM_USE_AITER_FP8BMM", ""},
};

// Switches that force a backend, in the order in which they are looked at: the first that is on
// decides, and the others do nothing.
constexpr Variable kMxfp4Order[] = {
    Variable::flashinfer_mxfp4_bf16, Variable::flashinfer_mxfp4_mxfp8,
    Variable::flashinfer_mxfp4_mxfp8_cutlass, Variable::mxfp4_use_marlin};
constexpr Variable kNvfp4Order[] = {Variable::flashinfer_fp4, Variable::test_force_fp8_marlin};

// The first does nothing unless the second is on.
struct Needs {
  Variable about, needed;
};
constexpr Needs kNeeds[] = {
    {Variable::flashinfer_moe_backend, Variable::flashinfer_fp4},
    {Variable::rocm_use_aiter_moe, Variable::rocm_use_aiter},
    {Variable::rocm_aiter_situv2, Variable::rocm_use_aiter},
    {Variable::rocm_aiter_a4w4_dsv4, Variable::rocm_use_aiter},
};

// Words that mean something where the reference takes any.
constexpr std::string_view kHummingWords[] = {"auto", "indexed", "grouped", "grouped_contiguous",
                                              "grouped_masked"};

// Switches whose "no" is the same as not being set.
struct IdleWhenFalse {
  Variable about;
  std::string_view sentence;
};
constexpr IdleWhenFalse kIdleWhenFalse[] = {
    {Variable::flashinfer_mxfp4_mxfp8, "is off, which is the same as not setting it"},
    {Variable::flashinfer_mxfp4_mxfp8_cutlass, "is off, which is the same as not setting it"},
    {Variable::mxfp4_use_marlin, "is off, which matters to LoRA deployments only"},
};

constexpr std::size_t kTypingSlip = 2;  // letters; the reference has hundreds of similar names

class Findings {
 public:
  Findings(const Environment& environment, const PolicyVariables* policy)
      : environment_(environment), policy_(policy) {}

  void add(Severity severity, std::string_view variable, std::string_view sentence,
           std::string_view remedy = {}) {
    list_.push_back({.severity = severity,
                     .variable = printable(variable),
                     .sentence = std::string(sentence),
                     .remedy = std::string(remedy)});
  }

  // Set, and the policy (if any) looks at it.
  bool counts(Variable variable) const {
    return environment_.is_set(variable) &&
           (policy_ == nullptr || policy_->reads.contains(variable));
  }
  bool is_on(Variable variable) const { return counts(variable) && environment_.is_true(variable); }

  void check_name(std::string_view name);
  void check_values();
  void check_policy();
  void check_order(std::span<const Variable> order);
  void check_needs();

  std::vector<Finding> take() { return std::move(list_); }

 private:
  void check_our_name(std::string_view name);

  const Environment& environment_;
  const PolicyVariables* policy_;
  std::vector<Finding> list_;
};

void Findings::check_our_name(std::string_view name) {
  std::vector<std::string> known;
  std::vector<std::string_view> candidates;
  for (const SettingRow& row : setting_rows()) {
    if (row.name == name) return;
    known.emplace_back(row.name);
    candidates.push_back(row.name);
  }
  const std::string_view meant = nearest(name, candidates);
  add(Severity::warning, name, "is not a variable of fp4moe",
      meant.empty() ? "known are " + join(known, ", ")
                    : "did you mean " + std::string(meant) + "?");
}

void Findings::check_name(std::string_view name) {
  if (name.starts_with("FP4MOE_")) return check_our_name(name);
  if (!name.starts_with("VLLM_") || find_variable(name) != nullptr) return;
  if (const auto* const near = std::ranges::find(kNeighbors, name, &Neighbor::name);
      near != std::end(kNeighbors)) {
    if (!near->now.empty())
      add(Severity::warning, name, "is an older name that no policy looks at",
          "use " + std::string(near->now));
    return;
  }
  std::vector<std::string_view> candidates;
  for (const VariableRow& row : variables()) candidates.push_back(row.name);
  if (const std::string_view meant = nearest(name, candidates, kTypingSlip); !meant.empty())
    add(Severity::warning, name, "is not a variable that any policy looks at",
        "did you mean " + std::string(meant) + "?");
}

void Findings::check_values() {
  for (const VariableRow& row : variables()) {
    if (!counts(row.variable)) continue;
    const std::string& value = *environment_.text(row.variable);
    if (const Result<bool> read = environment_.flag(row.variable); !read) {
      add(Severity::warning, row.name,
          "has the value " + read.why().found + ", which means nothing to the reference",
          "use " + std::string(row.accepted));
      continue;
    }
    const bool is_word = row.parsing == Parsing::word || row.parsing == Parsing::trimmed_word;
    constexpr std::string_view kPlainNo[] = {"0", "false", "False", "FALSE", ""};
    if (is_word && environment_.is_false(row.variable) &&
        std::ranges::find(kPlainNo, value) == std::end(kPlainNo))
      add(Severity::warning, row.name,
          "has the value '" + printable(value) + "', which counts as no",
          "use 1 or true for yes, 0 or false for no");
  }
  if (counts(Variable::humming_gemm_type)) {
    const VariableRow& about = row(Variable::humming_gemm_type);
    const std::string& value = *environment_.text(about.variable);
    const auto is_meant = [&](std::string_view word) {
      return std::ranges::equal(value, word, {}, [](char c) {
        return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      });
    };
    if (std::ranges::none_of(kHummingWords, is_meant))
      add(Severity::warning, about.name,
          "has the value '" + printable(value) + "', which none of Humming's kernels has",
          "use " + std::string(about.accepted));
  }
  for (const auto& [about, sentence] : kIdleWhenFalse)
    if (counts(about) && environment_.is_false(about))
      add(Severity::note, row(about).name, sentence);
}

void Findings::check_policy() {
  if (policy_ == nullptr) return;
  for (const VariableRow& row : variables())
    if (environment_.is_set(row.variable) && !policy_->reads.contains(row.variable))
      add(Severity::note, row.name,
          "is set, but the policy " + std::string(policy_->policy) + " does not look at it");
}

void Findings::check_order(std::span<const Variable> order) {
  const auto first =
      std::ranges::find_if(order, [this](Variable variable) { return is_on(variable); });
  if (first == order.end()) return;
  const std::string winner(row(*first).name);
  for (auto other = first + 1; other != order.end(); ++other)
    if (is_on(*other))
      add(Severity::warning, row(*other).name,
          "has no effect because " + winner + " is on too and goes first", "unset one of them");
}

void Findings::check_needs() {
  for (const auto& [about, needed] : kNeeds)
    if (counts(about) && !environment_.is_true(needed))
      add(Severity::warning, row(about).name,
          "has no effect unless " + std::string(row(needed).name) + "=1",
          "set " + std::string(row(needed).name) + "=1 or unset " + std::string(row(about).name));
}

}  // namespace

std::string text(const Finding& finding) {
  return finding.variable + " " + finding.sentence +
         (finding.remedy.empty() ? "" : "; " + finding.remedy);
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair = *entry;
    names.emplace_back(pair.substr(0, pair.find('=')));
  }
  return names;
}

std::vector<Finding> environment_findings(std::span<const std::string> names,
                                          const Environment& environment,
                                          const PolicyVariables* policy) {
  Findings findings(environment, policy);
  std::vector<std::string_view> sorted(names.begin(), names.end());
  std::ranges::sort(sorted);
  for (const std::string_view name : sorted) findings.check_name(name);
  findings.check_values();
  findings.check_order(kMxfp4Order);
  findings.check_order(kNvfp4Order);
  findings.check_needs();
  findings.check_policy();
  return findings.take();
}

}  // namespace fp4moe::platform
