#include "fp4moe/moe/cpu/engine.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/moe/cpu/epilogue.hpp"
#include "fp4moe/moe/cpu/workspace.hpp"
#include "fp4moe/moe/expert_order.hpp"
#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::moe::cpu {
namespace {

using formats::WeightFormat;
using kernels::cpu::GemmKernel;
using kernels::cpu::kChunk;
using kernels::cpu::kGemmTokens;
using kernels::cpu::padded_tokens;

// True if values can be quantized chunk by chunk.
bool fits_chunks(ActivationKey key) {
  return key != ActivationKey::fp8_block128 && key != ActivationKey::fp8_token &&
         key != ActivationKey::nvfp4_token;
}

struct Kernels {
  const GemmKernel& gemm;
  const kernels::cpu::ElementwiseFunctions& elementwise;
};

class Computation final : public Experts {
 public:
  Computation(ExpertsProblem problem, const Kernels& kernels, CpuWeights weights,
              std::shared_ptr<ThreadPool> pool)
      : problem_(std::move(problem)),
        kernel_(kernels.gemm),
        elementwise_(kernels.elementwise),
        weights_(std::move(weights)),
        pool_(std::move(pool)),
        spaces_(Workspaces::of(pool_)),
        limbs_(problem_.numerics.activation_bits == 8 ? 1 : 2) {}

  // Checks that there is memory for calls at all.
  Result<Done> check_workspace() { return Borrowed(*this).result; }

  const ExpertsProblem& problem() const override { return problem_; }
  std::string_view engine() const override { return "cpu"; }
  std::string kernel() const override {
    const std::string_view isa = kernel_.name.substr(0, kernel_.name.find('/'));
    const std::string_view id = problem_.numerics.id;
    const std::string_view where = weights_.is_mapped() ? "+mapped" : "";
    if (id == "exact" || id == "native") return fmt::format("{}/exact{}", isa, where);
    if (id == "fast") return fmt::format("{}/fast{}", isa, where);
    return fmt::format("{}/match:{}{}", isa, id, where);
  }

  Result<Done> compute(const ExpertsCall& call, OutputForm form, const MutableRows& out) override {
    if (const auto fine = check(problem_, call, form, out); !fine) return fine.why();
    const bool is_batched = form == OutputForm::batches;
    const std::uint64_t rows = is_batched ? occupied(call.in) : call.in.x.rows;
    const std::uint64_t step =
        is_batched ? kPassAssignments
                   : std::max<std::uint64_t>(
                         1, kPassAssignments / std::max<std::uint64_t>(1, call.in.top_k));
    const Borrowed borrowed(*this);
    if (!borrowed.result) return borrowed.result.why();
    for (std::uint64_t begin = 0; begin < rows; begin += step) {
      if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
      space_.pass.group(call, problem_.shape.experts, begin, std::min(rows, begin + step));
      needs_ = needs_of(call, form);
      if (const auto done = space_.reserve(kernel_, needs_); !done) return done.why();
      place_inputs(call);
      gemm1(call);
      if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
      if (needs_.keeps_middle) place_middles(call);
      gemm2(call, form, out);
    }
    return Done{};
  }

 private:
  // The workspace, for as long as a call.
  struct Borrowed {
    explicit Borrowed(Computation& caller) : who(caller) {
      who.space_ = who.spaces_->take();
      result = who.space_.make(who.weights_, who.pool_->threads());
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ~Borrowed() { who.spaces_->give(std::move(who.space_)); }

    Computation& who;
    Result<Done> result = Done{};
  };

  bool has_adapters(const ExpertsCall& call) const {
    return !call.lora.empty() && !call.in.adapters.empty();
  }
  const LoraExpert* adapter_of(const ExpertsCall& call, std::size_t assignment) const {
    if (!has_adapters(call)) return nullptr;
    const CpuAssignment& at = space_.pass.assignments[assignment];
    const std::int32_t adapter = call.in.adapters[space_.pass.rows[at.item]];
    if (adapter < 0) return nullptr;
    return &call.lora.at(static_cast<std::size_t>(adapter), space_.pass.units[at.unit].expert);
  }

