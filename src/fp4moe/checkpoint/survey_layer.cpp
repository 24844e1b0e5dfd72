// Puts a layer's tensors in their places and checks each one's type and shape against the sizes
// that the first weights show.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/survey.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::StoredTensor;

enum class TensorPart : std::uint8_t { codes, scales, global_scale, input_scale, bias };
constexpr std::array kTensorParts{TensorPart::codes, TensorPart::scales, TensorPart::global_scale,
                                  TensorPart::input_scale, TensorPart::bias};

std::string_view spelled(const PartNames& names, TensorPart part) {
  switch (part) {
    case TensorPart::codes:
      return names.codes;
    case TensorPart::scales:
      return names.scales;
    case TensorPart::global_scale:
      return names.global_scale;
    case TensorPart::input_scale:
      return names.input_scale;
    case TensorPart::bias:
      return names.bias;
  }
  return {};
}

const StoredTensor*& place_of(ProjectionPlaces& places, TensorPart part) {
  switch (part) {
    case TensorPart::scales:
      return places.scales.tensor;
    case TensorPart::global_scale:
      return places.global_scale.tensor;
    case TensorPart::input_scale:
      return places.input_scale.tensor;
    case TensorPart::bias:
      return places.bias.tensor;
    case TensorPart::codes:
      break;
  }
  return places.codes.tensor;
}

bool accepts(const DialectRow& row, TensorPart part, DType type) {
  switch (part) {
    case TensorPart::codes:
      if (row.dialect == Dialect::gguf) return type == row.codes_dtype;
      return type == DType::u8 || type == DType::i8 || type == DType::f4;
    case TensorPart::scales:
      return is_scale_type(row.format, type);
    case TensorPart::bias:
    case TensorPart::input_scale:  // Quark writes it in the model's type
      return type == DType::bf16 || type == DType::f16 || type == DType::f32;
    case TensorPart::global_scale:
      break;
  }
  return type == DType::f32;
}

// llama.cpp leaves global scales out where all of them are 1.
bool is_optional(const DialectRow& row, TensorPart part) {
  return part == TensorPart::input_scale ||
         (part == TensorPart::global_scale && row.dialect == Dialect::gguf);
}

std::string accepted_types(const DialectRow& row, TensorPart part) {
  std::string list;
  for (const tensor::DTypeRow& type : tensor::kDTypes) {
    if (!accepts(row, part, type.dtype)) continue;
    list += fmt::format("{}{}", list.empty() ? "" : " or ", type.name);
  }
  return list;
}

// "3, 7-9, ..." of the numbers below `end` that `present` (ascending) lacks.
std::string missing_numbers(const std::vector<std::uint64_t>& present, std::uint64_t end) {
  constexpr int kMaxRuns = 8;
  std::string list;
  int runs = 0;
  const auto add = [&](std::uint64_t begin, std::uint64_t last) {
    if (++runs > kMaxRuns) return;
    if (!list.empty()) list += ", ";
    list += begin == last ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, last);
  };
  std::uint64_t next = 0;
  for (const std::uint64_t number : present) {
    if (number >= end) break;
    if (number > next) add(next, number - 1);
    next = number + 1;
  }
  if (next < end) add(next, end - 1);
  return runs > kMaxRuns ? list + ", ..." : list;
}

class LayerBuilder {
 public:
  LayerBuilder(const NamedLayer& named, const DialectRow& row, const tensor::Store& store,
               Survey& into)
      : named_(named), row_(row), store_(store), into_(into) {
    layer_.index = named.index;
    layer_.prefix = named.prefix;
    layer_.row = &row;
    layer_.shape.format = row.format;
  }

  LayerTensors build() {
    count_experts();
    for (const NamedTensor& item : named_.tensors) put(item);
    const bool sized = find_sizes();
    check_complete();
    if (sized) {
      check_shapes();
      check_config();
    }
    return std::move(layer_);
  }

 private:
  bool per_expert() const { return row_.grouping == Grouping::per_expert; }
  // Codes may follow the projection's name directly.
  bool has_part(TensorPart part) const {
    return part == TensorPart::codes || !spelled(row_.parts, part).empty();
  }

  Error at(const StoredTensor& tensor, std::string_view id, std::string_view message) const {
    return invalid(id, message).in(store_.path(tensor)).at(tensor.entry.name);
  }

