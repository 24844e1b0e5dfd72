#include "fp4moe/backends/all.hpp"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/policies.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::backends {

namespace {

constexpr std::string_view kLatest = "latest";
constexpr std::string_view kVllmPrefix = "vllm:";

// The policy itself, or its second entry where there is one and it is meant.
const oracle::Policy* with_entry(std::string_view name, oracle::WeightFormat format, Entry entry) {
  if (entry == Entry::generic)
    if (const oracle::Policy* second = find_policy(std::string(name) + "-deepseek-v4", format))
      return second;
  return find_policy(name, format);
}

}  // namespace

Rows::Rows(std::span<const oracle::Backend* const> rows, oracle::WeightFormat format,
           oracle::PolicyDate policy_date) {
  std::ranges::copy_if(rows, std::back_inserter(rows_), [&](const oracle::Backend* row) {
    return row->format == format && row->policy_dates.contains(policy_date);
  });
}

const oracle::Backend* Rows::operator()(std::string_view name) {
  const auto found = std::ranges::find(rows_, name, [](auto* row) { return row->name; });
  if (found != rows_.end()) return *found;
  missing_ = name;
  return nullptr;
}

std::vector<const oracle::Backend*> Rows::operator()(
    std::initializer_list<std::string_view> names) {
  std::vector<const oracle::Backend*> found;
  for (const std::string_view name : names) found.push_back((*this)(name));
  return found;
}

std::vector<const oracle::Backend*> all_rows() {
  std::vector<const oracle::Backend*> rows;
  for (const Family family : kFamilies)
    for (const oracle::Backend& row : family()) rows.push_back(&row);
  return rows;
}

Result<std::vector<oracle::Policy>> make_policies(std::span<const oracle::Backend* const> rows) {
  std::vector<oracle::Policy> result;
  for (const PolicyMaker& maker : policy_makers()) {
    Rows chosen(rows, maker.format, maker.policy_date);
    oracle::Policy& policy = result.emplace_back(oracle::Policy{.name = maker.name,
                                                                .format = maker.format,
                                                                .policy_date = maker.policy_date,
                                                                .summary = maker.summary,
                                                                .backends = chosen.all()});
    maker.fill(policy, chosen);
    if (!chosen.missing().empty())
      return error(ErrorCode::failed, "policy.backend", "a policy's list names a missing backend")
          .at(maker.name)
          .expects("a row named " + chosen.missing(), "none");
  }
  return result;
}

std::span<const oracle::Policy> policies() {
  static const std::vector<oracle::Policy> kPolicies = [] {
    Result<std::vector<oracle::Policy>> result = make_policies(all_rows());
    assert(result);  // the rows are compiled in; a test makes them all
    return result ? std::move(*result) : std::vector<oracle::Policy>();
  }();
  return kPolicies;
}

const oracle::Policy* find_policy(std::string_view name, oracle::WeightFormat format) {
  for (const oracle::Policy& policy : policies())
    if (policy.name == name && policy.format == format) return &policy;
  return nullptr;
}

Entry entry_of(std::string_view model_type) {
  return model_type == "gpt_oss" || model_type == "gpt-oss" ? Entry::gpt_oss : Entry::generic;
}

const oracle::Policy& newest_vllm_policy(oracle::WeightFormat format, Entry entry) {
  const oracle::Release& newest = oracle::vllm_releases().back();
  return *with_entry(newest.of(format).policy, format, entry);  // a test asks for all
}

std::string vllm_word(std::string_view version) {
  return std::string(kVllmPrefix) + std::string(version);
}

namespace {

bool is_date(std::string_view word) {
  constexpr std::string_view kForm = "dddd-dd-dd";
  return std::ranges::equal(word, kForm, [](char c, char form) {
    return form == 'd' ? c >= '0' && c <= '9' : c == form;
  });
}

// For a day without a policy: the newest before it, else the first one.
std::string policy_before(std::string_view day, oracle::WeightFormat format) {
  std::string_view best, first;
  for (const oracle::Policy& policy : policies()) {
    if (policy.format != format || !is_date(policy.name)) continue;
    if (policy.name < day && policy.name > best) best = policy.name;
    if (first.empty() || policy.name < first) first = policy.name;
  }
  return best.empty() ? fmt::format("--policy {} is the first", first)
                      : fmt::format("--policy {} is the newest before that day", best);
}

}  // namespace

Result<const oracle::Policy*> require_policy(std::string_view word, oracle::WeightFormat format,
                                             Entry entry) {
  const Result<PolicyChoice> choice = choose_policy(word, format, entry);
  if (!choice) return choice.why();
  return choice->policy;
}

Result<PolicyChoice> choose_policy(std::string_view name, oracle::WeightFormat format,
                                   Entry entry) {
  if (name == kLatest || name.starts_with(kVllmPrefix)) {
    Result<oracle::ReleaseChoice> release =
        oracle::choose_release(name == kLatest ? name : name.substr(kVllmPrefix.size()), format);
    if (!release) return release.why();
    const oracle::Policy* policy = with_entry(release->policy, format, entry);
    release->policy = policy->name;
    return PolicyChoice{policy, *std::move(release)};
  }
  if (const oracle::Policy* policy = find_policy(name, format)) return PolicyChoice{policy, {}};
  std::vector<std::string> names{std::string(kLatest)};
  for (const oracle::Policy& policy : policies())
    if (policy.format == format) names.emplace_back(policy.name);
  const std::string known = join(names, ", ");
  return usage("policy.unknown",
               "no such policy for " + std::string(formats::name(format)) + " weights")
      .expects("one of " + known, "'" + printable(name) + "'")
      .try_this(is_date(name) ? policy_before(name, format)
                              : "leave --policy out to use " + std::string(kNative));
}

}  // namespace fp4moe::backends
