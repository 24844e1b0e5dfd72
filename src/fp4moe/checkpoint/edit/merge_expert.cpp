#include "fp4moe/checkpoint/edit/merge_expert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/codec.hpp"

namespace fp4moe::checkpoint {
namespace {

using kernels::cpu::Element;

constexpr std::uint64_t kMergePiece = std::uint64_t{1} << 17;  // numbers at a time
constexpr Projection kMergeOrder[] = {Projection::gate, Projection::up, Projection::down};
// The largest value of an NVFP4 tensor with global scale 1: the largest code times the largest
// scale.
constexpr double kNvfp4Reach = 6.0 * 448.0;

Result<Done> reserve(tensor::Buffer& buffer, std::uint64_t bytes) {
  if (buffer.size() >= bytes) return Done{};
  Result<tensor::Buffer> larger = tensor::Buffer::allocate(bytes);
  if (!larger) return larger.why();
  buffer = *std::move(larger);
  return Done{};
}

Matrix matrix_for(Projection which) {
  return which == Projection::gate ? Matrix::gate
         : which == Projection::up ? Matrix::up
                                   : Matrix::down;
}

std::uint64_t matrix_bytes(const MoeShape& shape) {
  const std::uint64_t numbers = shape.hidden * shape.intermediate;
  return round_up(numbers / 2, 64) + round_up(numbers / block_size(shape.format), 64);
}

std::uint64_t piece_of(const MoeShape& shape) {
  return std::max({kMergePiece, shape.hidden, shape.intermediate});
}

const std::uint8_t* codes_at(std::span<const std::byte> row) {
  return reinterpret_cast<const std::uint8_t*>(row.data());
}

}  // namespace

void MergeSums::add(const MergeSums& other) {
  squared += other.squared;
  squared_error += other.squared_error;
  squared_change += other.squared_change;
}

MergeError MergeSums::error() const {
  if (squared <= 0) return {};
  return {.rounding = std::sqrt(squared_error / squared),
          .change = std::sqrt(squared_change / squared)};
}

// Four rows of `a` in one pass save three of four loads and stores of `out`.
void add_low_rank_row(std::span<const float> b, const float* a, std::span<float> out) {
  const std::size_t columns = out.size();
  std::size_t k = 0;
  for (; k + 4 <= b.size(); k += 4) {
    const float b0 = b[k], b1 = b[k + 1], b2 = b[k + 2], b3 = b[k + 3];
    const float *a0 = a + k * columns, *a1 = a0 + columns, *a2 = a1 + columns, *a3 = a2 + columns;
    for (std::size_t c = 0; c < columns; ++c) {
      float sum = out[c] + b0 * a0[c];
      sum += b1 * a1[c];
      sum += b2 * a2[c];
      out[c] = sum + b3 * a3[c];
    }
  }
  for (; k < b.size(); ++k)
    for (std::size_t c = 0; c < columns; ++c) out[c] += b[k] * a[k * columns + c];
}

struct ExpertMerger::Job {
  const LayerTensors* layer = nullptr;
  std::uint64_t expert = 0;
  std::size_t position = 0;  // of the layer
  Projection which = Projection::up;
  const ProjectionView* from = nullptr;
  std::uint64_t k = 0;
  bool has_factors = false;
  // NVFP4: g and 1 / g of what is read and of what is written; files store the one or the other.
  float old_divisor = 1, divisor = 1, multiplier = 1;
  float amax = 0;
  std::byte *codes = nullptr, *scales = nullptr;
  MergeSums sums{};
};

std::uint64_t ExpertMerger::memory(const MoeShape& shape, std::uint64_t rank) {
  // The expert in the file (GGUF: and unpacked), the new one, three pieces, both factors.
  return 9 * matrix_bytes(shape) + 3 * piece_of(shape) * sizeof(float) +
         3 * rank * (shape.hidden + shape.intermediate) * sizeof(float);
}

// False when the change is zero throughout: the matrix keeps its bytes.
Result<bool> ExpertMerger::load_factors(Job& job) {
  const LowRankPlace& place = adapter_->place(job.position, job.which, job.expert);
  if (place.empty()) return false;
  tensor::Buffer& a = a_[static_cast<std::size_t>(job.which)];
  tensor::Buffer& b = b_[static_cast<std::size_t>(job.which)];
  const std::uint64_t of_a = place.a.rows * place.a.columns;
  const std::uint64_t of_b = place.b.rows * place.b.columns;
  if (Result<Done> done = reserve(a, of_a * sizeof(float)); !done) return done.why();
  if (Result<Done> done = reserve(b, of_b * sizeof(float)); !done) return done.why();
  const std::span<float> numbers_a = a.as<float>().first(of_a);
  const std::span<float> numbers_b = b.as<float>().first(of_b);
  if (Result<Done> done =
          read_factor(*adapter_, place.a, {{0, place.a.rows}, {0, place.a.columns}}, numbers_a);
      !done)
    return done.why();
  if (Result<Done> done = read_factor(
          *adapter_, place.b, {{0, place.b.rows}, {0, place.b.columns}, place.scale}, numbers_b);
      !done)
    return done.why();
  const auto is_zero = [](float value) { return value == 0; };
  return !std::ranges::all_of(numbers_a, is_zero) && !std::ranges::all_of(numbers_b, is_zero);
}

Result<Done> ExpertMerger::quantize_rows(Job& job, std::uint64_t begin, std::uint64_t end) {
  const MoeShape& shape = job.layer->shape;
  const bool is_mxfp4 = shape.format == WeightFormat::mxfp4;
  const kernels::cpu::BlockCodec& codec = machine_codec();
  const std::uint64_t row_blocks = job.k / block_size(shape.format);
  const std::uint64_t count = (end - begin) * job.k;
  float* values = values_.as<float>().data();
  float* change = change_.as<float>().data();
  const bool divides = job.layer->row->global_scale == GlobalScale::divides;
  const auto dequantize = [&](kernels::cpu::DequantizeBlocks blocks, float multiplier,
                              float divisor) {
    blocks.element = Element::f32;
    blocks.global_kind =
        divides ? kernels::cpu::GlobalScaleUse::divisor : kernels::cpu::GlobalScaleUse::multiplier;
    blocks.global_scale = divides ? divisor : multiplier;
    (is_mxfp4 ? codec.dequantize_mxfp4 : codec.dequantize_nvfp4)(blocks);
  };
  std::fill_n(change, count, 0.0f);
  for (std::uint64_t row = begin; row < end; ++row) {
    const std::uint64_t at = (row - begin) * job.k;
    dequantize({.codes = codes_at(job.from->codes.row(row)),
                .scales = codes_at(job.from->scales.row(row)),
                .blocks = row_blocks,
                .output = values + at},
               job.from->global_scale, job.old_divisor);
    if (!job.has_factors) continue;
    const LowRankPlace& place = adapter_->place(job.position, job.which, job.expert);
    const float* a = a_[static_cast<std::size_t>(job.which)].as<const float>().data();
    const float* b = b_[static_cast<std::size_t>(job.which)].as<const float>().data();
    add_low_rank_row({b + row * place.rank(), place.rank()}, a, {change + at, job.k});
  }
  for (std::uint64_t i = 0; i < count; ++i) values[i] += change[i];
  const float amax =
      codec.max_magnitude({.input = values, .element = Element::f32, .count = count});
  if (!std::isfinite(amax))
    return invalid("merge.not_finite", "a merged weight is not a finite number")
        .in(adapter_->folder())
        .at(job.layer->places(job.which, job.expert).codes.tensor->entry.name)
        .expects("finite weights",
                 fmt::format("{} in rows {} to {} of expert {}", amax, begin, end - 1, job.expert));
  job.amax = std::max(job.amax, amax);
  const kernels::cpu::QuantizeBlocks result{
      .input = values,
      .element = Element::f32,
      .blocks = (end - begin) * row_blocks,
      .codes = reinterpret_cast<std::uint8_t*>(job.codes + begin * (job.k / 2)),
      .scales = reinterpret_cast<std::uint8_t*>(job.scales + begin * row_blocks),
      .mxfp4_rule = options_->mxfp4_rule,
      .nvfp4_rule = options_->nvfp4_rule,
      .global_scale = job.divisor};
  (is_mxfp4 ? codec.quantize_mxfp4 : codec.quantize_nvfp4)(result);
  double squared = 0, squared_change = 0, squared_error = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    squared += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    squared_change += static_cast<double>(change[i]) * static_cast<double>(change[i]);
  }
  dequantize(
      {.codes = result.codes, .scales = result.scales, .blocks = result.blocks, .output = change},
      job.multiplier, job.divisor);
  for (std::uint64_t i = 0; i < count; ++i) {
    const double wrong = static_cast<double>(change[i]) - static_cast<double>(values[i]);
    squared_error += wrong * wrong;
  }
  job.sums.add(
      {.squared = squared, .squared_error = squared_error, .squared_change = squared_change});
  return Done{};
}

