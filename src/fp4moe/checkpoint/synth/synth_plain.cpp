// Unquantized checkpoints, as training leaves them: bfloat16 in the family's own form.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/synth/synth_expert.hpp"
#include "fp4moe/checkpoint/synth/synth_plan.hpp"

namespace fp4moe::checkpoint {
namespace {

enum class Form : std::uint8_t {
  transposed,  // gpt-oss: [experts, hidden, 2 * intermediate], gate and up interleaved
  per_expert,  // a matrix each
  fused,       // [experts, 2 * intermediate, hidden], gates first
};

Form form_of(const SynthPlan& plan, Unquantized which) {
  if (plan.model->model_type == "gpt_oss") return Form::transposed;
  return which == Unquantized::fused ? Form::fused : Form::per_expert;
}

using Values = std::vector<std::uint16_t>;

struct PlainExpert {
  Values gate{}, up{}, down{}, w13_bias{}, w2_bias{};
};

PlainExpert make_expert(const SynthPlan& plan, const ExpertSeed& seed) {
  const MoeShape& shape = plan.shape;
  const std::uint64_t size = shape.hidden * shape.intermediate;
  PlainExpert expert;
  expert.gate.resize(shape.gated() ? size : 0);
  expert.up.resize(size);
  expert.down.resize(size);
  fill_normal_bf16(part_seed(seed, 0), shape.hidden, expert.gate);
  fill_normal_bf16(part_seed(seed, 1), shape.hidden, expert.up);
  fill_normal_bf16(part_seed(seed, 2), shape.intermediate, expert.down);
  if (shape.has_bias) {
    expert.w13_bias.resize(shape.w13_rows());
    expert.w2_bias.resize(shape.hidden);
    fill_normal_bf16(part_seed(seed, 3), 64, expert.w13_bias);
    fill_normal_bf16(part_seed(seed, 4), 64, expert.w2_bias);
  }
  return expert;
}

// Element [row, column] goes to [column, row * step + first] of a matrix `width` wide.
void transpose_into(const Values& from, std::uint64_t rows, Values& to, std::uint64_t width,
                    std::uint64_t first, std::uint64_t step) {
  const std::uint64_t columns = from.size() / rows;
  constexpr std::uint64_t kTile = 32;
  for (std::uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::uint64_t c0 = 0; c0 < columns; c0 += kTile)
      for (std::uint64_t c = c0; c < std::min(columns, c0 + kTile); ++c)
        for (std::uint64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
          to[c * width + r * step + first] = from[r * columns + c];
}

struct Item {
  std::string name{};
  tensor::Shape shape{};
};

std::vector<Item> items_of(const SynthPlan& plan, Form form, std::uint64_t block) {
  const MoeShape& shape = plan.shape;
  const std::uint64_t experts = shape.experts, hidden = shape.hidden, width = shape.intermediate;
  const std::string prefix = layer_prefix(plan.model->prefix, block) + "experts.";
  const std::string_view joined = shape.gated() ? "gate_up_proj" : "up_proj";
  std::vector<Item> items;
  if (form == Form::transposed) {
    items.push_back({prefix + "gate_up_proj", {experts, hidden, 2 * width}});
    items.push_back({prefix + "down_proj", {experts, width, hidden}});
    items.push_back({prefix + "gate_up_proj_bias", {experts, 2 * width}});
    items.push_back({prefix + "down_proj_bias", {experts, hidden}});
  } else if (form == Form::fused) {
    items.push_back({prefix + std::string(joined), {experts, shape.w13_rows(), hidden}});
    items.push_back({prefix + "down_proj", {experts, hidden, width}});
  } else {
    const ProjectionNames& names = plan.model->projections;
    for (std::uint64_t e = 0; e < experts; ++e) {
      const std::string own = prefix + std::to_string(e) + ".";
      if (shape.gated())
        items.push_back({own + std::string(names.gate) + ".weight", {width, hidden}});
      items.push_back({own + std::string(names.up) + ".weight", {width, hidden}});
      items.push_back({own + std::string(names.down) + ".weight", {hidden, width}});
    }
  }
  return items;
}

class PlainWriter {
 public:
  PlainWriter(const SynthPlan& plan, const SynthOptions& options)
      : plan_(plan), options_(options), form_(form_of(plan, *options.unquantized)) {
    if (options.with_other_tensors) others_ = synth_others(plan, options.seed);
    for (const OtherTensor& other : others_) specs_.push_back(other.spec);
    for (const std::uint64_t block : plan.blocks) {
      begins_.push_back(specs_.size());
      for (Item& item : items_of(plan, form_, block))
        specs_.push_back({std::move(item.name), tensor::DType::bf16, std::move(item.shape)});
    }
  }

  Result<std::uint64_t> write(const std::string& out) {
    std::uint64_t total = 0;
    for (const tensor::TensorSpec& spec : specs_)
      total += tensor::byte_count(spec.dtype, spec.shape).value_or(0);
    Result<TensorSink> result = TensorSink::create(
        out, {.count = specs_.size(), .at = [this](std::size_t i) { return specs_[i]; }},
        {.max_shard_bytes = (total + options_.shards - 1) / options_.shards});
    if (!result) return result.why();
    TensorSink& sink = *result;
    for (std::size_t i = 0; i < others_.size(); ++i)
      if (Result<Done> done = sink.write(i, 0, others_[i].bytes); !done) return done.why();
    const std::uint64_t experts = plan_.shape.experts;
    const auto one = [&](std::size_t item) -> Result<Done> {
      if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
      return write_expert(sink, item / experts, item % experts);
    };
    if (Result<Done> done = parallel_for(options_.threads, plan_.blocks.size() * experts, one);
        !done)
      return done.why();
    if (Result<Done> done = sink.put_json("config.json", synth_config(plan_)); !done)
      return done.why();
    if (Result<Done> done = sink.finish(); !done) return done.why();
    return total;
  }

 private:
  Result<Done> put(TensorSink& sink, std::size_t tensor, std::uint64_t piece,
                   const Values& values) {
    const auto bytes = std::as_bytes(std::span(values));
    if (bytes.empty()) return Done{};
    return sink.write(tensor, piece * bytes.size(), bytes);
  }

  Result<Done> write_expert(TensorSink& sink, std::size_t layer, std::uint64_t e) {
    const MoeShape& shape = plan_.shape;
    const PlainExpert expert = make_expert(plan_, {options_.seed, plan_.blocks[layer], e});
    const std::size_t begin = begins_[layer];
    std::vector<std::pair<std::size_t, const Values*>> parts;
    Values joined, transposed;
    std::uint64_t piece = e;
    if (form_ == Form::per_expert) {
      const std::size_t own = begin + e * (shape.gated() ? 3 : 2);
      piece = 0;
      if (shape.gated()) parts.emplace_back(own, &expert.gate);
      parts.emplace_back(own + (shape.gated() ? 1 : 0), &expert.up);
      parts.emplace_back(own + (shape.gated() ? 2 : 1), &expert.down);
    } else if (form_ == Form::fused) {
      joined = expert.gate;
      joined.insert(joined.end(), expert.up.begin(), expert.up.end());
      parts = {{begin, &joined}, {begin + 1, &expert.down}};
    } else {
      const std::uint64_t width = shape.intermediate;
      joined.resize(2 * width * shape.hidden);
      transposed.resize(width * shape.hidden);
      transpose_into(expert.gate, width, joined, 2 * width, 0, 2);
      transpose_into(expert.up, width, joined, 2 * width, 1, 2);
      transpose_into(expert.down, shape.hidden, transposed, shape.hidden, 0, 1);
      parts = {{begin, &joined},
               {begin + 1, &transposed},
               {begin + 2, &expert.w13_bias},
               {begin + 3, &expert.w2_bias}};
    }
    for (const auto& [tensor, values] : parts) {
      if (Result<Done> done = put(sink, tensor, piece, *values); !done) return done;
      if (options_.progress) options_.progress(values->size() * 2);
    }
    return Done{};
  }

  const SynthPlan& plan_;
  const SynthOptions& options_;
  Form form_;
  std::vector<OtherTensor> others_{};
  std::vector<tensor::TensorSpec> specs_{};
  std::vector<std::size_t> begins_{};
};

}  // namespace

Result<std::uint64_t> write_unquantized(const SynthPlan& plan, const SynthOptions& options,
                                        const std::string& out) {
  return PlainWriter(plan, options).write(out);
}

}  // namespace fp4moe::checkpoint
