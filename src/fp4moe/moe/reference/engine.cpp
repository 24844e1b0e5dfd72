#include "fp4moe/moe/reference/engine.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/moe/reference/assignments.hpp"
#include "fp4moe/moe/reference/stored_experts.hpp"

namespace fp4moe::moe::reference {
namespace {

// Assignments computed at once. It bounds only the workspace.
constexpr std::uint64_t kAssignments = 256;

// (A x): the small half of a low-rank addition.
void lora_low(const FloatMatrix& a, std::span<const double> x, std::vector<double>& out) {
  out.assign(a.rows, 0.0);
  for (std::uint64_t r = 0; r < a.rows; ++r) {
    const std::span<const float> row = a.row(r);
    for (std::size_t i = 0; i < row.size(); ++i) out[r] += double{row[i]} * x[i];
  }
}

double dot_row(const FloatMatrix& b, std::uint64_t row, std::span<const double> low) {
  double sum = 0;
  for (std::size_t i = 0; i < low.size(); ++i) sum += double{b.row(row)[i]} * low[i];
  return sum;
}

struct Workspace {
  std::vector<double> x{}, first{}, middle{}, second{};      // [assignments, ...]
  std::vector<std::vector<double>> panels{}, sums{}, low{};  // of each thread
  std::vector<std::vector<float>> floats{};
  std::vector<std::vector<double>> low_down{};  // A_down h of each assignment with an adapter
};

class Computation final : public ReferenceExperts {
 public:
  Computation(ExpertsProblem problem, StoredExperts weights, std::shared_ptr<ThreadPool> pool)
      : problem_(std::move(problem)), weights_(std::move(weights)), pool_(std::move(pool)) {
    const std::size_t threads = pool_->threads();
    for (auto* buffers : {&space_.panels, &space_.sums, &space_.low}) buffers->resize(threads);
    space_.floats.resize(threads);
    const checkpoint::MoeShape& shape = problem_.shape;
    for (auto& panel : space_.panels)
      panel.resize(kPanelRows * std::max(shape.hidden, shape.intermediate));
  }

  const ExpertsProblem& problem() const override { return problem_; }
  std::string_view engine() const override { return "reference"; }
  std::string kernel() const override { return "reference/" + std::string(problem_.numerics.id); }
  void watch(Trace* trace) override { trace_ = trace; }

  Result<Done> compute(const ExpertsCall& call, OutputForm form, const MutableRows& out) override {
    if (const auto fine = check(problem_, call, form, out); !fine) return fine.why();
    const bool is_batched = form == OutputForm::batches;
    const std::uint64_t units = is_batched ? occupied(call.in) : call.in.x.rows;
    const std::uint64_t step =
        is_batched
            ? kAssignments
            : std::max<std::uint64_t>(1, kAssignments / std::max<std::uint64_t>(1, call.in.top_k));
    for (std::uint64_t begin = 0; begin < units; begin += step) {
      if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
      const std::uint64_t end = std::min(units, begin + step);
      const AssignmentGroups groups = is_batched
                                          ? group_batches(call, begin, end)
                                          : group_rows(call, problem_.shape.experts, begin, end);
      reserve(groups.assignments.size(), call.lora);
      gather(call, groups);
      gemm1(call, groups);
      activate_assignments(call, groups);
      gemm2(call, groups, form);
      if (form == OutputForm::summed)
        sum_rows(groups, begin, end, out);
      else
        write_assignments(groups, form, begin, end, out);
    }
    return Done{};
  }

 private:
  void reserve(std::size_t assignments, const LoraView& lora) {
    const checkpoint::MoeShape& shape = problem_.shape;
    const auto grow = [](std::vector<double>& buffer, std::size_t size) {
      if (buffer.size() < size) buffer.resize(size);
    };
    grow(space_.x, assignments * shape.hidden);
    grow(space_.first, assignments * shape.w13_rows());
    grow(space_.middle, assignments * shape.intermediate);
    grow(space_.second, assignments * shape.hidden);
    for (auto& sums : space_.sums) grow(sums, assignments * kPanelRows);
    for (auto& floats : space_.floats)
      if (floats.size() < std::max(shape.hidden, shape.intermediate))
        floats.resize(std::max(shape.hidden, shape.intermediate));
    space_.low_down.resize(lora.empty() ? 0 : assignments);
  }