Result<Done> ExpertMerger::quantize(Job& job) {
  job.amax = 0;
  job.sums = {};
  const std::uint64_t rows = job.from->codes.rows;
  const std::uint64_t step = std::max<std::uint64_t>(1, kMergePiece / job.k);
  for (std::uint64_t row = 0; row < rows; row += std::min(step, rows - row))
    if (Result<Done> done = quantize_rows(job, row, row + std::min(step, rows - row)); !done)
      return done;
  return Done{};
}

// A matrix whose maximum outgrew its global scale gets a larger one. Gate and up that had one in
// common keep one: most backends use the gate's for both.
Result<Done> ExpertMerger::raise_scales(std::array<Job, 3>& jobs, MergedExpert& merged) {
  Job &gate = jobs[0], &up = jobs[1];
  const bool gated = gate.from != nullptr;
  const bool common = gated && gate.divisor == up.divisor;
  std::array<bool, 3> raise{};
  for (std::size_t i = 0; i < jobs.size(); ++i)
    raise[i] = merged.changed[i] && static_cast<double>(jobs[i].amax) >
                                        kNvfp4Reach / static_cast<double>(jobs[i].divisor);
  if (common && (raise[0] || raise[1])) {
    raise[0] = raise[1] = true;
    gate.amax = up.amax = std::max(gate.amax, up.amax);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!raise[i]) continue;
    Job& job = jobs[i];
    const TensorPlace place = job.layer->places(job.which, job.expert).global_scale;
    const bool own = job.layer->row->grouping == Grouping::per_expert ||
                     job.layer->shape.experts == 1 ||
                     (place.tensor != nullptr && place.tensor->entry.bytes != sizeof(float));
    if (place.tensor == nullptr || !own)
      return invalid("merge.global_scale", "merged weights are too large for the global scale")
          .at(job.layer->places(job.which, job.expert).codes.tensor->entry.name)
          .expects("a global scale of the expert's own, which could grow", "none")
          .try_this("Transcode the checkpoint to a dialect that has them first");
    job.divisor = formats::nvfp4_global_scale(job.amax);
    job.multiplier = 1.0f / job.divisor;
    merged.changed[i] = true;
    ++merged.raised;
    if (Result<Done> done = quantize(job); !done) return done;
    const float stored =
        job.layer->row->global_scale == GlobalScale::divides ? job.divisor : job.multiplier;
    merged.scales.at(matrix_for(job.which)).global = std::bit_cast<std::uint32_t>(stored);
  }
  return Done{};
}

