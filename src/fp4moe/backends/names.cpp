#include "fp4moe/backends/names.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::backends {
namespace {

using oracle::Backend;
using oracle::NamedChoice;
using oracle::Policy;

// "No backend" is a row of the reference: its exact name selects it, no proposal leads to it.
bool is_none(const Backend& backend) { return backend.family == "none"; }

// Policies that have the backend, of either format.
std::vector<const Policy*> policies_with(std::string_view word) {
  std::vector<const Policy*> result;
  for (const Policy& policy : policies())
    if (find_by_any_name(policy, word) != nullptr) result.push_back(&policy);
  return result;
}

}  // namespace

const Backend* find_by_any_name(const Policy& policy, std::string_view word) {
  for (const Backend* backend : policy.backends)
    if (backend->name == word || (!is_none(*backend) && is_same_word(backend->name, word)))
      return backend;
  for (const NamedChoice& choice : policy.names)
    if (is_same_word(choice.name, word) && !choice.backends.empty()) return choice.backends.front();
  return nullptr;
}

std::vector<std::string_view> backend_names(const Policy& policy) {
  std::vector<std::string_view> names;
  for (const Backend* backend : policy.backends)
    if (!is_none(*backend)) names.push_back(backend->name);
  return names;
}

std::vector<std::string_view> words_for(const Policy& policy, const Backend& backend) {
  std::vector<const NamedChoice*> found;
  for (const NamedChoice& choice : policy.names) {
    const bool leads = std::ranges::any_of(choice.backends, [&](const Backend* each) {
      return each == &backend || each->batched == backend.name;
    });
    if (leads) found.push_back(&choice);
  }
  std::ranges::stable_sort(found, {}, [&](const NamedChoice* choice) {
    const bool is_first = choice->backends.front() == &backend;
    return choice->backends.size() == 1 && is_first ? 0 : is_first ? 1 : 2;
  });
  std::vector<std::string_view> words;
  for (const NamedChoice* choice : found) words.push_back(choice->name);
  return words;
}

Error unknown_backend(std::span<const Policy* const> asked, std::string_view word) {
  const oracle::WeightFormat format = asked.front()->format;
  std::vector<std::string_view> names, candidates;
  const auto add = [](std::string_view name, std::vector<std::string_view>& to) {
    if (std::ranges::find(to, name) == to.end()) to.push_back(name);
  };
  for (const Policy* policy : asked) {
    for (const std::string_view each : backend_names(*policy)) add(each, names);
    // The user may have meant one of vLLM's words.
    for (const NamedChoice& choice : policy->names) add(choice.name, candidates);
  }
  candidates.insert(candidates.begin(), names.begin(), names.end());
  const auto refused = [&](const std::string& what) {
    return usage("choice.backend", what)
        .expects(fmt::format("one of {}", fmt::join(names, ", ")), "'" + printable(word) + "'");
  };
  const std::string unknown = asked.size() == 1
                                  ? fmt::format("policy {} has no such backend", asked[0]->name)
                                  : "there is no such backend";
  std::vector<std::string> same_weights, other_weights;
  for (const Policy* other : policies_with(word))
    (other->format == format ? same_weights : other_weights).emplace_back(other->name);
  if (!same_weights.empty())
    return refused(unknown).try_this("these policies have it: " + join(same_weights, ", "));
  if (!other_weights.empty())
    return refused(fmt::format("this backend has no kernels for {} weights", formats::name(format)))
        .try_this("name one that has, or leave the choice to the policy");
  return refused(unknown).try_this(did_you_mean(word, candidates, "see fp4moe list backends"));
}

}  // namespace fp4moe::backends