  std::span<double> x_of(std::size_t assignment) {
    return std::span(space_.x).subspan(assignment * problem_.shape.hidden, problem_.shape.hidden);
  }
  std::span<double> first_of(std::size_t assignment) {
    const std::uint64_t rows = problem_.shape.w13_rows();
    return std::span(space_.first).subspan(assignment * rows, rows);
  }
  std::span<double> middle_of(std::size_t assignment) {
    const std::uint64_t columns = problem_.shape.intermediate;
    return std::span(space_.middle).subspan(assignment * columns, columns);
  }
  std::span<double> second_of(std::size_t assignment) {
    return std::span(space_.second)
        .subspan(assignment * problem_.shape.hidden, problem_.shape.hidden);
  }

  RowQuantizer quantizer(const std::vector<float>& scales, std::size_t expert) const {
    const float scale = scales.empty() ? 1.0f : scales[scales.size() == 1 ? 0 : expert];
    return {.key = problem_.quantizes, .global_scale = scale};
  }
  bool quantizes_input(const ExpertsCall& call) const {
    return problem_.quantizes != ActivationKey::none && !call.in.is_quantized;
  }
  double input_factor(const ExpertsCall& call, std::size_t expert) const {
    if (call.in.is_quantized) return double{call.in.factor};
    return factor_of(quantizer(problem_.input_scales, expert));
  }
  bool rounds() const { return problem_.numerics.first != FirstRounding::none; }

  const LoraExpert* adapter_of(const ExpertsCall& call, const Assignment& assignment) const {
    if (call.lora.empty() || call.in.adapters.empty()) return nullptr;
    const std::int32_t adapter = call.in.adapters[assignment.row];
    return adapter < 0 ? nullptr
                       : &call.lora.at(static_cast<std::size_t>(adapter), assignment.expert);
  }

  // The quantizer works on float32 rows; values come back exact.
  void quantize(const RowQuantizer& how, std::span<double> values, std::span<float> buffer) const {
    for (std::size_t i = 0; i < values.size(); ++i) buffer[i] = static_cast<float>(values[i]);
    quantize_dequantize(how, buffer.first(values.size()));
    const bool folds = problem_.numerics.activations_in_bf16;
    const float factor = folds ? shared_factor(how) : 1.0f;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = folds ? rounded_to_bf16(double{buffer[i] * factor}) : double{buffer[i]};
  }
  // The factor of the accumulators of quantized values.
  double factor_of(const RowQuantizer& how) const {
    return problem_.numerics.activations_in_bf16 ? 1.0 : double{shared_factor(how)};
  }

  void gather(const ExpertsCall& call, const AssignmentGroups& groups) {
    pool_->run_ranges(
        groups.assignments.size(), 1, [&](std::size_t begin, std::size_t, std::size_t who) {
          const Assignment& assignment = groups.assignments[begin];
          const std::span<double> x = x_of(begin);
          read_row(call.in.x, assignment.row, x);
          if (quantizes_input(call))
            quantize(quantizer(problem_.input_scales, assignment.expert), x, space_.floats[who]);
        });
  }

  // Panels of all experts that have assignments, as one list of tasks.
  struct Task {
    std::size_t expert = 0;
    std::uint64_t row = 0;
  };
  static std::vector<Task> tasks_of(const AssignmentGroups& groups, std::uint64_t rows) {
    std::vector<Task> result;
    for (std::size_t e = 0; e + 1 < groups.order.begins.size(); ++e)
      if (groups.order.begins[e] != groups.order.begins[e + 1])
        for (std::uint64_t row = 0; row < rows; row += kPanelRows) result.push_back({e, row});
    return result;
  }

