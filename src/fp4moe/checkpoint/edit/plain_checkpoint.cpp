#include "fp4moe/checkpoint/edit/plain_checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/expert_name.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using tensor::StoredTensor;

bool is_plain(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

Error shape_error(const StoredTensor& tensor, std::string_view expected) {
  return invalid("quantize.shape", "the tensor has the wrong shape")
      .at(tensor.entry.name)
      .expects(expected, tensor::text(tensor.entry.shape));
}

struct PlainTensor {
  ExpertName name;
  const StoredTensor* tensor;
};

bool is_bias(std::string_view part) { return part == ".bias" || part == "_bias"; }
bool is_weight(std::string_view part) { return part == ".weight" || part.empty(); }

class PlainLayerBuilder {
 public:
  PlainLayerBuilder(std::string_view model_type, std::span<const PlainTensor> named)
      : model_type_(model_type), named_(named) {}

  Result<PlainLayer> build() {
    layer_.prefix = std::string(named_[0].name.prefix);
    layer_.index = named_[0].name.layer;
    const bool per_expert = named_[0].name.expert.has_value();
    for (const PlainTensor& item : named_) {
      layer_.tensors.push_back(item.tensor);
      if (!is_plain(item.tensor->entry.dtype))
        return invalid("quantize.already", "an expert's tensor is not plain numbers")
            .at(item.tensor->entry.name)
            .expects("BF16, F16 or F32", std::string(tensor::name(item.tensor->entry.dtype)))
            .try_this("If the checkpoint is quantized already, use fp4moe transcode");
      if ((!is_weight(item.name.part) && !is_bias(item.name.part)) ||
          item.name.expert.has_value() != per_expert)
        return invalid("quantize.form", "an expert's tensor has an unexpected name")
            .at(item.tensor->entry.name)
            .expects("weights and biases, per expert or fused", std::string(item.name.part));
    }
    Result<Done> done = per_expert ? build_per_expert() : build_fused();
    if (!done) return done.why();
    if (Result<Done> same = check_dtypes(); !same) return same.why();
    return std::move(layer_);
  }

 private:
  Result<Done> build_per_expert() {
    std::uint64_t experts = 0;
    for (const PlainTensor& item : named_) experts = std::max(experts, *item.name.expert + 1);
    if (experts > named_.size())
      return missing("an expert",
                     "the numbers of experts have gaps up to " + std::to_string(experts - 1));
    layer_.form = PlainForm::per_expert;
    for (auto* list : {&layer_.gate, &layer_.up, &layer_.down, &layer_.gate_bias, &layer_.up_bias,
                       &layer_.down_bias})
      list->assign(experts, nullptr);
    for (const PlainTensor& item : named_) {
      const bool bias = is_bias(item.name.part);
      const StoredProjection projection = item.name.projection;
      if (projection == StoredProjection::gate_up)
        return invalid("quantize.form", "gate and up of one expert are fused")
            .at(item.tensor->entry.name)
            .expects("gate_proj and up_proj apart", "one tensor");
      auto& list = projection == StoredProjection::gate ? (bias ? layer_.gate_bias : layer_.gate)
                   : projection == StoredProjection::up ? (bias ? layer_.up_bias : layer_.up)
                                                        : (bias ? layer_.down_bias : layer_.down);
      list[*item.name.expert] = item.tensor;
      if (item.tensor->entry.name.find(".w2") != std::string::npos) layer_.numbered_names = true;
    }
    const auto is_there = [](const StoredTensor* tensor) { return tensor != nullptr; };
    const bool gated = std::ranges::any_of(layer_.gate, is_there);
    const bool biased = std::ranges::any_of(layer_.down_bias, is_there);
    for (std::uint64_t e = 0; e < experts; ++e) {
      if (layer_.up[e] == nullptr || layer_.down[e] == nullptr ||
          (gated && layer_.gate[e] == nullptr) ||
          (biased && (layer_.up_bias[e] == nullptr || layer_.down_bias[e] == nullptr ||
                      (gated && layer_.gate_bias[e] == nullptr))))
        return missing("expert " + std::to_string(e), "a part of it is not there");
    }
    const tensor::Shape& up = layer_.up[0]->entry.shape;
    if (up.size() != 2) return shape_error(*layer_.up[0], "[intermediate, hidden]");
    layer_.shape = {.experts = experts,
                    .hidden = up[1],
                    .intermediate = up[0],
                    .order = gated ? RowOrder::halves : RowOrder::single,
                    .has_bias = biased};
    const tensor::Shape wide{up[0], up[1]}, tall{up[1], up[0]};
    for (std::uint64_t e = 0; e < experts; ++e) {
      for (const StoredTensor* tensor : {layer_.gate[e], layer_.up[e]})
        if (tensor != nullptr && tensor->entry.shape != wide)
          return shape_error(*tensor, tensor::text(wide));
      if (layer_.down[e]->entry.shape != tall)
        return shape_error(*layer_.down[e], tensor::text(tall));
      if (!biased) continue;
      for (const StoredTensor* tensor : {layer_.gate_bias[e], layer_.up_bias[e]})
        if (tensor != nullptr && tensor->entry.shape != tensor::Shape{up[0]})
          return shape_error(*tensor, tensor::text({up[0]}));
      if (layer_.down_bias[e]->entry.shape != tensor::Shape{up[1]})
        return shape_error(*layer_.down_bias[e], tensor::text({up[1]}));
    }
    return Done{};
  }

  Result<Done> build_fused() {
    const StoredTensor *w13 = nullptr, *w2 = nullptr;
    bool gated = true;
    for (const PlainTensor& item : named_) {
      const bool down = item.name.projection == StoredProjection::down;
      if (item.name.projection == StoredProjection::gate)
        return invalid("quantize.form", "gate and up are stacked apart")
            .at(item.tensor->entry.name)
            .expects("gate_up_proj", "gate_proj");
      if (item.name.projection == StoredProjection::up) gated = false;
      if (is_bias(item.name.part)) {
        (down ? layer_.w2_bias : layer_.w13_bias) = item.tensor;
      } else {
        (down ? w2 : w13) = item.tensor;
      }
    }
    if (w13 == nullptr) return missing("gate_up_proj", "none");
    if (w2 == nullptr) return missing("down_proj", "none");
    const tensor::Shape &a = w13->entry.shape, &b = w2->entry.shape;
    if (a.size() != 3) return shape_error(*w13, "three sizes, the experts first");
    if (b.size() != 3 || b[0] != a[0]) return shape_error(*w2, "three sizes, the experts first");
    const std::uint64_t twice = gated ? 2 : 1;
    const bool straight = a[2] == b[1] && a[1] == twice * b[2];
    const bool transposed = a[1] == b[2] && a[2] == twice * b[1];
    if (!straight && !transposed)
      return shape_error(*w13, "rows or columns that fit down_proj's " + tensor::text(b));
    if (straight && transposed)
      return ambiguous(*w13, "a square model without a gate fits both orientations");
    if (model_type_.empty())
      return ambiguous(*w13, "config.json gives no model_type, which says how gate and up lie");
    if (straight && model_type_ == "gpt_oss")
      return ambiguous(*w13, "gpt-oss is known only as [experts, hidden, 2 * intermediate]");
    if (transposed && model_type_ != "gpt_oss" && model_type_ != "llama4")
      return ambiguous(*w13, "model type " + printable(model_type_) +
                                 " is not known to store transposed experts");
    layer_.form = straight ? PlainForm::fused : PlainForm::transposed;
    layer_.gate = layer_.up = {w13};
    layer_.down = {w2};
    layer_.shape = {.experts = a[0],
                    .hidden = straight ? a[2] : a[1],
                    .intermediate = straight ? b[2] : b[1],
                    .order = !gated                     ? RowOrder::single
                             : model_type_ == "gpt_oss" ? RowOrder::interleaved
                                                        : RowOrder::halves,
                    .has_bias = layer_.w2_bias != nullptr};
    if ((layer_.w13_bias != nullptr) != (layer_.w2_bias != nullptr))
      return missing("a bias", "one of two");
    if (layer_.w13_bias != nullptr) {
      const tensor::Shape wide{a[0], twice * layer_.shape.intermediate};
      const tensor::Shape tall{a[0], layer_.shape.hidden};
      if (layer_.w13_bias->entry.shape != wide)
        return shape_error(*layer_.w13_bias, tensor::text(wide));
      if (layer_.w2_bias->entry.shape != tall)
        return shape_error(*layer_.w2_bias, tensor::text(tall));
    }
    return Done{};
  }

  Result<Done> check_dtypes() const {
    const DType weights = layer_.up[0]->entry.dtype;
    std::optional<DType> bias;
    for (const PlainTensor& item : named_) {
      const DType dtype = item.tensor->entry.dtype;
      if (is_bias(item.name.part) && !bias) bias = dtype;
      if (dtype != (is_bias(item.name.part) ? *bias : weights))
        return invalid("quantize.dtype", "the layer mixes element types")
            .at(item.tensor->entry.name)
            .expects(std::string(tensor::name(weights)), std::string(tensor::name(dtype)));
    }
    return Done{};
  }

  Error missing(std::string_view what, std::string_view found) const {
    return invalid("quantize.missing", "the layer lacks " + std::string(what))
        .at(layer_.prefix)
        .expects("all parts of all experts", found);
  }
  static Error ambiguous(const StoredTensor& tensor, std::string_view why) {
    return invalid("quantize.form", "cannot tell how the fused experts lie")
        .at(tensor.entry.name)
        .expects("a form that is known for the model type", why);
  }

  std::string_view model_type_;
  std::span<const PlainTensor> named_;
  PlainLayer layer_{};
};

}  // namespace