  Needs needs_of(const ExpertsCall& call, OutputForm form) const {
    Needs result{.keeps_middle = has_adapters(call) || !fits_chunks(problem_.quantizes),
                 .kept_rows = form == OutputForm::summed ? kept_rows() : 0,
                 .limbs = limbs_};
    if (has_adapters(call))
      for (const LoraExpert& pair : call.lora.pairs)
        for (const LowRank* part : {&pair.gate, &pair.up, &pair.down})
          result.rank = std::max<std::size_t>(result.rank, part->a.rows);
    return result;
  }

  // The number of output rows that stay in the cache: all rows if there are few tokens.
  std::size_t kept_rows() const {
    const std::size_t hidden = problem_.shape.hidden, assignments = space_.pass.assignments.size();
    const bool fits = hidden <= kMaxKeptRows && assignments * hidden * sizeof(float) <= kNearBytes;
    return fits ? hidden : std::min(hidden, kMinKeptRows);
  }
  // The rows of a task of GEMM2: fewer if there are more threads.
  std::size_t second_rows(std::size_t rows) const {
    constexpr std::size_t kMin = 64, kMax = 256, kTasks = 8;
    std::size_t result = kMax;
    while (result > kMin && space_.by_size.size() * rows < result * kTasks * pool_->threads())
      result /= 2;
    return result;
  }

  RowQuantizer quantizer(const std::vector<float>& scales, std::size_t expert) const {
    const float scale = scales.empty() ? 1.0f : scales[scales.size() == 1 ? 0 : expert];
    return {.key = problem_.quantizes, .global_scale = scale};
  }
  // The factor of the sums of quantized values.
  double factor_of(const RowQuantizer& how) const {
    return problem_.numerics.activations_in_bf16 ? 1.0 : double{shared_factor(how)};
  }
  double input_factor(const ExpertsCall& call, std::size_t expert) const {
    if (call.in.is_quantized) return double{call.in.factor};
    return factor_of(quantizer(problem_.input_scales, expert));
  }

  void quantize(const RowQuantizer& how, std::span<float> values) const {
    quantize_dequantize(how, values);
    if (!problem_.numerics.activations_in_bf16) return;
    const float factor = shared_factor(how);
    for (float& value : values) value *= factor;
    round_values(values.data(), values.size());
  }

  // Values of whole chunks from `chunk` on, as integers into a token's place.
  struct Target {
    Panels& panels;
    std::size_t assignment = 0, chunk = 0, chunks = 0;
  };
  void round(const Target& to, const float* values, Scratch& scratch) const {
    elementwise_.round({.values = values,
                        .count = to.chunks * kChunk,
                        .limit = kernels::cpu::kLimit[limbs_],
                        .rounded = scratch.rounded.as<std::int16_t>().data(),
                        .half_steps = scratch.steps.as<float>().data()});
    if (!weights_.is_zipped()) return;
    const auto from = scratch.rounded.as<std::int16_t>();
    const auto ordered = scratch.ordered.as<std::int16_t>();
    const auto& zipped = kernel_.tiles->zipped;
    for (std::size_t at = 0; at < to.chunks * kChunk; at += zipped.size())
      for (std::size_t i = 0; i < zipped.size(); ++i) ordered[at + i] = from[at + zipped[i]];
  }
  void place(const Target& to, Scratch& scratch) const {
    const CpuAssignment& assignment = space_.pass.assignments[to.assignment];
    const Unit& unit = space_.pass.units[assignment.unit];
    const std::size_t token = to.assignment - unit.first, padded = padded_tokens(unit.count);
    const tensor::Buffer& values = weights_.is_zipped() ? scratch.ordered : scratch.rounded;
    kernel_.pack_tokens(limbs_)({.values = values.as<std::int16_t>().data(),
                                 .first_column = to.chunk * kChunk,
                                 .columns = to.chunks * kChunk,
                                 .token = token,
                                 .tokens = unit.count,
                                 .chunks = to.panels.chunks,
                                 .panel = to.panels.panel(assignment.unit)});
    float* steps = to.panels.steps(assignment.unit) + to.chunk * padded;
    const auto result = scratch.steps.as<float>();
    for (std::size_t c = 0; c < to.chunks; ++c) {
      steps[c * padded + token] = result[c];
      if (token + 1 == unit.count)
        std::fill(steps + c * padded + unit.count, steps + (c + 1) * padded, 0.0f);
    }
  }