  struct PanelSums {
    std::span<const double> values{};  // [assignments of the expert][kPanelRows]
    std::uint64_t rows = 0;            // of the panel that exist
  };
  template <class TokenOf>
  PanelSums gemm(const Fp4Matrix& matrix, const AssignmentGroups& groups, const Task& task,
                 std::size_t who, const TokenOf& token_of) {
    const std::span<double> panel = std::span(space_.panels[who]).first(kPanelRows * matrix.k);
    dequantize_panel(matrix, task.row, panel);
    const std::size_t begin = groups.order.begins[task.expert],
                      end = groups.order.begins[task.expert + 1];
    std::array<const double*, kAssignments> tokens{};
    std::size_t done = 0;
    for (std::size_t assignment = begin; assignment < end;) {
      std::size_t count = 0;
      for (; assignment < end && count < tokens.size(); ++assignment)
        tokens[count++] = token_of(assignment);
      gemm_panel(
          panel, std::span(tokens).first(count),
          reinterpret_cast<double(*)[kPanelRows]>(space_.sums[who].data() + done * kPanelRows));
      done += count;
    }
    return {space_.sums[who], std::min<std::uint64_t>(kPanelRows, matrix.rows - task.row)};
  }

  void gemm1(const ExpertsCall& call, const AssignmentGroups& groups) {
    const std::vector<Task> tasks = tasks_of(groups, problem_.shape.w13_rows());
    pool_->run_ranges(tasks.size(), 1, [&](std::size_t index, std::size_t, std::size_t who) {
      const Task& task = tasks[index];
      Fp4Matrix matrix = weights_.w13(task.expert);
      const StoredExpert& expert = weights_.at(task.expert);
      const bool folded =
          problem_.numerics.weights_in_bf16 && matrix.format == formats::WeightFormat::nvfp4;
      if (folded) matrix.bf16_global = weights_.w13_global(task.expert, task.row);
      const PanelSums result = gemm(matrix, groups, task, who, [&](std::size_t assignment) {
        return x_of(assignment).data();
      });
      const double input = input_factor(call, task.expert);
      const std::size_t begin = groups.order.begins[task.expert];
      for (std::size_t assignment = begin; assignment < groups.order.begins[task.expert + 1];
           ++assignment) {
        for (std::uint64_t r = 0; r < result.rows; ++r) {
          const std::uint64_t row = task.row + r;
          const double global = folded ? 1.0 : double{weights_.w13_global(task.expert, row)};
          const double sum =
              result.values[(assignment - begin) * kPanelRows + r] * (input * global);
          const double bias = expert.w13_bias.empty() ? 0.0 : double{expert.w13_bias[row]};
          first_of(assignment)[row] = rounded_first(sum, bias, !expert.w13_bias.empty());
        }
      }
    });
  }

  double rounded_first(double sum, double bias, bool has_bias) const {
    switch (problem_.numerics.first) {
      case FirstRounding::none:
        return sum + bias;
      case FirstRounding::sum:
        return rounded_to_bf16(sum + bias);
      case FirstRounding::steps:
        break;
    }
    const double rounded = rounded_to_bf16(sum);
    return has_bias ? rounded_to_bf16(rounded + bias) : rounded;
  }

  void add_low_rank(const ExpertsCall& call, const Assignment& assignment, std::span<double> first,
                    std::size_t who) {
    const LoraExpert* adapter = adapter_of(call, assignment);
    if (adapter == nullptr) return;
    std::vector<double>& row = space_.low[who];
    std::vector<double> x(problem_.shape.hidden);
    read_row(call.in.x, assignment.row, std::span(x));
    if (call.in.is_quantized)
      for (double& value : x) value *= double{call.in.factor};
    const auto add = [&](const LowRank& pair, std::uint64_t at) {
      if (pair.empty()) return;
      lora_low(pair.a, x, row);
      for (std::uint64_t i = 0; i < pair.b.rows; ++i) {
        double& value = first[at + i];
        value += dot_row(pair.b, i, row);
        if (rounds()) value = rounded_to_bf16(value);
      }
    };
    add(adapter->gate, 0);
    add(adapter->up, problem_.shape.gated() ? problem_.shape.intermediate : 0);
  }

  double activated(double gate, double up) const {
    const Activation activation = problem_.activation;
    const bool apart =
        activation == Activation::silu || activation == Activation::swigluoai_uninterleave;
    double value = activate_gate(activation, problem_.params, gate);
    if (problem_.numerics.middle == MiddleRounding::gate_and_result && apart)
      value = rounded_to_bf16(value);
    if (is_gated(activation)) value *= up_factor(activation, problem_.params, up);
    return problem_.numerics.middle == MiddleRounding::none ? value : rounded_to_bf16(value);
  }