PlainMatrix PlainLayer::matrix(Projection which, std::uint64_t expert) const {
  const bool is_down = which == Projection::down;
  PlainMatrix result{.rows = is_down ? shape.hidden : shape.intermediate,
                     .k = is_down ? shape.intermediate : shape.hidden,
                     .column_step = 1};
  result.row_step = result.k;
  if (form == PlainForm::per_expert) {
    const auto& list = which == Projection::gate ? gate : is_down ? down : up;
    const auto& biases = which == Projection::gate ? gate_bias : is_down ? down_bias : up_bias;
    result.tensor = list[expert];
    result.bias = shape.has_bias ? biases[expert] : nullptr;
    result.bias_step = 1;
    return result;
  }
  result.tensor = is_down ? down[0] : up[0];
  result.bias = shape.has_bias ? (is_down ? w2_bias : w13_bias) : nullptr;
  const std::uint64_t all_rows = is_down ? shape.hidden : shape.w13_rows();
  const bool interleaved = !is_down && shape.order == RowOrder::interleaved;
  const bool second = which == Projection::up && shape.gated();
  const std::uint64_t begin = !second ? 0 : interleaved ? 1 : shape.intermediate;
  const std::uint64_t step = interleaved ? 2 : 1;
  result.bias_first = expert * all_rows + begin;
  result.bias_step = step;
  const std::uint64_t base = expert * all_rows * result.k;
  if (form == PlainForm::fused) {
    result.first = base + begin * result.k;
    result.row_step = step * result.k;
  } else {
    result.first = base + begin;
    result.row_step = step;
    result.column_step = all_rows;
  }
  return result;
}