  // Experts beyond the configuration's number. They are ignored below, so their defects are not
  // reported, too.
  void refuse_extra(std::vector<std::uint64_t>& numbers) {
    const std::uint64_t said = into_.facts.model.experts.value_or(0);
    const auto first = std::ranges::lower_bound(numbers, said);
    if (said == 0 || first == numbers.end()) return;
    const auto item = std::ranges::find_if(
        named_.tensors, [&](const NamedTensor& tensor) { return tensor.name.expert == *first; });
    const auto count = numbers.end() - first;
    into_.add(
        at(*item->tensor, "layer.extra_expert", "the layer holds experts beyond the last")
            .expects(
                said == 1 ? "expert 0 alone, as the configuration says"
                          : fmt::format("experts 0 to {}, as the configuration says", said - 1),
                count == 1 ? fmt::format("expert {}", *first)
                           : fmt::format("{} more, from {} to {}", count, *first, numbers.back()))
            .try_this("Use the config.json that came with these tensors, or export the "
                      "checkpoint again"));
    if (first == numbers.begin()) return;  // none is left
    first_extra_ = said;
    numbers.erase(first, numbers.end());
  }

  // How many experts there are, and which are missing. Claimed numbers never size memory: the
  // lists grow with the tensors that exist.
  void count_experts() {
    std::vector<std::uint64_t> numbers;
    bool has_gate = false;
    for (const NamedTensor& item : named_.tensors) {
      has_gate = has_gate || item.name.projection == StoredProjection::gate ||
                 item.name.projection == StoredProjection::gate_up;
      if (item.name.expert) numbers.push_back(*item.name.expert);
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    layer_.shape.order = !has_gate ? RowOrder::single
                         : row_.is_transposed
                             ? joined_order(into_.facts.model.model_type).value_or(RowOrder::halves)
                         : row_.joins_gate_up() ? RowOrder::interleaved
                                                : RowOrder::halves;
    std::size_t entries = 1;
    if (per_expert() && !numbers.empty()) {
      refuse_extra(numbers);
      const std::uint64_t named = numbers.back() + 1;
      const std::uint64_t claimed = into_.facts.model.experts.value_or(named);
      if (numbers.size() < std::max(named, claimed)) {
        into_.add(invalid("layer.missing_expert", "the layer lacks experts")
                      .at(layer_.prefix)
                      .expects(fmt::format("experts 0 to {}{}", std::max(named, claimed) - 1,
                                           claimed > named ? " (the configuration says so)" : ""),
                               fmt::format("{} experts; missing {}", numbers.size(),
                                           missing_numbers(numbers, std::max(named, claimed))))
                      .try_this("Fetch the missing shards or export the checkpoint again"));
      }
      entries = std::min<std::uint64_t>(named, numbers.size() * 4 + 64);
      layer_.shape.experts = entries;
    }
    if (has_gate) layer_.gate.resize(entries);
    layer_.up.resize(entries);
    layer_.down.resize(entries);
  }

  static std::tuple<StoredProjection, std::uint64_t, TensorPart> refusal(
      StoredProjection projection, std::uint64_t expert, TensorPart part) {
    return {projection, expert, part};
  }

  void put(const NamedTensor& item) {
    std::optional<TensorPart> part;
    for (const TensorPart candidate : kTensorParts) {
      if (has_part(candidate) && spelled(row_.parts, candidate) == item.name.part) part = candidate;
    }
    if (!part || (per_expert() != item.name.expert.has_value())) {
      // One that is not applied means other numbers than the writer's.
      if (!part && changes_numbers(item.name.part))
        into_.add(unread_part(row_, item.name.part)
                      .in(store_.path(*item.tensor))
                      .at(item.tensor->entry.name));
      into_.extras.push_back(item.tensor);
      return;
    }
    const std::uint64_t entry = item.name.expert.value_or(0);
    if (first_extra_ && entry >= *first_extra_) return;  // reported
    if (entry >= layer_.up.size()) {
      into_.extras.push_back(item.tensor);
      return;
    }
    if (!accepts(row_, *part, item.tensor->entry.dtype)) {
      into_.add(at(*item.tensor, "tensor.dtype", "the tensor has the wrong type")
                    .expects(accepted_types(row_, *part), tensor::name(item.tensor->entry.dtype)));
      refused_.insert(refusal(item.name.projection, entry, *part));
      return;
    }
    const auto set = [&](std::vector<ProjectionPlaces>& places) {
      const StoredTensor*& place = place_of(places[entry], *part);
      if (place != nullptr) {
        into_.add(at(*item.tensor, "tensor.duplicate", "two tensors hold the same part")
                      .expects("one", fmt::format("also \"{}\"", printable(place->entry.name))));
      }
      place = item.tensor;
    };
    const StoredProjection projection = item.name.projection;
    if (projection == StoredProjection::gate || projection == StoredProjection::gate_up)
      set(layer_.gate);
    if (projection == StoredProjection::up || projection == StoredProjection::gate_up)
      set(layer_.up);
    if (projection == StoredProjection::down) set(layer_.down);
  }

  struct Matrix {
    std::uint64_t experts = 0, rows = 0, k = 0;
  };

  // Reads [rows, k] (and the number of experts) off a tensor of codes.
  std::optional<Matrix> matrix_of(const StoredTensor& codes) const {
    const Shape& shape = codes.entry.shape;
    if (std::any_of(shape.begin(), shape.end(), [](std::uint64_t n) { return n == 0; })) {
      return std::nullopt;
    }
    const bool whole = codes.entry.dtype == DType::f4 || row_.dialect == Dialect::gguf;
    const std::uint64_t per =
        whole ? 1 : 2;  // elements that one count of the last extent stands for
    if (per_expert()) {
      if (shape.size() != 2) return std::nullopt;
      return Matrix{1, shape[0], shape[1] * per};
    }
    // gpt-oss keeps blocks apart: [experts, rows, k / 32, 16]
    if (shape.size() == 4 && shape[3] * per == 32) return Matrix{shape[0], shape[1], shape[2] * 32};
    if (shape.size() != 3) return std::nullopt;
    if (row_.is_transposed) return Matrix{shape[0], shape[2], shape[1] * per};
    return Matrix{shape[0], shape[1], shape[2] * per};
  }

  const StoredTensor* first_codes(const std::vector<ProjectionPlaces>& all) const {
    for (const ProjectionPlaces& places : all) {
      if (places.codes.tensor != nullptr) return places.codes.tensor;
    }
    return nullptr;
  }

  bool fused() const {
    return !layer_.gate.empty() && layer_.gate[0].codes.tensor != nullptr &&
           layer_.gate[0].codes.tensor == layer_.up[0].codes.tensor;
  }

  // ModelOpt's MXFP4 of fused experts: [experts, columns, rows / 2] with a scale for 32 rows of a
  // column. No kernel and no layout has blocks across rows.
  bool is_packed_along_rows(const StoredTensor& codes) {
    if (!row_.is_transposed) return false;
    const ProjectionPlaces& places = layer_.up[0];
    const StoredTensor* scales = places.scales.tensor;
    if (scales == nullptr || places.codes.tensor != &codes) return false;
    const Shape &packed = codes.entry.shape, &found = scales->entry.shape;
    if (packed.size() != 3 || found.size() != 3 || found[1] != packed[1] ||
        found[2] * block_size(row_.format) != packed[2] * 2)
      return false;
    into_.add(at(*scales, "dialect.unsupported",
                 "the experts have a scale for blocks of outputs instead of inputs")
                  .expects(fmt::format("[experts, inputs / {}, outputs]", block_size(row_.format)),
                           fmt::format("[experts, inputs, outputs / {}], {}",
                                       block_size(row_.format), tensor::text(found)))
                  .try_this("Start from a BF16 checkpoint and run fp4moe quantize"));
    return true;
  }

  bool find_sizes() {
    const StoredTensor* up = first_codes(layer_.up);
    if (up == nullptr) up = first_codes(layer_.gate);
    if (up == nullptr) return false;  // check_complete says so
    if (is_packed_along_rows(*up)) return false;
    const auto matrix = matrix_of(*up);
    if (!matrix || (fused() && matrix->rows % 2 != 0)) {
      into_.add(at(*up, "tensor.shape", "the tensor is no matrix of codes")
                    .expects(per_expert()                    ? "[rows, columns / 2]"
                             : row_.dialect == Dialect::gguf ? "[experts, rows, columns]"
                             : row_.is_transposed            ? "[experts, columns / 2, 2 * rows]"
                                                  : "[experts, 2 * rows, columns / 32, 16]",
                             tensor::text(up->entry.shape)));
      return false;
    }
    layer_.shape.hidden = matrix->k;
    layer_.shape.intermediate = fused() ? matrix->rows / 2 : matrix->rows;
    if (!per_expert()) layer_.shape.experts = matrix->experts;
    const std::uint64_t block = block_size(row_.format);
    for (const auto& [size, what] : {std::pair{layer_.shape.hidden, "hidden"},
                                     std::pair{layer_.shape.intermediate, "intermediate"}}) {
      if (size % block == 0) continue;
      into_.add(at(*up, "tensor.shape", fmt::format("the {} size has a part block", what))
                    .expects(fmt::format("a multiple of {}", block), fmt::format("{}", size)));
      return false;
    }
    return true;
  }

  std::string missing_name(Projection which, std::uint64_t expert, TensorPart part) const {
    return projection_stem(row_, layer_.prefix, expert, which) +
           std::string(spelled(row_.parts, part));
  }

  // Codes, block scales and NVFP4's global scales must be there; biases on all or none. Experts
  // that lack everything were reported already.
  void check_complete() {
    bool any_bias = false;
    for (const auto* all : {&layer_.gate, &layer_.up, &layer_.down}) {
      for (const ProjectionPlaces& places : *all) {
        any_bias = any_bias || places.bias.tensor != nullptr;
        layer_.shape.has_input_scale =
            layer_.shape.has_input_scale || places.input_scale.tensor != nullptr;
      }
    }
    layer_.shape.has_bias = any_bias;
    for (std::uint64_t expert = 0; expert < layer_.up.size(); ++expert) {
      if (is_absent(expert)) continue;
      for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
        if (which == Projection::gate && layer_.gate.empty()) continue;
        if (which == Projection::up && fused()) continue;  // the same tensors as gate's
        for (const TensorPart part : kTensorParts) check_present(which, expert, part, any_bias);
      }
      for (const TensorPart part : kTensorParts) check_shared(expert, part);
    }
  }

