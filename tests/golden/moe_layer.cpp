#include "golden/moe_layer.hpp"

#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

using checkpoint::ExpertView;
using checkpoint::ProjectionView;
using checkpoint::RowOrder;
using tensor::Shape;

constexpr std::uint64_t kMaxMoeExtent = std::uint64_t{1} << 20;

// A number that may be missing.
Result<double> optional_number(const Json& object, std::string_view key, double missing) {
  const auto found = object.find(key);
  if (found == object.end()) return missing;
  if (!found->is_number()) return malformed(key, "a number", found->type_name());
  return found->get<double>();
}

Result<Done> read_activation(const Json& item, MoeLayerCase& result) {
  const Result<std::string> name = string_field(item, "activation");
  if (!name) return name.why();
  const auto activation = moe::activation_from_name(*name);
  if (!activation) return malformed("activation", "a known activation", *name);
  result.activation = *activation;
  result.params = moe::row(*activation).params;
  const Result<const Json*> params = object_field(item, "activation_params");
  if (!params) return params.why();
  // The cases of situ call its two bounds alpha and beta.
  const bool is_situ = *activation == moe::Activation::situ;
  struct Field {
    std::string_view key;
    double* value;
  };
  const Field fields[] = {{"alpha", is_situ ? &result.params.situ_beta : &result.params.alpha},
                          {"beta", is_situ ? &result.params.situ_linear_beta : &result.params.beta},
                          {"limit", &result.params.limit}};
  for (const Field& field : fields) {
    const Result<double> value = optional_number(**params, field.key, *field.value);
    if (!value) return value.why();
    *field.value = *value;
  }
  return Done{};
}

Result<Done> read_sizes(const Json& item, MoeLayerCase& result) {
  struct Field {
    std::string_view key;
    std::uint64_t* value;
    std::uint64_t least;
  };
  const Field fields[] = {{"num_experts", &result.shape.experts, 1},
                          {"num_tokens", &result.tokens, 0},
                          {"hidden_size", &result.shape.hidden, 1},
                          {"intermediate_size", &result.shape.intermediate, 1},
                          {"top_k", &result.top_k, 1}};
  for (const Field& field : fields) {
    const Result<std::uint64_t> value = number_field(item, field.key, kMaxMoeExtent);
    if (!value) return value.why();
    if (*value < field.least) return malformed(field.key, "at least 1", "0");
    *field.value = *value;
  }
  const Result<std::string> format = string_field(item, "format");
  if (!format) return format.why();
  const auto known = formats::weight_format_from_name(*format);
  if (!known) return malformed("format", "mxfp4 or nvfp4", *format);
  result.shape.format = *known;
  const std::uint64_t block = formats::block_size(*known);
  if (result.shape.hidden % block != 0 || result.shape.intermediate % block != 0)
    return malformed("hidden_size", fmt::format("sizes in multiples of {}", block),
                     fmt::format("{} and {}", result.shape.hidden, result.shape.intermediate));
  const Result<bool> gated = bool_field(item, "gated");
  if (!gated) return gated.why();
  if (*gated != moe::is_gated(result.activation))
    return malformed("gated", moe::is_gated(result.activation) ? "true" : "false",
                     *gated ? "true" : "false");
  result.shape.order = !*gated ? RowOrder::single
                       : moe::row(result.activation).columns == moe::GateColumns::alternating
                           ? RowOrder::interleaved
                           : RowOrder::halves;
  const Result<bool> on_input = bool_field(item, "apply_router_weight_on_input");
  if (!on_input) return on_input.why();
  result.weight_on_input = *on_input;
  return Done{};
}

Result<std::vector<float>> optional_floats(const Json& tensors, std::string_view name,
                                           const Shape& shape) {
  if (!tensors.contains(name)) return std::vector<float>{};
  Result<MoeTensor> read = read_moe_tensor(tensors, name, shape);
  if (!read) return read.why();
  return read->floats();
}