  float* low_of(std::size_t assignment, std::size_t which) {
    return space_.low.as<float>().data() + (assignment * 3 + which) * needs_.rank;
  }
  static void lora_low(const LowRank& pair, const float* values, float* to) {
    for (std::uint64_t r = 0; r < pair.a.rows; ++r)
      to[r] = dot(pair.a.row(r).data(), values, pair.a.columns);
  }

  // Tokens are rounded once, but where experts have scales of their own.
  void place_inputs(const ExpertsCall& call) {
    const Pass& pass = space_.pass;
    const bool quantizes = problem_.quantizes != ActivationKey::none && !call.in.is_quantized;
    const bool apart = quantizes && problem_.input_scales.size() > 1;
    pool_->run_ranges(pass.rows.size(), 1, [&](std::size_t item, std::size_t, std::size_t who) {
      Scratch& scratch = space_.threads[who];
      const auto order = pass.order().subspan(item * pass.width, pass.width);
      const std::span<float> all = scratch.values.as<float>().first(space_.x.chunks * kChunk);
      const std::span<float> values = all.first(problem_.shape.hidden);
      bool is_rounded = false;
      for (const std::uint32_t assignment : order) {
        if (assignment == Pass::kNone) continue;
        const std::size_t expert = pass.units[pass.assignments[assignment].unit].expert;
        const Target target{space_.x, assignment, 0, space_.x.chunks};
        const LoraExpert* adapter = adapter_of(call, assignment);
        if (!is_rounded || apart || adapter != nullptr) {
          read_row(call.in.x, pass.rows[item], values);
          std::fill(all.begin() + static_cast<std::ptrdiff_t>(values.size()), all.end(), 0.0f);
          if (adapter != nullptr) add_low_inputs(call, *adapter, assignment, values);
          if (quantizes) quantize(quantizer(problem_.input_scales, expert), values);
          round(target, all.data(), scratch);
          is_rounded = true;
        }
        place(target, scratch);
      }
    });
  }

  // A_gate x and A_up x.
  void add_low_inputs(const ExpertsCall& call, const LoraExpert& adapter, std::size_t assignment,
                      std::span<const float> values) {
    const float factor = call.in.is_quantized ? call.in.factor : 1.0f;
    for (std::size_t which = 0; which < 2; ++which) {
      const LowRank& pair = which == 0 ? adapter.gate : adapter.up;
      lora_low(pair, values.data(), low_of(assignment, which));
      for (std::uint64_t r = 0; r < pair.a.rows; ++r) low_of(assignment, which)[r] *= factor;
    }
  }

  kernels::cpu::GemmCall gemm_call(const CpuMatrix& matrix, std::size_t first, std::size_t rows,
                                   Scratch& scratch) const {
    kernels::cpu::GemmCall result{.weights = matrix.tiles, .first_row = first, .rows = rows};
    if (!matrix.is_mapped()) return result;
    auto* codes = scratch.codes.as<std::uint8_t>().data();
    auto* scales = scratch.scales.as<std::uint8_t>().data();
    kernels::cpu::cut_tiles(*kernel_.tiles, matrix.rows, first, rows, codes, scales);
    result.weights.codes = codes;
    result.weights.scales = scales;
    result.first_row = 0;
    return result;
  }

