#include "fp4moe/plan/plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/oracle/sizes.hpp"

namespace fp4moe::plan {
namespace {

using oracle::Backend;
using oracle::Buffer;
using oracle::Sizes;

oracle::Request request_of(const PlanRequest& asked, const Split& split) {
  oracle::Request request{.device = asked.device, .environment = asked.environment};
  request.layer = asked.model.layer;
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

// The slice that a rank receives must find room in what the kernel is given.
std::optional<Error> check_slice(const Split& split, const Sizes& after) {
  if (split.most <= after.intermediate) return std::nullopt;
  return error(ErrorCode::no_backend, "plan.slice",
               "a rank's part of the weights does not fit the backend's rounded size")
      .expects(fmt::format("at least {}", split.most),
               fmt::format("{} rounded to {}", split.divided, after.intermediate))
      .try_this("Use another backend, or split the experts instead");
}

// Everything that is counted in bytes.
std::optional<Error> count_bytes(const PlanRequest& request, const Split& split,
                                 BackendPlan& made) {
  const Model& model = request.model;
  const oracle::Policy& policy = *request.policy;
  oracle::BufferRequest wanted{.format = model.shape.format,
                               .names = model.names,
                               .sizes = made.after,
                               .local_experts = split.max_experts,
                               .experts = model.shape.experts,
                               .gated = model.shape.gated(),
                               .has_bias = model.shape.has_bias,
                               .global_activation_scales = made.backend->global_activation_scales};
  wanted.always_two_halves =
      oracle::has_two_halves_always(model.shape.format, policy.era, request.mode);
  const auto with = [&wanted](Sizes sizes, std::uint64_t experts, bool real) {
    oracle::BufferRequest changed = wanted;
    changed.sizes = sizes;
    changed.local_experts = experts;
    if (real) changed.always_two_halves = changed.global_activation_scales = false;
    return oracle::weight_buffers(changed);
  };

  Bytes sum;
  const auto buffers = oracle::weight_buffers(wanted);
  made.layer_bytes = sum.of(buffers);
  if (buffers) made.buffers = *buffers;
  made.rank_bytes = sum.times(made.layer_bytes, model.layers);
  const std::uint64_t others = sum.of(with(made.after, split.experts_least, false));
  const std::uint64_t layer_everywhere =
      sum.plus(sum.times(made.layer_bytes, split.ranks_with_most),
               sum.times(others, split.ranks - split.ranks_with_most));
  made.all_ranks_bytes = sum.times(layer_everywhere, model.layers);
  const Sizes whole{model.shape.hidden, model.shape.intermediate};
  made.real_bytes = sum.times(sum.of(with(whole, model.shape.experts, true)), model.layers);
  const Sizes slice{model.shape.hidden, split.most};
  made.expert_peak = sum.plus(sum.of(with(slice, 1, true)), sum.of(with(made.after, 1, false)));
  made.layer_peak =
      made.backend->layout.empty() ? made.layer_bytes : sum.times(made.layer_bytes, 2);
  made.memory =
      ratio(static_cast<double>(made.all_ranks_bytes), static_cast<double>(made.real_bytes));
  return sum.why();
}

void select(const oracle::Record& record, BackendPlan& made) {
  made.chosen = record.selection.outcome == oracle::Outcome::selected &&
                record.selection.backend == made.backend;
  if (made.chosen) return;
  const auto row = std::ranges::find(record.rows, made.backend, &oracle::BackendRow::backend);
  if (row == record.rows.end() || row->nearest == nullptr) {
    made.refused = "it has no kernel under this policy";
  } else if (!row->would_run()) {
    made.refused = oracle::decisive_reason(record.request, *row->nearest);
  }
}

// Other splits on which the backend's weights fit, the smallest of each kind.
std::vector<std::string> fitting_splits(const PlanRequest& request, const Backend& backend) {
  std::vector<std::string> found;
  for (const bool experts : {false, true}) {
    for (std::uint64_t ranks = 2; ranks <= 1024; ranks *= 2) {
      Ranks other{.all2all = request.ranks.all2all};
      (experts ? other.ep : other.tp) = ranks;
      const auto split = plan_split(request.model, other, request.policy->era);
      if (!split) continue;
      const BackendPlan made = plan_backend(request, *split, backend);
      if (made.impossible || made.fits != true) continue;
      found.push_back(fmt::format("--{} {}", experts ? "ep" : "tp", ranks));
      break;
    }
  }
  return found;
}

// The nearest numbers of ranks below and above with which the backend can share every expert.
std::vector<std::string> nearest_splits(const PlanRequest& request, const Split& split,
                                        const Backend& backend) {
  constexpr std::uint64_t kReach = 64;
  if (split.parallel.use_ep) return {};
  const auto works = [&](std::uint64_t ranks) {
    const auto other = plan_split(request.model, {.tp = ranks}, request.policy->era);
    return other && !plan_backend(request, *other, backend).impossible;
  };
  std::vector<std::string> found;
  const std::uint64_t here = split.ranks, low = here > kReach ? here - kReach : 1;
  for (std::uint64_t ranks = here - 1; ranks >= low && found.empty(); --ranks)
    if (works(ranks)) found.push_back(fmt::format("--tp {}", ranks));
  for (std::uint64_t ranks = here + 1; ranks <= here + kReach; ++ranks) {
    if (!works(ranks)) continue;
    found.push_back(fmt::format("--tp {}", ranks));
    break;
  }
  return found;
}

}  // namespace

BackendPlan plan_backend(const PlanRequest& request, const Split& split, const Backend& backend) {
  const Model& model = request.model;
  BackendPlan made{.backend = &backend};
  made.before = {model.shape.hidden, split.divided};
  const auto after = oracle::layer_sizes(
      backend, request.device, oracle::rounding_activation(*request.policy, model.layer),
      split.parallel, request.policy->era, model.layer.in_dtype, made.before);
  if (!after) {
    made.impossible = after.why();
    return made;
  }
  const auto converted = oracle::converted_sizes(backend, model.shape.gated(), *after);
  if (!converted) {
    made.impossible = converted.why();
    return made;
  }
  made.after = *converted;
  made.impossible = check_slice(split, made.after);
  if (made.impossible) return made;
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const double parts = split.parallel.use_ep ? 1 : number(split.ranks);
  const double hidden = number(model.shape.hidden), width = number(model.shape.intermediate);
  made.hidden_padding = percent(number(made.after.hidden), hidden);
  made.intermediate_padding = percent(parts * number(made.after.intermediate), width);
  made.work =
      ratio(number(made.after.hidden) * number(made.after.intermediate) * parts, hidden * width);
  made.impossible = count_bytes(request, split, made);
  if (request.device.memory_bytes > 0) made.fits = made.rank_bytes <= request.device.memory_bytes;
  return made;
}

Result<Plan> make_plan(const PlanRequest& request) {
  auto split = plan_split(request.model, request.ranks, request.policy->era);
  if (!split) return split.why();
  Plan plan{.model = request.model, .split = *std::move(split), .device = request.device};
  plan.policy = request.policy;
  plan.mode = request.mode;
  plan.wire = plan_wire(request.model, plan.split, request.policy->era);
  const oracle::Record record =
      oracle::make_record(*request.policy, request.mode, request_of(request, plan.split));
  if (record.selection.outcome != oracle::Outcome::selected)
    plan.no_choice = record.selection.message.empty() ? "nothing here computes this layer"
                                                      : record.selection.message;
  for (const Backend* backend : request.policy->backends) {
    if (backend->family == "none") continue;
    BackendPlan made = plan_backend(request, plan.split, *backend);
    select(record, made);
    if (made.impossible) made.nearest = nearest_splits(request, plan.split, *backend);
    if (made.chosen && made.fits == false) plan.that_fit = fitting_splits(request, *backend);
    plan.backends.push_back(std::move(made));
  }
  std::stable_partition(plan.backends.begin(), plan.backends.end(),
                        [](const BackendPlan& row) { return row.chosen; });
  return plan;
}

}  // namespace fp4moe::plan