  // If gate and up share their codes, they share every other part.
  void check_shared(std::uint64_t expert, TensorPart part) {
    if (!fused() || place_of(layer_.gate[expert], part) == place_of(layer_.up[expert], part))
      return;
    into_.add(invalid("tensor.missing", "gate and up share their codes, but not this part")
                  .at(missing_name(Projection::gate, expert, part))
                  .expects("one tensor for both", "one for each, or for one of them alone"));
  }

  std::vector<ProjectionPlaces>& list(Projection which) {
    return which == Projection::gate ? layer_.gate
           : which == Projection::up ? layer_.up
                                     : layer_.down;
  }

  bool is_absent(std::uint64_t expert) {
    for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
      auto& all = list(which);
      if (expert >= all.size()) continue;
      for (const TensorPart part : kTensorParts) {
        if (place_of(all[expert], part) != nullptr) return false;
      }
    }
    return per_expert();
  }

  void check_present(Projection which, std::uint64_t expert, TensorPart part, bool any_bias) {
    const bool needed =
        !is_optional(row_, part) && (part != TensorPart::bias || any_bias) && has_part(part);
    if (!needed || place_of(list(which)[expert], part) != nullptr) return;
    // Tensors of a wrong type are there, and were reported.
    const StoredProjection projection = which == Projection::gate ? StoredProjection::gate
                                        : which == Projection::up ? StoredProjection::up
                                                                  : StoredProjection::down;
    if (refused_.contains(refusal(projection, expert, part))) return;
    if (projection != StoredProjection::down &&
        refused_.contains(refusal(StoredProjection::gate_up, expert, part)))
      return;
    into_.add(invalid("tensor.missing", part == TensorPart::bias
                                            ? "a bias is missing though others of the layer exist"
                                            : "the layer lacks a tensor")
                  .at(missing_name(which, expert, part))
                  .expects("the tensor", "none of that name"));
  }

  bool shape_fits(const StoredTensor& tensor, TensorPart part, std::uint64_t rows, std::uint64_t k,
                  Shape& expected) const {
    const Shape& shape = tensor.entry.shape;
    const std::uint64_t experts = layer_.shape.experts;
    expected.clear();
    if (!per_expert()) expected.push_back(experts);
    switch (part) {
      case TensorPart::codes: {
        const auto matrix = matrix_of(tensor);
        expected.push_back(rows);
        const bool whole = tensor.entry.dtype == DType::f4 || row_.dialect == Dialect::gguf;
        expected.push_back(shape.size() == 4 ? k / 32 : whole ? k : k / 2);
        if (shape.size() == 4) expected.push_back(whole ? 32 : 16);
        if (row_.is_transposed && expected.size() == 3) std::swap(expected[1], expected[2]);
        return matrix && matrix->rows == rows && matrix->k == k &&
               (per_expert() || matrix->experts == experts);
      }
      case TensorPart::scales:
        expected.push_back(rows);
        expected.push_back(k / block_size(row_.format));
        if (row_.is_transposed) std::swap(expected[1], expected[2]);
        return shape == expected;
      case TensorPart::bias:
        expected.push_back(rows);
        return shape == expected;
      case TensorPart::global_scale:
      case TensorPart::input_scale:
        break;
    }
    // One number for each expert, or one for the tensor.
    const bool one = shape.empty() || shape == Shape{1};
    if (per_expert()) return one;
    return shape == expected ||
           (one && (experts == 1 || part == TensorPart::input_scale || row_.is_transposed));
  }

  void check_shapes() {
    const std::uint64_t hidden = layer_.shape.hidden, intermediate = layer_.shape.intermediate;
    Shape expected;
    for (std::uint64_t expert = 0; expert < layer_.up.size(); ++expert) {
      for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
        if (which == Projection::gate && layer_.gate.empty()) continue;
        if (which == Projection::up && fused()) continue;
        const bool down = which == Projection::down;
        const std::uint64_t rows = down ? hidden : fused() ? 2 * intermediate : intermediate;
        for (const TensorPart part : kTensorParts) {
          const StoredTensor* tensor = place_of(list(which)[expert], part);
          if (tensor == nullptr) continue;
          if (shape_fits(*tensor, part, rows, down ? intermediate : hidden, expected)) continue;
          into_.add(at(*tensor, "tensor.shape", "the tensor has the wrong shape")
                        .expects(tensor::text(expected), tensor::text(tensor->entry.shape)));
        }
      }
    }
  }

  void check_config() {
    const ModelConfig& config = into_.facts.model;
    const auto check = [&](const std::optional<std::uint64_t>& said, std::uint64_t found,
                           std::string_view what) {
      if (!said || *said == found) return;
      into_.add(
          invalid("config.mismatch", fmt::format("the configuration and the tensors disagree "
                                                 "about the {}",
                                                 what))
              .at(layer_.prefix)
              .expects(fmt::format("{} (configuration)", *said), fmt::format("{} (tensors)", found))
              .try_this("Use the config.json that came with these tensors"));
    };
    check(config.hidden, layer_.shape.hidden, "hidden size");
    check(config.intermediate, layer_.shape.intermediate, "intermediate size");
    // Fewer experts than claimed are reported as missing ones.
    if (!per_expert() || config.experts.value_or(0) < layer_.shape.experts) {
      check(config.experts, layer_.shape.experts, "number of experts");
    }
  }

  const NamedLayer& named_;
  const DialectRow& row_;
  const tensor::Store& store_;
  Survey& into_;
  LayerTensors layer_{};
  std::optional<std::uint64_t> first_extra_{};  // the first expert that is none
  std::set<std::tuple<StoredProjection, std::uint64_t, TensorPart>> refused_{};
};

}  // namespace

Error unread_part(const DialectRow& row, std::string_view part) {
  const bool is_scale = part.find("scale") != std::string_view::npos;
  return invalid(is_scale ? "tensor.unread_scale" : "tensor.unread_part",
                 fmt::format("the experts have a {} that nothing here applies",
                             is_scale ? "scale" : "part"))
      .expects(fmt::format("the parts of {} {}", row.name, name(row.format)),
               fmt::format("\"{}\"", printable(part)));
}

LayerTensors build_layer(const NamedLayer& named, const DialectRow& row, const tensor::Store& store,
                         Survey& into) {
  return LayerBuilder(named, row, store, into).build();
}

}  // namespace fp4moe::checkpoint
