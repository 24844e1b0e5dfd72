#include "fp4moe/backends/all.hpp"

#include <algorithm>
#include <cassert>

#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/policies.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::backends {

Rows::Rows(std::span<const oracle::Backend* const> rows, oracle::WeightFormat format,
           oracle::Era era) {
  std::ranges::copy_if(rows, std::back_inserter(rows_), [&](const oracle::Backend* row) {
    return row->format == format && row->eras.contains(era);
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
  std::vector<oracle::Policy> made;
  for (const PolicyMaker& maker : policy_makers()) {
    Rows chosen(rows, maker.format, maker.era);
    oracle::Policy& policy = made.emplace_back(oracle::Policy{.name = maker.name,
                                                              .format = maker.format,
                                                              .era = maker.era,
                                                              .summary = maker.summary,
                                                              .backends = chosen.all()});
    maker.fill(policy, chosen);
    if (!chosen.missing().empty())
      return error(ErrorCode::failed, "policy.backend", "a policy's list names a missing backend")
          .at(maker.name)
          .expects("a row named " + chosen.missing(), "none");
  }
  return made;
}

std::span<const oracle::Policy> policies() {
  static const std::vector<oracle::Policy> kPolicies = [] {
    Result<std::vector<oracle::Policy>> made = make_policies(all_rows());
    assert(made);  // the rows are compiled in; a test makes them all
    return made ? std::move(*made) : std::vector<oracle::Policy>();
  }();
  return kPolicies;
}

const oracle::Policy* find_policy(std::string_view name, oracle::WeightFormat format) {
  for (const oracle::Policy& policy : policies())
    if (policy.name == name && policy.format == format) return &policy;
  return nullptr;
}

Result<const oracle::Policy*> require_policy(std::string_view name, oracle::WeightFormat format) {
  if (const oracle::Policy* policy = find_policy(name, format)) return policy;
  std::vector<std::string> names;
  for (const oracle::Policy& policy : policies())
    if (policy.format == format) names.emplace_back(policy.name);
  const std::string known = join(names, ", ");
  return usage("policy.unknown",
               "no such policy for " + std::string(formats::name(format)) + " weights")
      .expects("one of " + known, "'" + printable(name) + "'")
      .try_this("leave --policy out to use " + std::string(kNative));
}

}  // namespace fp4moe::backends