Result<PlainCheckpoint> PlainCheckpoint::open(const std::string& path) {
  Result<tensor::Store> store = tensor::Store::open(path);
  if (!store) return store.why();
  PlainCheckpoint checkpoint;
  checkpoint.store_ = std::make_unique<tensor::Store>(*std::move(store));
  const tensor::Store& files = *checkpoint.store_;
  if (files.kind() != tensor::StoreKind::safetensors)
    return usage("quantize.form", "only safetensors can be quantized")
        .in(path)
        .expects("a safetensors checkpoint", "GGUF");
  const Result<ModelFacts> facts = read_facts(files);
  if (!facts) return facts.why();
  checkpoint.model_type_ = facts->model.model_type;
  checkpoint.top_k_ = facts->model.top_k.value_or(0);
  checkpoint.config_ = std::make_unique<Json>(Json::object());
  if (facts->has_config) {
    Result<Json> config = read_json_file(files.folder() + "/config.json");
    if (!config) return config.why();
    *checkpoint.config_ = *std::move(config);
  }
  if (checkpoint.config_->contains("quantization_config"))
    return usage("quantize.already", "the configuration says that the model is quantized")
        .in(files.folder() + "/config.json")
        .at("quantization_config")
        .expects("an unquantized model", "a quantization_config")
        .try_this("Use fp4moe transcode to change the dialect");
  std::map<std::string_view, std::vector<PlainTensor>> by_prefix;
  for (const StoredTensor& tensor : files.tensors()) {
    const std::optional<ExpertName> name = parse_expert_name(tensor.entry.name);
    if (name) by_prefix[name->prefix].push_back({*name, &tensor});
  }
  if (by_prefix.empty())
    return invalid("quantize.no_experts", "the checkpoint has no routed experts")
        .in(path)
        .expects("tensors named ...experts...", std::to_string(files.tensors().size()) + " others");
  for (const auto& [prefix, named] : by_prefix) {
    Result<PlainLayer> layer = PlainLayerBuilder(checkpoint.model_type_, named).build();
    if (!layer) return Error(layer.why()).in(path);
    checkpoint.layers_.push_back(*std::move(layer));
  }
  std::ranges::stable_sort(checkpoint.layers_, {}, &PlainLayer::index);
  return checkpoint;
}