Result<Done> read_tensors(const Json& tensors, MoeLayerCase& result) {
  const std::uint64_t experts = result.shape.experts, hidden = result.shape.hidden;
  const std::uint64_t rows = result.shape.w13_rows(), intermediate = result.shape.intermediate;
  const std::uint64_t block = formats::block_size(result.shape.format);
  struct Field {
    std::string_view key;
    MoeTensor* tensor;
    Shape shape;
  };
  const Field fields[] = {{"w13", &result.w13, {experts, rows, hidden / 2}},
                          {"w13_scale", &result.w13_scale, {experts, rows, hidden / block}},
                          {"w2", &result.w2, {experts, hidden, intermediate / 2}},
                          {"w2_scale", &result.w2_scale, {experts, hidden, intermediate / block}},
                          {"hidden_states", &result.x, {result.tokens, hidden}}};
  for (const Field& field : fields) {
    Result<MoeTensor> read = read_moe_tensor(tensors, field.key, field.shape);
    if (!read) return read.why();
    *field.tensor = std::move(*read);
  }
  struct Floats {
    std::string_view key;
    std::vector<float>* values;
    Shape shape;
  };
  const Floats floats[] = {
      {"w13_bias", &result.w13_bias, {experts, rows}},
      {"w2_bias", &result.w2_bias, {experts, hidden}},
      {"w13_scale_2", &result.w13_global, {experts}},
      {"w2_scale_2", &result.w2_global, {experts}},
      {"lora_A13", &result.a13, {result.adapters, experts, result.rank, hidden}},
      {"lora_B13", &result.b13, {result.adapters, experts, rows, result.rank}},
      {"lora_A2", &result.a2, {result.adapters, experts, result.rank, intermediate}},
      {"lora_B2", &result.b2, {result.adapters, experts, hidden, result.rank}},
  };
  for (const Floats& field : floats) {
    Result<std::vector<float>> read = optional_floats(tensors, field.key, field.shape);
    if (!read) return read.why();
    *field.values = std::move(*read);
  }
  const bool is_nvfp4 = result.shape.format == formats::WeightFormat::nvfp4;
  if (is_nvfp4 && (result.w13_global.empty() || result.w2_global.empty()))
    return malformed("tensors", "w13_scale_2 and w2_scale_2 for NVFP4", "not both");
  if (result.adapters > 0 &&
      (result.a13.empty() || result.b13.empty() || result.a2.empty() || result.b2.empty()))
    return malformed("tensors", "lora_A13, lora_B13, lora_A2 and lora_B2", "not all of them");
  result.shape.has_bias = !result.w13_bias.empty() || !result.w2_bias.empty();
  struct Optional {
    std::string_view key;
    std::optional<MoeTensor>* tensor;
    Shape shape;
  };
  const Optional others[] = {{"router_logits", &result.logits, {result.tokens, experts}},
                             {"e_score_correction_bias", &result.correction_bias, {experts}}};
  for (const Optional& field : others) {
    if (!tensors.contains(field.key)) continue;
    Result<MoeTensor> read = read_moe_tensor(tensors, field.key, field.shape);
    if (!read) return read.why();
    *field.tensor = std::move(*read);
  }
  return Done{};
}

Result<Done> read_lora(const Json& item, MoeLayerCase& result) {
  if (!item.contains("lora")) return Done{};
  const Result<const Json*> lora = object_field(item, "lora");
  if (!lora) return lora.why();
  const Result<std::uint64_t> rank = number_field(**lora, "rank", kMaxMoeExtent);
  if (!rank) return rank.why();
  const Result<std::uint64_t> adapters = number_field(**lora, "num_adapters", 1024);
  if (!adapters) return adapters.why();
  result.rank = *rank;
  result.adapters = *adapters;
  Result<std::vector<std::int32_t>> mapping =
      read_moe_list(**lora, "token_lora_mapping", {-1, static_cast<std::int32_t>(*adapters) - 1});
  if (!mapping) return mapping.why();
  if (mapping->size() != result.tokens)
    return malformed("token_lora_mapping", fmt::format("{} tokens", result.tokens),
                     fmt::format("{}", mapping->size()));
  result.token_adapters = std::move(*mapping);
  return Done{};
}

Result<Done> read_routes(const Json& item, MoeLayerCase& result) {
  Result<MoeNumbers> ids =
      read_moe_rows(item, "topk_ids", {-1, static_cast<std::int32_t>(result.shape.experts) - 1});
  if (!ids) return ids.why();
  if (ids->rows != result.tokens || (ids->rows != 0 && ids->columns != result.top_k))
    return malformed("topk_ids", fmt::format("{} rows of {}", result.tokens, result.top_k),
                     fmt::format("{} rows of {}", ids->rows, ids->columns));
  result.ids = std::move(*ids);
  Result<MoeValues> weights = read_moe_values(item, "topk_weights", {result.tokens, result.top_k});
  if (!weights) return weights.why();
  result.topk_weights = std::move(weights->values);
  if (!item.contains("nvfp4_activation")) return Done{};
  const Result<const Json*> scales = object_field(item, "nvfp4_activation");
  if (!scales) return scales.why();
  const Result<double> first = optional_number(**scales, "a1_gscale", 1.0);
  if (!first) return first.why();
  const Result<double> second = optional_number(**scales, "a2_gscale", 1.0);
  if (!second) return second.why();
  result.a1_gscale = static_cast<float>(*first);
  result.a2_gscale = static_cast<float>(*second);
  return Done{};
}