  // A task yields the activations of one chunk of one unit.
  void gemm1(const ExpertsCall& call) {
    const kernels::cpu::GemmFunction gemm = kernel_.gemm(problem_.shape.format, limbs_);
    const std::size_t projections = problem_.shape.gated() ? 2 : 1;
    // One thread takes neighbors in memory: reading on is faster than starting elsewhere.
    pool_->run_stretches(
        space_.tasks.size(), [&](std::size_t begin, std::size_t end, std::size_t who) {
          Scratch& scratch = space_.threads[who];
          for (std::size_t index = begin, taken = 1; index < end; index += taken) {
            const Workspace::Task task = space_.tasks[index];
            const Unit& unit = space_.pass.units[task.unit];
            const CpuExpert& expert = weights_.at(unit.expert);
            taken = neighbors(index, std::min(end - index, rows_at_once(unit) / kFirstRows));
            const std::size_t first = task.chunk * kChunk * projections;
            const std::size_t rows =
                std::min(taken * kChunk * projections, expert.w13.padded_rows - first);
            auto result = gemm_call(expert.w13, first, rows, scratch);
            result.tokens = space_.x.tokens(task.unit, unit.count);
            result.sums = scratch.sums.as<float>().data();
            result.stride = taken * kFirstRows;
            gemm(result);
            for (std::size_t c = 0; c < taken; ++c)
              finish_middle(call, space_.tasks[index + c], result.sums + c * kChunk * projections,
                            result.stride, scratch);
          }
        });
  }

  // GEMM rows per task: more for few tokens, because epilogues interrupt the stream of weights. A
  // multiple of kFirstRows.
  std::size_t rows_at_once(const Unit& unit) const {
    constexpr std::size_t kMax = 24;
    if (weights_.is_mapped()) return kFirstRows;
    return std::clamp<std::size_t>(kGemmTokens / unit.count, 1, kMax) * kFirstRows;
  }

  // The number of tasks from `index` on, at most `max`, that are one unit's neighboring chunks.
  std::size_t neighbors(std::size_t index, std::size_t max) const {
    const Workspace::Task first = space_.tasks[index];
    std::size_t count = 1;
    while (count < max && space_.tasks[index + count].unit == first.unit &&
           space_.tasks[index + count].chunk == first.chunk + count)
      ++count;
    return count;
  }

  void finish_middle(const ExpertsCall& call, const Workspace::Task& task, const float* sums,
                     std::size_t stride, Scratch& scratch) {
    const Unit& unit = space_.pass.units[task.unit];
    const CpuExpert& expert = weights_.at(unit.expert);
    const double input = input_factor(call, unit.expert);
    const std::size_t first = task.chunk * kChunk;
    const std::size_t columns = std::min<std::size_t>(kChunk, problem_.shape.intermediate - first);
    const auto part = [&](const float* bias) { return bias == nullptr ? bias : bias + first; };
    const FirstEpilogue how{.functions = elementwise_,
                            .rounding = problem_.numerics.first,
                            .is_gated = problem_.shape.gated(),
                            .gate_factor = static_cast<float>(input * double{expert.gate_global}),
                            .up_factor = static_cast<float>(input * double{expert.up_global}),
                            .gate_bias = part(expert.gate_bias),
                            .up_bias = part(expert.up_bias)};
    const MiddleEpilogue middle{.functions = elementwise_,
                                .activation = problem_.activation,
                                .params = problem_.params,
                                .rounding = problem_.numerics.middle};
    FirstChunk chunk;
    float values[kChunk];
    for (std::uint32_t t = 0; t < unit.count; ++t) {
      const std::size_t assignment = unit.first + t;
      finish_first(how, sums + t * stride, chunk);
      if (const LoraExpert* adapter = adapter_of(call, assignment))
        add_low_first(*adapter, assignment, first, columns, chunk);
      activate_chunk(middle, chunk, values);
      std::fill(values + columns, values + kChunk, 0.0f);
      if (needs_.keeps_middle) {
        std::copy_n(values, kChunk, middle_of(assignment) + first);
        continue;
      }
      if (problem_.quantizes != ActivationKey::none)
        quantize(quantizer(problem_.hidden_scales, unit.expert), {values, columns});
      const Target target{space_.h, assignment, task.chunk, 1};
      round(target, values, scratch);
      place(target, scratch);
    }
  }