  void activate_assignments(const ExpertsCall& call, const AssignmentGroups& groups) {
    pool_->run_ranges(
        groups.assignments.size(), 1, [&](std::size_t index, std::size_t, std::size_t who) {
          const Assignment& assignment = groups.assignments[index];
          const std::span<double> first = first_of(index), middle = middle_of(index);
          add_low_rank(call, assignment, first, who);
          const std::uint64_t ups = problem_.shape.gated() ? problem_.shape.intermediate : 0;
          for (std::size_t i = 0; i < middle.size(); ++i)
            middle[i] = activated(first[i], first[ups + i]);
          if (const LoraExpert* adapter = adapter_of(call, assignment);
              adapter && !adapter->down.empty())
            lora_low(adapter->down.a, middle, space_.low_down[index]);
          else if (!space_.low_down.empty())
            space_.low_down[index].clear();
          if (is_watched(assignment)) {
            trace_->first.assign(first.begin(), first.end());
            trace_->middle.assign(middle.begin(), middle.end());
          }
          if (problem_.quantizes != ActivationKey::none)
            quantize(quantizer(problem_.hidden_scales, assignment.expert), middle,
                     space_.floats[who]);
        });
  }

  bool is_watched(const Assignment& assignment) const {
    return trace_ != nullptr && trace_->assignment == assignment.number;
  }

  // True if the global scale is part of Marlin's rounded weight. False with a bias (added before
  // it) or without a weight.
  bool folds_global(const ExpertsCall& call, const StoredExpert& expert, OutputForm form) const {
    return problem_.numerics.weight == WeightRounding::bf16_with_global &&
           problem_.shape.format == formats::WeightFormat::nvfp4 && expert.w2_bias.empty() &&
           form == OutputForm::summed && !call.weight_on_input;
  }

  struct Epilogue {
    double factor = 1.0;  // of the accumulator
    bool has_bias = false, is_weighted = true;
    double weight_factor = 1.0;  // Marlin: the global scale
  };
  double router_weight(const Assignment& assignment, const Epilogue& how) const {
    if (problem_.numerics.weight == WeightRounding::none) return assignment.weight;
    return rounded_to_bf16(static_cast<float>(assignment.weight) *
                           static_cast<float>(how.weight_factor));
  }

  double rounded_second(double sum, double bias, const Assignment& assignment,
                        const Epilogue& how) const {
    const SecondRounding second = problem_.numerics.second;
    if (second == SecondRounding::steps) {
      double value = rounded_to_bf16(sum);
      if (how.has_bias) value = rounded_to_bf16(value + bias);
      return how.is_weighted ? rounded_to_bf16(value * router_weight(assignment, how)) : value;
    }
    const double value = sum + bias;
    if (second == SecondRounding::none) return how.is_weighted ? value * assignment.weight : value;
    if (!how.is_weighted || second == SecondRounding::unweighted) return rounded_to_bf16(value);
    return rounded_to_bf16(value * router_weight(assignment, how));
  }

  void gemm2(const ExpertsCall& call, const AssignmentGroups& groups, OutputForm form) {
    const std::vector<Task> tasks = tasks_of(groups, problem_.shape.hidden);
    pool_->run_ranges(tasks.size(), 1, [&](std::size_t index, std::size_t, std::size_t who) {
      const Task& task = tasks[index];
      Fp4Matrix matrix = weights_.w2(task.expert);
      const StoredExpert& expert = weights_.at(task.expert);
      const bool folded =
          problem_.numerics.weights_in_bf16 && matrix.format == formats::WeightFormat::nvfp4;
      if (folded) matrix.bf16_global = expert.down_global;
      const PanelSums result = gemm(matrix, groups, task, who, [&](std::size_t assignment) {
        return middle_of(assignment).data();
      });
      Epilogue how{.has_bias = !expert.w2_bias.empty(),
                   .is_weighted = form == OutputForm::summed && !call.weight_on_input};
      const double global = folded ? 1.0 : double{expert.down_global};
      const bool in_weight = folds_global(call, expert, form);
      how.factor =
          factor_of(quantizer(problem_.hidden_scales, task.expert)) * (in_weight ? 1.0 : global);
      if (in_weight) how.weight_factor = global;
      const std::size_t begin = groups.order.begins[task.expert];
      for (std::size_t assignment = begin; assignment < groups.order.begins[task.expert + 1];
           ++assignment)
        for (std::uint64_t r = 0; r < result.rows; ++r) {
          const std::uint64_t row = task.row + r;
          const double sum = result.values[(assignment - begin) * kPanelRows + r] * how.factor;
          const double bias = how.has_bias ? double{expert.w2_bias[row]} : 0.0;
          second_of(assignment)[row] =
              rounded_second(sum, bias, groups.assignments[assignment], how);
        }
    });
    finish_assignments(call, groups, form);
  }

