#include "golden/layout_experts.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

using checkpoint::Projection;
using checkpoint::RowOrder;

struct Alias {
  std::string_view golden, ours;
};
constexpr Alias kAliases[] = {
    {"w13_weight", "w13"},
    {"w13_weight_scale", "w13_scale"},
    {"w2_weight", "w2"},
    {"w2_weight_scale", "w2_scale"},
};

const LayoutInput* find_input(const LayoutCase& given, std::string_view ours) {
  const auto found = std::ranges::find_if(
      given.inputs, [&](const LayoutInput& input) { return our_name(input.name) == ours; });
  return found == given.inputs.end() ? nullptr : &*found;
}

Result<Done> require_tensor(const LayoutCase& given, std::string_view ours, std::uint64_t bytes,
                            const tensor::Shape& shape) {
  const LayoutInput* input = find_input(given, ours);
  if (input == nullptr) return malformed("inputs", fmt::format("a tensor {}", ours), "none");
  if (input->shape != shape)
    return malformed(input->name, "shape " + tensor::text(shape), tensor::text(input->shape));
  if (tensor::row(input->dtype).block_bytes != bytes)
    return malformed(input->name, fmt::format("elements of {} bytes", bytes),
                     tensor::name(input->dtype));
  return Done{};
}

struct Wanted {
  std::string_view name;
  std::uint64_t bytes;
  tensor::Shape shape;
};

Result<Done> require_tensors(const LayerCase& layer) {
  const convert::Problem& problem = layer.problem;
  const std::uint64_t experts = problem.experts, hidden = problem.real.hidden,
                      intermediate = problem.real.intermediate;
  const std::uint64_t halves = problem.order == RowOrder::single ? 1 : 2;
  const std::uint64_t block = formats::block_size(layer.layout.format);
  std::vector<Wanted> wanted{{"w13", 1, {experts, halves * intermediate, hidden / 2}},
                             {"w13_scale", 1, {experts, halves * intermediate, hidden / block}},
                             {"w2", 1, {experts, hidden, intermediate / 2}},
                             {"w2_scale", 1, {experts, hidden, intermediate / block}}};
  if (problem.has_bias) {
    const std::uint64_t bytes = tensor::row(problem.bias_type).block_bytes;
    wanted.push_back({"w13_bias", bytes, {experts, halves * intermediate}});
    wanted.push_back({"w2_bias", bytes, {experts, hidden}});
  }
  if (layer.layout.format == formats::WeightFormat::nvfp4) {
    wanted.push_back({"w13_scale_2", 4, {experts}});
    wanted.push_back({"w2_scale_2", 4, {experts}});
  }
  if (find_input(layer.given, "a13_scale") != nullptr) {
    wanted.push_back({"a13_scale", 4, {problem.global_experts, halves}});
    wanted.push_back({"a2_scale", 4, {problem.global_experts}});
  }
  for (const Wanted& one : wanted)
    if (Result<Done> there = require_tensor(layer.given, one.name, one.bytes, one.shape); !there)
      return there;
  return Done{};
}

Result<RowOrder> order_params(const Json& params) {
  if (params.contains("gated")) {
    const Result<bool> gated = flag_param(params, "gated");
    if (!gated) return gated.why();
    if (!*gated) return RowOrder::single;
  }
  const Result<std::string> rows = word_param(params, "w13_rows");
  if (!rows) return rows.why();
  if (rows->empty() || *rows == "gptoss_interleaved") return RowOrder::interleaved;
  if (*rows == "w1w3_halves") return RowOrder::halves;
  return malformed("w13_rows", "gptoss_interleaved or w1w3_halves", "\"" + *rows + "\"");
}

float float_at(const LayoutInput& input, std::uint64_t index) {
  float value = 0;
  std::memcpy(&value, input.bytes.data() + 4 * index, 4);
  return value;
}

// Rows of one expert: from `first` on, every `step`-th.
checkpoint::RowsView rows_of(const LayoutInput& input, std::uint64_t expert, std::uint64_t first,
                             std::uint64_t step, std::uint64_t count) {
  const std::uint64_t row_bytes = input.shape[2];
  return {input.bytes.data() + (expert * input.shape[1] + first) * row_bytes, count, row_bytes,
          step * row_bytes};
}

checkpoint::BiasView bias_of(const LayoutInput& input, std::uint64_t expert, std::uint64_t first,
                             std::uint64_t step, std::uint64_t count) {
  const std::uint64_t bytes = tensor::row(input.dtype).block_bytes;
  return {input.bytes.data() + (expert * input.shape[1] + first) * bytes, count, step * bytes,
          input.dtype};
}

}  // namespace

std::string_view our_name(std::string_view golden) {
  const auto* found = std::ranges::find(kAliases, golden, &Alias::golden);
  return found == std::end(kAliases) ? golden : found->ours;
}