namespace {

// A tile at a time, so that both sides stay in the cache.
template <class Element>
void gather(const std::byte* base, const PlainMatrix& matrix, Range rows, std::byte* out) {
  constexpr std::uint64_t kTile = 32;
  const auto* from = base + matrix.first * sizeof(Element);
  for (std::uint64_t r0 = rows.begin; r0 < rows.end; r0 += kTile)
    for (std::uint64_t c0 = 0; c0 < matrix.k; c0 += kTile)
      for (std::uint64_t c = c0; c < std::min(matrix.k, c0 + kTile); ++c)
        for (std::uint64_t r = r0; r < std::min(rows.end, r0 + kTile); ++r)
          std::memcpy(out + ((r - rows.begin) * matrix.k + c) * sizeof(Element),
                      from + (r * matrix.row_step + c * matrix.column_step) * sizeof(Element),
                      sizeof(Element));
}

}  // namespace

void gather_rows(const tensor::Store& store, const PlainMatrix& matrix, std::uint64_t begin,
                 std::uint64_t end, std::span<std::byte> out) {
  const std::byte* base = store.bytes(*matrix.tensor).data();
  const std::uint64_t size = tensor::row(matrix.tensor->entry.dtype).block_bytes;
  if (matrix.column_step == 1) {
    for (std::uint64_t r = begin; r < end; ++r)
      std::memcpy(out.data() + (r - begin) * matrix.k * size,
                  base + (matrix.first + r * matrix.row_step) * size, matrix.k * size);
  } else if (size == 2) {
    gather<std::uint16_t>(base, matrix, {begin, end}, out.data());
  } else {
    gather<std::uint32_t>(base, matrix, {begin, end}, out.data());
  }
}

}  // namespace fp4moe::checkpoint