  float* middle_of(std::size_t assignment) {
    return space_.middle.as<float>().data() + assignment * space_.h.chunks * kChunk;
  }

  // B (A x) onto `columns` gates and ups from `first`. Without a gate both go to the one value.
  void add_low_first(const LoraExpert& adapter, std::size_t assignment, std::size_t first,
                     std::size_t columns, FirstChunk& chunk) {
    const bool rounds = problem_.numerics.first != FirstRounding::none;
    for (std::size_t which = 0; which < 2; ++which) {
      const LowRank& pair = which == 0 ? adapter.gate : adapter.up;
      if (pair.empty()) continue;
      float* to = which == 1 && problem_.shape.gated() ? chunk.ups : chunk.gates;
      for (std::size_t i = 0; i < columns; ++i)
        to[i] += dot(pair.b.row(first + i).data(), low_of(assignment, which), pair.a.rows);
      if (rounds) round_values(to, columns);
    }
  }

  // Whole rows of h: A_down h, quantized by rows, rounded.
  void place_middles(const ExpertsCall& call) {
    pool_->run_ranges(space_.pass.assignments.size(), 1,
                      [&](std::size_t assignment, std::size_t, std::size_t who) {
                        const std::size_t expert =
                            space_.pass.units[space_.pass.assignments[assignment].unit].expert;
                        float* values = middle_of(assignment);
                        if (const LoraExpert* adapter = adapter_of(call, assignment))
                          lora_low(adapter->down, values, low_of(assignment, 2));
                        if (problem_.quantizes != ActivationKey::none)
                          quantize(quantizer(problem_.hidden_scales, expert),
                                   {values, static_cast<std::size_t>(problem_.shape.intermediate)});
                        const Target target{space_.h, assignment, 0, space_.h.chunks};
                        round(target, values, space_.threads[who]);
                        place(target, space_.threads[who]);
                      });
  }

  // True if the global scale is part of Marlin's rounded weight. False with a bias (added before
  // it) or without a weight.
  bool folds_global(const CpuExpert& expert, bool is_weighted) const {
    return problem_.numerics.weight == WeightRounding::bf16_with_global && is_weighted &&
           problem_.shape.format == WeightFormat::nvfp4 && expert.down_bias == nullptr;
  }
  float router_weight(float weight, float factor) const {
    if (problem_.numerics.weight == WeightRounding::none) return weight;
    float rounded = weight * factor;
    round_values(&rounded, 1);
    return rounded;
  }

  struct Output {
    OutputForm form = OutputForm::summed;
    const MutableRows& rows;
    bool is_weighted = true;
    std::size_t first = 0;  // the column that kept values begin with
  };
  // Rows of the matrix: [first, first + padded), of which `real` exist; columns of the output.
  struct Range {
    std::size_t first = 0, padded = 0, real = 0;

    MutableRows of(const MutableRows& out) const {
      MutableRows part = out;
      part.data += first * element_bytes(out.dtype);
      part.columns = real;
      return part;
    }
  };