Result<Done> read_layer(LayerCase& layer) {
  const Json& params = *layer.given.params;
  convert::Problem& problem = layer.problem;
  const Result<std::uint64_t> experts = number_param(params, "E", 0, kMaxExperts);
  if (!experts) return experts.why();
  const Result<std::uint64_t> hidden = number_param(params, "H", 0, kMaxLayerSize);
  if (!hidden) return hidden.why();
  const Result<std::uint64_t> intermediate = number_param(params, "I", 0, kMaxLayerSize);
  if (!intermediate) return intermediate.why();
  if (*experts == 0 || *hidden == 0 || *intermediate == 0)
    return malformed("params", "the sizes E, H and I", params.dump());
  const Result<RowOrder> order = order_params(params);
  if (!order) return order.why();
  problem.experts = *experts;
  problem.real = {*hidden, *intermediate};
  problem.order = *order;

  const Result<std::string> type = word_param(params, "params_dtype");
  if (!type) return type.why();
  if (!type->empty()) {
    const std::optional<tensor::DType> dtype = dtype_from_golden(*type);
    if (dtype != tensor::DType::bf16 && dtype != tensor::DType::f16)
      return malformed("params_dtype", "bf16 or f16", "\"" + *type + "\"");
    problem.params_type = *dtype;
  }
  if (const LayoutInput* bias = find_input(layer.given, "w13_bias")) {
    problem.has_bias = true;
    problem.bias_type = bias->dtype;
  }
  // Input scales may be those of the experts of all ranks.
  const LayoutInput* inputs = find_input(layer.given, "a13_scale");
  problem.global_experts = inputs == nullptr ? problem.experts : inputs->shape.front();
  if (problem.global_experts < problem.experts || problem.global_experts > kMaxExperts)
    return malformed("a13_scale", fmt::format("at least {} experts", problem.experts),
                     std::to_string(problem.global_experts));
  // Where a reference refused, the tensors that it never reached are not told.
  return layer.given.expects_refusal ? Result<Done>(Done{}) : require_tensors(layer);
}

const LayoutInput* LayoutExperts::find(std::string_view name) const {
  return find_input(layer_.given, name);
}

LayoutExperts::RowPattern LayoutExperts::place(Projection which) const {
  const convert::Problem& problem = layer_.problem;
  const std::uint64_t rows = problem.real.intermediate;
  if (which == Projection::down) return {"w2", 0, 1, problem.real.hidden};
  const bool is_up = which == Projection::up;
  if (problem.order == RowOrder::interleaved) return {"w13", is_up ? 1u : 0u, 2, rows};
  if (problem.order == RowOrder::halves) return {"w13", is_up ? rows : 0, 1, rows};
  return {"w13", 0, 1, is_up ? rows : 0};
}

checkpoint::ProjectionView LayoutExperts::projection(Projection which, std::uint64_t expert) const {
  const RowPattern at = place(which);
  if (at.count == 0) return {};
  const auto named = [&](std::string_view suffix) {
    return find(fmt::format("{}{}", at.matrix, suffix));
  };
  checkpoint::ProjectionView result{
      .codes = rows_of(*named(""), expert, at.first, at.step, at.count),
      .scales = rows_of(*named("_scale"), expert, at.first, at.step, at.count)};
  if (const LayoutInput* global = named("_scale_2"))
    result.global_scale = float_at(*global, expert);
  if (which == Projection::down) {
    if (const LayoutInput* scale = find("a2_scale")) result.input_scale = float_at(*scale, expert);
  } else if (const LayoutInput* scale = find("a13_scale")) {
    const std::uint64_t halves = scale->shape[1];
    result.input_scale =
        float_at(*scale, expert * halves + (which == Projection::up ? halves - 1 : 0));
  }
  if (layer_.problem.has_bias)
    result.bias = bias_of(*named("_bias"), expert, at.first, at.step, at.count);
  return result;
}

checkpoint::ExpertView LayoutExperts::view(std::uint64_t expert) const {
  const convert::Problem& problem = layer_.problem;
  return {.shape = {.format = layer_.layout.format,
                    .experts = problem.experts,
                    .hidden = problem.real.hidden,
                    .intermediate = problem.real.intermediate,
                    .order = problem.order,
                    .has_bias = problem.has_bias,
                    .has_input_scale = find("a13_scale") != nullptr},
          .gate = projection(Projection::gate, expert),
          .up = projection(Projection::up, expert),
          .down = projection(Projection::down, expert)};
}

convert::InputScales LayoutExperts::input_scales() const {
  convert::InputScales all;
  const LayoutInput& a13 = *find("a13_scale");
  const LayoutInput& a2 = *find("a2_scale");
  const std::uint64_t halves = a13.shape[1];
  for (std::uint64_t e = 0; e < a13.shape[0]; ++e) {
    if (halves == 2) all.gate.push_back(float_at(a13, e * halves));
    all.up.push_back(float_at(a13, e * halves + halves - 1));
    all.down.push_back(float_at(a2, e));
  }
  return all;
}

}  // namespace fp4moe::golden
