#include "fp4moe/plan/plan.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/plan/other_splits.hpp"

namespace fp4moe::plan {
namespace {

using oracle::Backend;
using oracle::Buffer;
using oracle::Sizes;

oracle::Request request_of(const PlanRequest& asked, const Split& split) {
  oracle::Request request{.device = asked.device, .environment = asked.environment};
  request.layer = layer_for(asked.model, asked.policy->policy_date);
  request.layer.parallel = split.parallel;
  request.layer.num_local_experts = split.max_experts;
  request.layer.intermediate = split.divided;
  return request;
}

// Sums and products of bytes; an overflow is remembered.
class Bytes {
 public:
  std::uint64_t times(std::uint64_t a, std::uint64_t b) { return keep(checked_multiply(a, b)); }
  std::uint64_t plus(std::uint64_t a, std::uint64_t b) { return keep(checked_add(a, b)); }
  std::uint64_t of(const Result<std::vector<Buffer>>& buffers) {
    if (!buffers) {
      why_ = why_ ? why_ : buffers.why();
      return 0;
    }
    const auto total = oracle::total_bytes(*buffers);
    return keep(total ? std::optional(*total) : std::nullopt);
  }
  const std::optional<Error>& why() const { return why_; }

 private:
  std::uint64_t keep(std::optional<std::uint64_t> value) {
    if (!value && !why_) why_ = invalid("plan.overflow", "the layers' bytes do not fit 64 bits");
    return value.value_or(0);
  }
  std::optional<Error> why_{};
};

double ratio(double padded, double real) { return real > 0 ? padded / real : 1; }
double percent(double padded, double real) { return 100 * (ratio(padded, real) - 1); }

// The slice that a rank receives must fit into the kernel's buffers.
std::optional<Error> check_slice(const Split& split, const Sizes& after) {
  if (split.max_intermediate <= after.intermediate) return std::nullopt;
  return error(ErrorCode::no_backend, "plan.slice",
               "a rank's part of the weights does not fit the backend's rounded size")
      .expects(fmt::format("at least {}", split.max_intermediate),
               fmt::format("{} rounded to {}", split.divided, after.intermediate));
}

// Everything that is counted in bytes.
std::optional<Error> count_bytes(const PlanRequest& request, const Split& split,
                                 BackendPlan& result) {
  const Model& model = request.model;
  const oracle::Policy& policy = *request.policy;
  oracle::BufferRequest wanted{
      .format = model.shape.format,
      .names = model.names,
      .sizes = result.after,
      .local_experts = split.max_experts,
      .experts = model.shape.experts,
      .gated = model.shape.gated(),
      .has_bias = model.shape.has_bias,
      .global_activation_scales = result.backend->global_activation_scales};
  wanted.always_two_halves =
      oracle::has_two_halves_always(model.shape.format, policy.policy_date, request.mode);
  const auto with = [&wanted](Sizes sizes, std::uint64_t experts, bool real) {
    oracle::BufferRequest changed = wanted;
    changed.sizes = sizes;
    changed.local_experts = experts;
    if (real) changed.always_two_halves = changed.global_activation_scales = false;
    return oracle::weight_buffers(changed);
  };

  Bytes sum;
  const auto buffers = oracle::weight_buffers(wanted);
  result.layer_bytes = sum.of(buffers);
  if (buffers) result.buffers = *buffers;
  result.rank_bytes = sum.times(result.layer_bytes, model.layers);
  const std::uint64_t others = sum.of(with(result.after, split.min_experts, false));
  const std::uint64_t layer_everywhere =
      sum.plus(sum.times(result.layer_bytes, split.ranks_with_max_experts),
               sum.times(others, split.ranks - split.ranks_with_max_experts));
  result.all_ranks_bytes = sum.times(layer_everywhere, model.layers);
  const Sizes whole{model.shape.hidden, model.shape.intermediate};
  result.real_bytes = sum.times(sum.of(with(whole, model.shape.experts, true)), model.layers);
  const Sizes slice{model.shape.hidden, split.max_intermediate};
  result.expert_peak = sum.plus(sum.of(with(slice, 1, true)), sum.of(with(result.after, 1, false)));
  result.layer_peak =
      result.backend->layout.empty() ? result.layer_bytes : sum.times(result.layer_bytes, 2);
  result.memory =
      ratio(static_cast<double>(result.all_ranks_bytes), static_cast<double>(result.real_bytes));
  return sum.why();
}

void select(const oracle::Record& record, BackendPlan& result) {
  result.chosen = record.selection.outcome == oracle::Outcome::selected &&
                  record.selection.backend == result.backend;
  if (result.chosen) return;
  const auto row = std::ranges::find(record.rows, result.backend, &oracle::BackendRow::backend);
  if (row == record.rows.end() || row->nearest == nullptr) {
    result.refused = "it has no kernel under this policy";
  } else if (!row->would_run()) {
    result.refused = oracle::decisive_reason(record.request, *row->nearest);
  }
}

// The kernel with the fewest refusals on this platform, among those that the policy tried.
std::string nearest_miss(const oracle::Record& record) {
  const oracle::Verdict* best = nullptr;
  for (const oracle::Verdict& verdict : record.selection.evaluated) {
    const bool is_elsewhere = std::ranges::any_of(
        verdict.refusals,
        [](const oracle::Refusal& refusal) { return refusal.reason == oracle::Reason::platform; });
    if (is_elsewhere || verdict.refusals.empty()) continue;
    if (best == nullptr || verdict.refusals.size() < best->refusals.size()) best = &verdict;
  }
  if (best == nullptr) return {};
  return fmt::format("{}: {}", best->backend->name, oracle::decisive_reason(record.request, *best));
}

// vLLM may refuse the deployment before it asks which backend.
std::optional<Error> refused_before(const oracle::Record& record) {
  std::vector<std::string> checks = oracle::checks_before(*record.selection.policy, record.request);
  if (checks.empty()) return std::nullopt;
  std::string& first = checks.front();
  if (first.ends_with('.')) first.pop_back();
  return error(ErrorCode::no_backend, "plan.refused", first)
      .try_this("Another device; fp4moe itself computes the layer: --policy native");
}

// Other splits on which the backend's weights fit, the smallest of each kind.
std::vector<std::string> fitting_splits(const PlanRequest& request, const Backend& backend) {
  std::vector<std::string> found;
  for (const bool experts : {false, true}) {
    for (std::uint64_t ranks = 2; ranks <= 1024; ranks *= 2) {
      Ranks other{.all2all = request.ranks.all2all};
      (experts ? other.ep : other.tp) = ranks;
      const auto split = plan_split(request.model, other, request.policy->policy_date);
      if (!split) continue;
      const BackendPlan result = plan_backend(request, *split, backend);
      if (result.impossible || result.fits != true) continue;
      found.push_back(fmt::format("--{} {}", experts ? "ep" : "tp", ranks));
      break;
    }
  }
  return found;
}

// True if the policy selects a backend for these ranks and it can be loaded.
bool is_served(const PlanRequest& request, const oracle::Deployment& deployment) {
  const auto split =
      plan_split(request.model, oracle::derive(deployment), request.policy->policy_date);
  if (!split) return false;
  const oracle::Request asked = request_of(request, *split);
  if (!oracle::checks_before(*request.policy, asked).empty()) return false;
  const oracle::Selection result = oracle::select(*request.policy, request.mode, asked);
  return result.outcome == oracle::Outcome::selected &&
         !plan_backend(request, *split, *result.backend).impossible;
}

// True if weights can be split so for a backend; null: for any.
bool is_possible(const PlanRequest& request, const oracle::Deployment& deployment,
                 const Backend* backend) {
  const auto split =
      plan_split(request.model, oracle::derive(deployment), request.policy->policy_date);
  return split && (backend == nullptr || !plan_backend(request, *split, *backend).impossible);
}

// The remedy for an impossible split: the splits that are served. If the policy serves none,
// sizes alone decide.
Error with_advice(Error why, const PlanRequest& request, const oracle::Deployment& now) {
  std::string text = advice(other_splits(
      now, [&](const oracle::Deployment& other) { return is_served(request, other); }));
  if (text.empty())
    text = advice(other_splits(now, [&](const oracle::Deployment& other) {
      return is_possible(request, other, nullptr);
    }));
  if (!text.empty()) why.remedy = std::move(text);
  return why;
}

// The same for one backend. The chosen one must be what is served then.
void add_nearest(const PlanRequest& request, const oracle::Deployment& now, BackendPlan& result) {
  const auto found = other_splits(now, [&](const oracle::Deployment& other) {
    return result.chosen ? is_served(request, other) : is_possible(request, other, result.backend);
  });
  result.nearest = asked_words(found);
  if (!found.empty()) result.impossible->remedy = advice(found);
}

}  // namespace

BackendPlan plan_backend(const PlanRequest& request, const Split& split, const Backend& backend) {
  const Model& model = request.model;
  BackendPlan result{.backend = &backend};
  result.before = {model.shape.hidden, split.divided};
  const auto after = oracle::layer_sizes(
      backend, request.device, oracle::rounding_activation(*request.policy, model.layer),
      split.parallel, request.policy->policy_date, model.layer.in_dtype, result.before);
  if (!after) {
    result.impossible = after.why();
    return result;
  }
  const auto converted = oracle::converted_sizes(backend, model.shape.gated(), *after);
  if (!converted) {
    result.impossible = converted.why();
    return result;
  }
  result.after = *converted;
  result.impossible = check_slice(split, result.after);
  if (result.impossible) return result;
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const double parts = split.parallel.use_ep ? 1 : number(split.ranks);
  const double hidden = number(model.shape.hidden), width = number(model.shape.intermediate);
  result.hidden_padding = percent(number(result.after.hidden), hidden);
  result.intermediate_padding = percent(parts * number(result.after.intermediate), width);
  result.work = ratio(number(result.after.hidden) * number(result.after.intermediate) * parts,
                      hidden * width);
  result.impossible = count_bytes(request, split, result);
  if (request.device.memory_bytes > 0)
    result.fits = result.rank_bytes <= request.device.memory_bytes;
  return result;
}

Result<Plan> make_plan(const PlanRequest& request) {
  std::vector<std::string> notes;
  const auto deployment = deployment_of(request.ranks, request.policy->policy_date, notes);
  if (!deployment) return deployment.why();
  auto split = plan_split(request.model, request.ranks, request.policy->policy_date);
  if (!split) return with_advice(split.why(), request, *deployment);
  Plan plan{.model = request.model, .split = *std::move(split), .device = request.device};
  plan.policy = request.policy;
  plan.mode = request.mode;
  plan.wire = plan_wire(request.model, plan.split, request.policy->policy_date);
  const oracle::Record record =
      oracle::make_record(*request.policy, request.mode, request_of(request, plan.split));
  if (record.selection.outcome != oracle::Outcome::selected) {
    plan.no_choice = record.selection.message.empty() ? "nothing here computes this layer"
                                                      : record.selection.message;
    plan.nearest_miss = nearest_miss(record);
  }
  const std::optional<Error> before = refused_before(record);
  for (const Backend* backend : request.policy->backends) {
    if (backend->family == "none") continue;
    BackendPlan result = plan_backend(request, plan.split, *backend);
    select(record, result);
    if (before && result.refused.empty()) result.impossible = before;
    if (result.impossible && !before) add_nearest(request, *deployment, result);
    if (result.chosen && result.fits == false) plan.that_fit = fitting_splits(request, *backend);
    plan.backends.push_back(std::move(result));
  }
  std::stable_partition(plan.backends.begin(), plan.backends.end(),
                        [](const BackendPlan& row) { return row.chosen; });
  return plan;
}

}  // namespace fp4moe::plan