Result<MergedExpert> ExpertMerger::merge(std::size_t layer, std::uint64_t expert) {
  const LayerTensors& place = source_->layers()[layer];
  const MoeShape& shape = place.shape;
  const Result<ExpertView> view = reader_.read(layer, expert);
  if (!view) return view.why();
  MergedExpert merged{.view = *view};
  const bool is_nvfp4 = shape.format == WeightFormat::nvfp4;
  StoredScales divisors;
  if (is_nvfp4) {
    Result<StoredScales> own = scales_->scales(place, expert, place.row->global_scale);
    if (!own) return own.why();
    const Result<StoredScales> other = scales_->scales(place, expert, GlobalScale::divides);
    if (!other) return other.why();
    merged.scales = *std::move(own);
    divisors = *other;
  }
  if (Result<Done> done = reserve(output_, 3 * matrix_bytes(shape)); !done) return done.why();
  const std::uint64_t piece = piece_of(shape) * sizeof(float);
  if (Result<Done> done = reserve(values_, piece); !done) return done.why();
  if (Result<Done> done = reserve(change_, piece); !done) return done.why();

  std::array<Job, 3> jobs{};
  std::byte* next = output_.data();
  for (const Projection which : kMergeOrder) {
    if (which == Projection::gate && !shape.gated()) continue;
    const auto i = static_cast<std::size_t>(which);
    Job& job = jobs[i];
    const std::uint64_t k = which == Projection::down ? shape.intermediate : shape.hidden;
    job = {.layer = &place,
           .expert = expert,
           .position = layer,
           .which = which,
           .from = &view->at(which),
           .k = k};
    if (const auto bits = divisors.at(matrix_for(which)).global)
      job.divisor = job.old_divisor = std::bit_cast<float>(*bits);
    job.multiplier = job.from->global_scale;
    job.codes = next;
    job.scales = next + round_up(shape.hidden * shape.intermediate / 2, 64);
    next += matrix_bytes(shape);
    const Result<bool> has_factors = load_factors(job);
    if (!has_factors) return has_factors.why();
    job.has_factors = merged.changed[i] = *has_factors;
    if (!job.has_factors) continue;
    if (Result<Done> done = quantize(job); !done) return done.why();
  }
  if (is_nvfp4)
    if (Result<Done> done = raise_scales(jobs, merged); !done) return done.why();
  for (const Projection which : kMergeOrder) {
    if (!merged.is_changed(which)) continue;
    const Job& job = jobs[static_cast<std::size_t>(which)];
    ProjectionView& to = which == Projection::gate ? merged.view.gate
                         : which == Projection::up ? merged.view.up
                                                   : merged.view.down;
    const std::uint64_t rows = job.from->codes.rows;
    const std::uint64_t row_scales = job.k / block_size(shape.format);
    to.codes = {job.codes, rows, job.k / 2, job.k / 2};
    to.scales = {job.scales, rows, row_scales, row_scales};
    to.global_scale = job.multiplier;
    merged.sums.add(job.sums);
  }
  return merged;
}

}  // namespace fp4moe::checkpoint