  // A task is a unit and some rows of its matrix. If a token's values are summed, they are stored
  // first and then added by expert: the order is fixed.
  void gemm2(const ExpertsCall& call, OutputForm form, const MutableRows& out) {
    const bool sums = form == OutputForm::summed;
    const std::size_t hidden = problem_.shape.hidden, items = space_.pass.rows.size();
    const std::size_t at_once = sums ? needs_.kept_rows : hidden;
    for (std::size_t first = 0; first < hidden; first += at_once) {
      const std::size_t end = std::min(hidden, first + at_once);
      const std::size_t step = second_rows(end - first), parts = ceil_div(end - first, step);
      const Output to{form, out, sums && !call.weight_on_input, first};
      pool_->run_stretches(
          space_.by_size.size() * parts, [&](std::size_t begin, std::size_t stop, std::size_t who) {
            while (begin < stop) {  // neighbors of one unit at once
              const std::size_t part = begin % parts, count = std::min(parts - part, stop - begin);
              const std::size_t from = first + part * step;
              const std::size_t rows = std::min(count * step, end - from);
              gemm2_part(call, to, space_.by_size[begin / parts],
                         {from, round_up(rows, kRowPadding), rows}, space_.threads[who]);
              begin += count;
            }
          });
      if (sums)
        pool_->run_ranges(items, 1, [&](std::size_t item, std::size_t, std::size_t who) {
          sum_kept(item, {first, end - first, end - first}, out, space_.threads[who]);
        });
    }
    if (form == OutputForm::assignments) clear_assignments(out);
  }

  // A unit and as many rows as there are, a GEMM's at a time.
  void gemm2_part(const ExpertsCall& call, const Output& to, std::size_t unit, const Range& range,
                  Scratch& scratch) {
    const std::size_t step = rows_at_once(space_.pass.units[unit]);
    for (std::size_t at = 0; at < range.real; at += step)
      gemm2_unit(
          call, to, unit,
          {range.first + at, std::min(step, range.padded - at), std::min(step, range.real - at)},
          scratch);
  }

  float* kept_of(std::size_t assignment) {
    return space_.kept.as<float>().data() + assignment * needs_.kept_rows;
  }

  void sum_kept(std::size_t item, const Range& range, const MutableRows& out, Scratch& scratch) {
    const Pass& pass = space_.pass;
    float* total = scratch.sums.as<float>().data();
    std::fill_n(total, range.real, 0.0f);
    // Assignments are numbered by expert; `order` lists a token's as it chose them. They are few,
    // so the next one is found by a linear search.
    const auto order = pass.order().subspan(item * pass.width, pass.width);
    std::int64_t last = -1;
    for (;;) {
      std::int64_t next = Pass::kNone;
      for (const std::uint32_t assignment : order)
        if (assignment > last && assignment < next) next = assignment;
      if (next == Pass::kNone) break;
      elementwise_.add(kept_of(static_cast<std::size_t>(next)), range.real, total);
      last = next;
    }
    if (problem_.numerics.rounds_sum) round_values(total, range.real);
    write_row(std::span<const float>(total, range.real), range.of(out), pass.rows[item]);
  }

