#include "golden/moe_layer.hpp"

#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "golden/fields.hpp"

namespace fp4moe::golden {
namespace {

using tensor::Shape;
using checkpoint::ExpertView;
using checkpoint::ProjectionView;
using checkpoint::RowOrder;

constexpr std::uint64_t kMaxMoeExtent = std::uint64_t{1} << 20;

// A number that may be missing.
Result<double> optional_number(const Json& object, std::string_view key, double missing) {
  const auto found = object.find(key);
  if (found == object.end()) return missing;
  if (!found->is_number()) return malformed(key, "a number", found->type_name());
  return found->get<double>();
}

Result<Done> read_activation(const Json& item, MoeLayerCase& made) {
  const Result<std::string> name = string_field(item, "activation");
  if (!name) return name.why();
  const auto activation = moe::activation_from_name(*name);
  if (!activation) return malformed("activation", "a known activation", *name);
  made.activation = *activation;
  made.params = moe::row(*activation).params;
  const Result<const Json*> params = object_field(item, "activation_params");
  if (!params) return params.why();
  // The cases of situ call its two bounds alpha and beta.
  const bool is_situ = *activation == moe::Activation::situ;
  struct Field {
    std::string_view key;
    double* value;
  };
  const Field fields[] = {{"alpha", is_situ ? &made.params.situ_beta : &made.params.alpha},
                          {"beta", is_situ ? &made.params.situ_linear_beta : &made.params.beta},
                          {"limit", &made.params.limit}};
  for (const Field& field : fields) {
    const Result<double> value = optional_number(**params, field.key, *field.value);
    if (!value) return value.why();
    *field.value = *value;
  }
  return Done{};
}

Result<Done> read_sizes(const Json& item, MoeLayerCase& made) {
  struct Field {
    std::string_view key;
    std::uint64_t* value;
    std::uint64_t least;
  };
  const Field fields[] = {{"num_experts", &made.shape.experts, 1},
                          {"num_tokens", &made.tokens, 0},
                          {"hidden_size", &made.shape.hidden, 1},
                          {"intermediate_size", &made.shape.intermediate, 1},
                          {"top_k", &made.top_k, 1}};
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
  made.shape.format = *known;
  const std::uint64_t block = formats::block_size(*known);
  if (made.shape.hidden % block != 0 || made.shape.intermediate % block != 0)
    return malformed("hidden_size", fmt::format("sizes in multiples of {}", block),
                     fmt::format("{} and {}", made.shape.hidden, made.shape.intermediate));
  const Result<bool> gated = bool_field(item, "gated");
  if (!gated) return gated.why();
  if (*gated != moe::is_gated(made.activation))
    return malformed("gated", moe::is_gated(made.activation) ? "true" : "false",
                     *gated ? "true" : "false");
  made.shape.order = !*gated ? RowOrder::single
                     : moe::row(made.activation).columns == moe::GateColumns::alternating
                         ? RowOrder::interleaved
                         : RowOrder::halves;
  const Result<bool> on_input = bool_field(item, "apply_router_weight_on_input");
  if (!on_input) return on_input.why();
  made.weight_on_input = *on_input;
  return Done{};
}

Result<std::vector<float>> optional_floats(const Json& tensors, std::string_view name,
                                           const Shape& shape) {
  if (!tensors.contains(name)) return std::vector<float>{};
  Result<MoeTensor> read = read_moe_tensor(tensors, name, shape);
  if (!read) return read.why();
  return read->floats();
}

Result<Done> read_tensors(const Json& tensors, MoeLayerCase& made) {
  const std::uint64_t experts = made.shape.experts, hidden = made.shape.hidden;
  const std::uint64_t rows = made.shape.w13_rows(), intermediate = made.shape.intermediate;
  const std::uint64_t block = formats::block_size(made.shape.format);
  struct Field {
    std::string_view key;
    MoeTensor* tensor;
    Shape shape;
  };
  const Field fields[] = {{"w13", &made.w13, {experts, rows, hidden / 2}},
                          {"w13_scale", &made.w13_scale, {experts, rows, hidden / block}},
                          {"w2", &made.w2, {experts, hidden, intermediate / 2}},
                          {"w2_scale", &made.w2_scale, {experts, hidden, intermediate / block}},
                          {"hidden_states", &made.x, {made.tokens, hidden}}};
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
      {"w13_bias", &made.w13_bias, {experts, rows}},
      {"w2_bias", &made.w2_bias, {experts, hidden}},
      {"w13_scale_2", &made.w13_global, {experts}},
      {"w2_scale_2", &made.w2_global, {experts}},
      {"lora_A13", &made.a13, {made.adapters, experts, made.rank, hidden}},
      {"lora_B13", &made.b13, {made.adapters, experts, rows, made.rank}},
      {"lora_A2", &made.a2, {made.adapters, experts, made.rank, intermediate}},
      {"lora_B2", &made.b2, {made.adapters, experts, hidden, made.rank}},
  };
  for (const Floats& field : floats) {
    Result<std::vector<float>> read = optional_floats(tensors, field.key, field.shape);
    if (!read) return read.why();
    *field.values = std::move(*read);
  }
  const bool is_nvfp4 = made.shape.format == formats::WeightFormat::nvfp4;
  if (is_nvfp4 && (made.w13_global.empty() || made.w2_global.empty()))
    return malformed("tensors", "w13_scale_2 and w2_scale_2 for NVFP4", "not both");
  if (made.adapters > 0 &&
      (made.a13.empty() || made.b13.empty() || made.a2.empty() || made.b2.empty()))
    return malformed("tensors", "lora_A13, lora_B13, lora_A2 and lora_B2", "not all of them");
  made.shape.has_bias = !made.w13_bias.empty() || !made.w2_bias.empty();
  struct Optional {
    std::string_view key;
    std::optional<MoeTensor>* tensor;
    Shape shape;
  };
  const Optional others[] = {{"router_logits", &made.logits, {made.tokens, experts}},
                             {"e_score_correction_bias", &made.correction_bias, {experts}}};
  for (const Optional& field : others) {
    if (!tensors.contains(field.key)) continue;
    Result<MoeTensor> read = read_moe_tensor(tensors, field.key, field.shape);
    if (!read) return read.why();
    *field.tensor = std::move(*read);
  }
  return Done{};
}

Result<Done> read_lora(const Json& item, MoeLayerCase& made) {
  if (!item.contains("lora")) return Done{};
  const Result<const Json*> lora = object_field(item, "lora");
  if (!lora) return lora.why();
  const Result<std::uint64_t> rank = number_field(**lora, "rank", kMaxMoeExtent);
  if (!rank) return rank.why();
  const Result<std::uint64_t> adapters = number_field(**lora, "num_adapters", 1024);
  if (!adapters) return adapters.why();
  made.rank = *rank;
  made.adapters = *adapters;
  Result<std::vector<std::int32_t>> mapping =
      read_moe_list(**lora, "token_lora_mapping", {-1, static_cast<std::int32_t>(*adapters) - 1});
  if (!mapping) return mapping.why();
  if (mapping->size() != made.tokens)
    return malformed("token_lora_mapping", fmt::format("{} tokens", made.tokens),
                     fmt::format("{}", mapping->size()));
  made.token_adapters = std::move(*mapping);
  return Done{};
}

Result<Done> read_routes(const Json& item, MoeLayerCase& made) {
  Result<MoeNumbers> ids =
      read_moe_rows(item, "topk_ids", {-1, static_cast<std::int32_t>(made.shape.experts) - 1});
  if (!ids) return ids.why();
  if (ids->rows != made.tokens || (ids->rows != 0 && ids->columns != made.top_k))
    return malformed("topk_ids", fmt::format("{} rows of {}", made.tokens, made.top_k),
                     fmt::format("{} rows of {}", ids->rows, ids->columns));
  made.ids = std::move(*ids);
  Result<MoeValues> weights = read_moe_values(item, "topk_weights", {made.tokens, made.top_k});
  if (!weights) return weights.why();
  made.topk_weights = std::move(weights->values);
  if (!item.contains("nvfp4_activation")) return Done{};
  const Result<const Json*> scales = object_field(item, "nvfp4_activation");
  if (!scales) return scales.why();
  const Result<double> first = optional_number(**scales, "a1_gscale", 1.0);
  if (!first) return first.why();
  const Result<double> second = optional_number(**scales, "a2_gscale", 1.0);
  if (!second) return second.why();
  made.a1_gscale = static_cast<float>(*first);
  made.a2_gscale = static_cast<float>(*second);
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
  std::vector<moe::LoraExpert> made;
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
    made.push_back(pair);
  }
  return made;
}

Result<MoeLayerCase> read_layer_case(const Json& item) {
  MoeLayerCase made;
  if (const auto read = read_activation(item, made); !read) return read.why();
  if (const auto read = read_sizes(item, made); !read) return read.why();
  if (const auto read = read_lora(item, made); !read) return read.why();
  if (const auto read = read_routes(item, made); !read) return read.why();
  const Result<const Json*> tensors = object_field(item, "tensors");
  if (!tensors) return tensors.why();
  if (const auto read = read_tensors(**tensors, made); !read) return read.why();
  return made;
}

}  // namespace fp4moe::golden