// One projection of an expert: rows `first`, first + step, ... of a matrix, columns from `column`.
struct Cut {
  std::uint64_t first = 0, step = 1, rows = 0;
  std::uint64_t column = 0, columns = 0;
};

checkpoint::RowsView rows_of(const MoeTensor& tensor, std::uint64_t expert, const Cut& cut,
                             std::uint64_t per_byte) {
  const std::uint64_t row_bytes = tensor.extent(2), stride = row_bytes * cut.step;
  const std::uint64_t at = (expert * tensor.extent(1) + cut.first) * row_bytes;
  return {.data = tensor.bytes.data() + at + cut.column / per_byte,
          .rows = cut.rows,
          .row_bytes = cut.columns / per_byte,
          .stride = stride};
}

checkpoint::BiasView bias_of(const std::vector<float>& values, std::uint64_t at, std::uint64_t size,
                             std::uint64_t step) {
  if (values.empty()) return {};
  return {.data = reinterpret_cast<const std::byte*>(values.data() + at),
          .size = size,
          .stride = step * sizeof(float),
          .dtype = tensor::DType::f32};
}

}  // namespace

LayerPart MoeLayerCase::whole() const {
  LayerPart part{.begin = 0, .end = shape.intermediate};
  part.experts.resize(shape.experts);
  std::iota(part.experts.begin(), part.experts.end(), std::uint64_t{0});
  return part;
}

moe::ExpertSource MoeLayerCase::source(const LayerPart& part) const {
  checkpoint::MoeShape cut = shape;
  cut.experts = part.experts.size();
  cut.intermediate = part.end - part.begin;
  return {.shape = cut,
          .visit = [this, part, cut](std::size_t position, const moe::UseExpert& use) {
            const std::uint64_t expert = part.experts[position], rows = cut.intermediate;
            const std::uint64_t block = formats::block_size(shape.format);
            const bool turns = shape.order == RowOrder::interleaved;
            ExpertView view{.shape = cut};
            const auto fill13 = [&](ProjectionView& to, std::uint64_t which) {
              const std::uint64_t first =
                  turns ? 2 * part.begin + which : which * shape.intermediate + part.begin;
              const Cut from{first, turns ? 2u : 1u, rows, 0, shape.hidden};
              to.codes = rows_of(w13, expert, from, 2);
              to.scales = rows_of(w13_scale, expert, from, block);
              to.bias = bias_of(w13_bias, expert * shape.w13_rows() + first, rows, from.step);
              if (!w13_global.empty()) to.global_scale = w13_global[expert];
            };
            if (shape.gated()) fill13(view.gate, 0);
            fill13(view.up, shape.gated() ? 1 : 0);
            const Cut columns{0, 1, shape.hidden, part.begin, rows};
            view.down.codes = rows_of(w2, expert, columns, 2);
            view.down.scales = rows_of(w2_scale, expert, columns, block);
            if (part.begin == 0)
              view.down.bias = bias_of(w2_bias, expert * shape.hidden, shape.hidden, 1);
            if (!w2_global.empty()) view.down.global_scale = w2_global[expert];
            return use(view);
          }};
}

std::vector<moe::LoraExpert> MoeLayerCase::lora() const {
  std::vector<moe::LoraExpert> result;
  const std::uint64_t rows = shape.w13_rows(), half = shape.intermediate;
  const bool turns = shape.order == RowOrder::interleaved;
  for (std::uint64_t i = 0; i < adapters * shape.experts; ++i) {
    const moe::FloatMatrix first{&a13[i * rank * shape.hidden], rank, shape.hidden, shape.hidden};
    const float* rows13 = &b13[i * rows * rank];
    moe::LoraExpert pair;
    if (shape.gated()) pair.gate = {first, {rows13, half, rank, turns ? 2 * rank : rank}};
    const float* ups = !shape.gated() ? rows13 : turns ? rows13 + rank : rows13 + half * rank;
    pair.up = {first, {ups, half, rank, turns ? 2 * rank : rank}};
    pair.down = {{&a2[i * rank * half], rank, half, half},
                 {&b2[i * shape.hidden * rank], shape.hidden, rank, rank}};
    result.push_back(pair);
  }
  return result;
}

Result<MoeLayerCase> read_layer_case(const Json& item) {
  MoeLayerCase result;
  if (const auto read = read_activation(item, result); !read) return read.why();
  if (const auto read = read_sizes(item, result); !read) return read.why();
  if (const auto read = read_lora(item, result); !read) return read.why();
  if (const auto read = read_routes(item, result); !read) return read.why();
  const Result<const Json*> tensors = object_field(item, "tensors");
  if (!tensors) return tensors.why();
  if (const auto read = read_tensors(**tensors, result); !read) return read.why();
  return result;
}

}  // namespace fp4moe::golden