  void gemm2_unit(const ExpertsCall& call, const Output& to, std::size_t number, const Range& range,
                  Scratch& scratch) {
    const Unit& unit = space_.pass.units[number];
    const CpuExpert& expert = weights_.at(unit.expert);
    const std::size_t rows = std::min(range.padded, expert.w2.padded_rows - range.first);
    auto result = gemm_call(expert.w2, range.first, rows, scratch);
    result.tokens = space_.h.tokens(number, unit.count);
    result.sums = scratch.sums.as<float>().data();
    result.stride = range.padded;
    kernel_.gemm(problem_.shape.format, limbs_)(result);

    const bool in_weight = folds_global(expert, to.is_weighted);
    const double hidden = factor_of(quantizer(problem_.hidden_scales, unit.expert));
    const SecondEpilogue how{
        .rounding = problem_.numerics.second,
        .factor = static_cast<float>(hidden * (in_weight ? 1.0 : double{expert.down_global})),
        .bias = expert.down_bias == nullptr ? nullptr : expert.down_bias + range.first,
        .is_weighted = to.is_weighted};
    const bool later = how.rounding == SecondRounding::unweighted && to.is_weighted;
    const MutableRows part = range.of(to.rows);
    const std::size_t at = range.first - to.first;
    const bool is_plain = how.rounding == SecondRounding::none && !has_adapters(call) &&
                          to.form == OutputForm::summed;
    for (std::uint32_t t = 0; t < unit.count; ++t) {
      const CpuAssignment& assignment = space_.pass.assignments[unit.first + t];
      float* values = result.sums + t * result.stride;
      const float weight = router_weight(assignment.weight, in_weight ? expert.down_global : 1.0f);
      if (is_plain) {
        elementwise_.weigh({.sums = values,
                            .count = range.real,
                            .factor = how.factor,
                            .weight = how.is_weighted ? weight : 1.0f,
                            .bias = how.bias,
                            .to = kept_of(unit.first + t) + at});
        continue;
      }
      finish_second(how, weight, range.real, values);
      if (const LoraExpert* adapter = adapter_of(call, unit.first + t))
        add_low_second(adapter->down, unit.first + t, to.is_weighted && !later, range, values);
      if (to.form == OutputForm::summed)
        copy_scaled(values, later ? weight : 1.0f, range.real, kept_of(unit.first + t) + at);
      else
        write_row(std::span<const float>(values, range.real), part, assignment.number);
    }
  }

  // B_down (A_down h), with the weight where that is applied here.
  void add_low_second(const LowRank& pair, std::size_t assignment, bool is_weighted,
                      const Range& range, float* values) {
    if (pair.empty()) return;
    const float weight = is_weighted ? space_.pass.assignments[assignment].weight : 1.0f;
    for (std::size_t i = 0; i < range.real; ++i)
      values[i] +=
          weight * dot(pair.b.row(range.first + i).data(), low_of(assignment, 2), pair.a.rows);
    if (problem_.numerics.second != SecondRounding::none) round_values(values, range.real);
  }

  // Assignments of no expert here become zeros, so that no memory is read before it is written.
  void clear_assignments(const MutableRows& out) const {
    const Pass& pass = space_.pass;
    for (std::size_t i = 0; i < pass.order().size(); ++i)
      if (pass.order()[i] == Pass::kNone)
        std::memset(out.row(pass.rows[i / pass.width] * pass.width + i % pass.width), 0,
                    problem_.shape.hidden * element_bytes(out.dtype));
  }

  ExpertsProblem problem_;
  const GemmKernel& kernel_;
  const kernels::cpu::ElementwiseFunctions& elementwise_;
  CpuWeights weights_;
  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<Workspaces> spaces_;
  std::size_t limbs_;
  Workspace space_{};  // borrowed
  Needs needs_{};
};

}  // namespace

Result<std::unique_ptr<Experts>> CpuEngine::make(const ExpertsProblem& problem,
                                                 const ExpertSource& source) const {
  if (problem.numerics.weights_in_bf16 && problem.shape.format == WeightFormat::nvfp4)
    return reference::ReferenceEngine(pool_).make(problem, source);
  if (const auto fine = check(problem); !fine) return fine.why();
  const auto features = options_.features.value_or(kernels::cpu::machine_features());
  const Kernels kernels{
      kernels::cpu::pick(kernels::cpu::gemm_kernels(), features),
      *kernels::cpu::pick(kernels::cpu::elementwise_kernels(), features).functions};
  Result<CpuWeights> weights = CpuWeights::make(source, *kernels.gemm.tiles, options_.home, *pool_);
  if (!weights) return weights.why();
  auto result = std::make_unique<Computation>(problem, kernels, std::move(*weights), pool_);
  if (const auto done = result->check_workspace(); !done) return done.why();
  return std::unique_ptr<Experts>(std::move(result));
}

}  // namespace fp4moe::moe::cpu