  // Low-rank additions to GEMM2, and weights that are applied in the sum.
  void finish_assignments(const ExpertsCall& call, const AssignmentGroups& groups,
                          OutputForm form) {
    const bool is_weighted = form == OutputForm::summed && !call.weight_on_input;
    const SecondRounding second = problem_.numerics.second;
    pool_->run(groups.assignments.size(), [&](std::size_t index) {
      const Assignment& assignment = groups.assignments[index];
      const std::span<double> values = second_of(index);
      const bool weighted_later = second == SecondRounding::unweighted && is_weighted;
      const double applied = is_weighted && !weighted_later ? assignment.weight : 1.0;
      if (!space_.low_down.empty() && !space_.low_down[index].empty()) {
        const LoraExpert* adapter = adapter_of(call, assignment);
        for (std::uint64_t row = 0; row < values.size(); ++row) {
          values[row] += applied * dot_row(adapter->down.b, row, space_.low_down[index]);
          if (second != SecondRounding::none) values[row] = rounded_to_bf16(values[row]);
        }
      }
      if (weighted_later)
        for (double& value : values) value *= router_weight(assignment, {});
      if (is_watched(assignment)) {
        trace_->second.assign(values.begin(), values.end());
        trace_->is_seen = true;
      }
    });
  }

  void sum_rows(const AssignmentGroups& groups, std::uint64_t begin, std::uint64_t end,
                const MutableRows& out) {
    pool_->run_ranges(end - begin, 1, [&](std::size_t index, std::size_t, std::size_t who) {
      const std::span<double> sums = std::span(space_.panels[who]).first(problem_.shape.hidden);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (const std::size_t assignment : groups.of_row(begin + index)) {
        if (assignment == AssignmentGroups::kNone) continue;
        const std::span<const double> values = second_of(assignment);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
      }
      if (problem_.numerics.rounds_sum)
        for (double& sum : sums) sum = rounded_to_bf16(sum);
      write_row(std::span<const double>(sums), out, begin + index);
    });
  }

  // Assignments of no expert here become zeros, so that no memory is read before it is written.
  void write_assignments(const AssignmentGroups& groups, OutputForm form, std::uint64_t begin,
                         std::uint64_t end, const MutableRows& out) {
    pool_->run(groups.assignments.size(), [&](std::size_t index) {
      write_row(std::span<const double>(second_of(index)), out, groups.assignments[index].number);
    });
    if (form != OutputForm::assignments) return;
    const std::vector<double> zeros(problem_.shape.hidden, 0.0);
    for (std::uint64_t row = begin; row < end; ++row)
      for (std::uint64_t j = 0; j < groups.top_k; ++j)
        if (groups.of_row(row)[j] == AssignmentGroups::kNone)
          write_row(std::span<const double>(zeros), out, row * groups.top_k + j);
  }

  ExpertsProblem problem_;
  StoredExperts weights_;
  std::shared_ptr<ThreadPool> pool_;
  Workspace space_{};
  Trace* trace_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<ReferenceExperts>> ReferenceEngine::make_reference(
    const ExpertsProblem& problem, const ExpertSource& source) const {
  if (const auto fine = check(problem); !fine) return fine.why();
  Result<StoredExperts> weights = StoredExperts::load(source, *pool_);
  if (!weights) return weights.why();
  return std::unique_ptr<ReferenceExperts>(
      std::make_unique<Computation>(problem, std::move(*weights), pool_));
}

Result<std::unique_ptr<Experts>> ReferenceEngine::make(const ExpertsProblem& problem,
                                                       const ExpertSource& source) const {
  Result<std::unique_ptr<ReferenceExperts>> result = make_reference(problem, source);
  if (!result) return result.why();
  return std::unique_ptr<Experts>(std::move(*result));
}

}  // namespace fp4moe::moe::reference
