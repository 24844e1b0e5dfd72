#include "fp4moe/checkpoint/edit/fix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/edit/rescale.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/checkpoint/stored_scalar.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::StoredTensor;

constexpr FixPolicyRow kPolicies[] = {
    {FixPolicy::fill_input_scale, "fill-input-scale",
     "missing or invalid input scales become the largest valid one of the layer's same input"},
    {FixPolicy::drop_input_scale, "drop-input-scale",
     "removes all input scales and marks the checkpoint weight-only"},
    {FixPolicy::reconcile_global_scale, "reconcile-global-scale",
     "gives gate and up the larger of their global scales and rescales the other's blocks"},
    {FixPolicy::invert_global_scale, "invert-global-scale",
     "replaces global scales that look inverted by their reciprocals"},
    {FixPolicy::total_size, "total-size", "writes the index again with the right total size"},
};

bool is_scale(float value) { return std::isfinite(value) && value > 0; }

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Fixer {
 public:
  Fixer(const Checkpoint& checkpoint, const std::vector<FixPolicy>& policies)
      : checkpoint_(checkpoint), store_(checkpoint.store()), policies_(policies) {}

  Result<Done> plan() {
    for (const FixPolicy policy : policies_) {
      const auto done = policy == FixPolicy::fill_input_scale         ? fill_input_scales()
                        : policy == FixPolicy::drop_input_scale       ? drop_input_scales()
                        : policy == FixPolicy::reconcile_global_scale ? reconcile()
                        : policy == FixPolicy::invert_global_scale    ? invert()
                                                                      : total_size();
      if (!done) return done.why();
    }
    for (auto& [tensor, values] : scalars_) {
      edits_.put.push_back(
          {{tensor->entry.name, tensor::DType::f32, tensor->entry.shape}, bytes_of(values)});
    }
    return Done{};
  }
  FixReport& report() { return report_; }
  // The worst change would go beyond what may be done unasked.
  Error harm() const {
    return invalid("fix.harm", "the repair would change weights too much; nothing was written")
        .at(worst_tensor_)
        .expects(fmt::format("a change of at most {} %", 100 * kMaxRelativeChange),
                 fmt::format("{:.3g} %", 100 * report_.worst_relative_change))
        .try_this(worst_is_inverted_
                      ? "A global scale looks inverted: --fix invert-global-scale"
                      : "Quantize again from the source; --force writes it nevertheless");
  }
  const CheckpointEdits& edits() const { return edits_; }

 private:
  void change(FixPolicy policy, std::string_view tensor, std::string what) {
    report_.changes.push_back({policy, std::string(tensor), std::move(what)});
  }

  // Values of a tensor of scalars, to be changed; starts with what the file has.
  std::vector<float>& values(const StoredTensor& tensor) {
    const auto [at, is_new] = scalars_.try_emplace(&tensor);
    if (is_new) {
      at->second.resize(tensor.entry.bytes / tensor::row(tensor.entry.dtype).block_bytes);
      for (std::size_t i = 0; i < at->second.size(); ++i)
        at->second[i] = stored_scalar(store_, tensor, i);
    }
    return at->second;
  }
  float& value(const StoredTensor& tensor, std::uint64_t expert) {
    std::vector<float>& all = values(tensor);
    return all[all.size() == 1 ? 0 : expert];
  }
  // As `value`, without planning a change.
  float peek(const StoredTensor& tensor, std::uint64_t expert) const {
    const auto at = scalars_.find(&tensor);
    if (at == scalars_.end()) return stored_scalar(store_, tensor, expert);
    return at->second[at->second.size() == 1 ? 0 : expert];
  }

  static std::vector<std::vector<Projection>> inputs(const LayerTensors& layer) {
    // Gate and up multiply the same input; down has its own.
    if (layer.gate.empty()) return {{Projection::up}, {Projection::down}};
    return {{Projection::gate, Projection::up}, {Projection::down}};
  }

  Result<Done> fill_input_scales() {
    for (const LayerTensors& layer : checkpoint_.layers()) {
      if (!layer.shape.has_input_scale) continue;
      for (const std::vector<Projection>& projections : inputs(layer)) {
        const auto done = fill_input(layer, projections);
        if (!done) return done.why();
      }
    }
    return Done{};
  }

  Result<Done> fill_input(const LayerTensors& layer, const std::vector<Projection>& projections) {
    struct Gap {
      Projection which;
      std::uint64_t expert;
    };
    std::vector<Gap> gaps;
    std::optional<float> best;  // as stored
    const bool divides = layer.row->global_scale == GlobalScale::divides;
    for (const Projection which : projections) {
      for (std::uint64_t expert = 0; expert < layer.shape.experts; ++expert) {
        const StoredTensor* tensor = layer.places(which, expert).input_scale.tensor;
        const float stored = tensor == nullptr ? 0.0f : peek(*tensor, expert);
        if (!is_scale(stored) || !is_scale(canonical_scale(*layer.row, stored))) {
          gaps.push_back({which, expert});
        } else if (!best || (divides ? stored < *best : stored > *best)) {
          best = stored;
        }
      }
    }
    if (gaps.empty()) return Done{};
    if (!best) {
      return invalid("fix.source", "no valid input scale of this layer to fill from")
          .at(layer.prefix)
          .expects("at least one", "none")
          .try_this("Use drop-input-scale, or calibrate again");
    }
    for (const Gap& gap : gaps) {
      const StoredTensor* tensor = layer.places(gap.which, gap.expert).input_scale.tensor;
      if (tensor != nullptr) {
        float& stored = value(*tensor, gap.expert);
        change(FixPolicy::fill_input_scale, tensor->entry.name,
               fmt::format("expert {}: {} -> {}", gap.expert, stored, *best));
        stored = *best;
        continue;
      }
      // Only per-expert dialects can lack one expert's tensor; a stacked one lacks all.
      const std::string name = projection_stem_of(layer, gap.which, gap.expert) +
                               std::string(layer.row->parts.input_scale);
      if (layer.row->grouping != Grouping::per_expert) {
        if (gap.expert != 0) continue;
        const std::vector<float> all(layer.shape.experts, *best);
        edits_.put.push_back({{name, tensor::DType::f32, {layer.shape.experts}}, bytes_of(all)});
      } else {
        edits_.put.push_back({{name, tensor::DType::f32, scalar_shape(layer)}, bytes_of({*best})});
      }
      change(FixPolicy::fill_input_scale, name, fmt::format("missing -> {}", *best));
    }
    return Done{};
  }

  // The projection's name as this layer spells it: w1 or gate_proj.
  static std::string projection_stem_of(const LayerTensors& layer, Projection which,
                                        std::uint64_t expert) {
    const StoredTensor* codes = layer.places(which, expert).codes.tensor;
    std::string stem = codes->entry.name;
    stem.resize(stem.size() - layer.row->parts.codes.size());
    return stem;
  }

  // Scalars keep the form ([] or [1]) that the layer's others have.
  static tensor::Shape scalar_shape(const LayerTensors& layer) {
    for (const auto* all : {&layer.gate, &layer.up, &layer.down}) {
      for (const ProjectionPlaces& places : *all) {
        if (places.input_scale.tensor != nullptr) return places.input_scale.tensor->entry.shape;
      }
    }
    return {};
  }

  Result<Done> drop_input_scales() {
    std::vector<const StoredTensor*> dropped;
    for (const LayerTensors& layer : checkpoint_.layers()) {
      for (const auto* all : {&layer.gate, &layer.up, &layer.down}) {
        for (const ProjectionPlaces& places : *all) {
          if (places.input_scale.tensor != nullptr) dropped.push_back(places.input_scale.tensor);
        }
      }
    }
    std::sort(dropped.begin(), dropped.end());
    dropped.erase(std::unique(dropped.begin(), dropped.end()), dropped.end());
    for (const StoredTensor* tensor : dropped) {
      edits_.remove.push_back(tensor->entry.name);
      change(FixPolicy::drop_input_scale, tensor->entry.name, "removed");
    }
    if (dropped.empty() || store_.kind() != tensor::StoreKind::safetensors) return Done{};
    return mark_weight_only();
  }

  // The configuration must no longer promise input scales.
  Result<Done> mark_weight_only() {
    const std::string folder = store_.folder().empty() ? "." : store_.folder();
    for (const std::string_view file : kConfigDocuments) {
      const std::string path = folder + "/" + std::string(file);
      auto document = read_config_document(folder, std::string(file));
      if (!document) return document.why();
      if (!document->has_value() || !drop_activations((*document)->json)) continue;
      if (Result<Done> exact = require_json(**document, path); !exact) return exact;
      edits_.documents.emplace_back(std::string(file), std::move((*document)->json));
      change(FixPolicy::drop_input_scale, file, "activations are no longer quantized");
    }
    return Done{};
  }

  // True when something changed. Looks where each dialect keeps it.
  static bool drop_activations(Json& document) {
    bool changed = false;
    if (document.is_array()) {
      for (Json& item : document) changed = drop_activations(item) || changed;
      return changed;
    }
    if (!document.is_object()) return false;
    for (auto& [key, inner] : document.items()) {
      if ((key == "input_activations" || key == "input_tensors") && !inner.is_null()) {
        inner = nullptr;
        changed = true;
      } else if (key == "quant_algo" && inner == "NVFP4") {
        inner = "W4A16_NVFP4";
        changed = true;
      } else {
        changed = drop_activations(inner) || changed;
      }
    }
    return changed;
  }

  Result<Done> needs_nvfp4(std::string_view policy) const {
    if (checkpoint_.dialect().format == WeightFormat::nvfp4) return Done{};
    return usage("fix.dialect", fmt::format("{} is for NVFP4", policy))
        .expects("a checkpoint with global scales", name(checkpoint_.dialect().format));
  }

  Result<Done> invert() {
    if (const auto fine = needs_nvfp4("invert-global-scale"); !fine) return fine.why();
    for (const LayerTensors& layer : checkpoint_.layers()) {
      for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
        if (which == Projection::gate && layer.gate.empty()) continue;
        for (std::uint64_t expert = 0; expert < layer.shape.experts; ++expert) {
          const StoredTensor& tensor = *layer.places(which, expert).global_scale.tensor;
          const float stored = peek(tensor, expert);
          if (!is_scale(stored) || !looks_inverted(canonical_scale(*layer.row, stored))) continue;
          float& scale = value(tensor, expert);
          scale = 1.0f / stored;
          change(FixPolicy::invert_global_scale, tensor.entry.name,
                 fmt::format("expert {}: {} -> {}", expert, stored, scale));
        }
      }
    }
    return Done{};
  }

  Result<Done> reconcile() {
    if (const auto fine = needs_nvfp4("reconcile-global-scale"); !fine) return fine.why();
    if (checkpoint_.dialect().needs_unpacking()) {
      return usage("fix.dialect", "reconcile-global-scale does not rewrite GGUF blocks or columns")
          .expects("experts of ModelOpt or compressed-tensors with tensors of their own",
                   grouping_text(checkpoint_.dialect()))
          .try_this("these keep gate and up apart, or have one scale for both");
    }
    for (const LayerTensors& layer : checkpoint_.layers()) {
      if (layer.gate.empty()) continue;
      for (std::uint64_t expert = 0; expert < layer.shape.experts; ++expert) {
        const auto done = reconcile_expert(layer, expert);
        if (!done) return done.why();
      }
    }
    return Done{};
  }

  Result<Done> reconcile_expert(const LayerTensors& layer, std::uint64_t expert) {
    const ProjectionPlaces& gate = layer.places(Projection::gate, expert);
    const ProjectionPlaces& up = layer.places(Projection::up, expert);
    const float gate_stored = peek(*gate.global_scale.tensor, expert);
    const float up_stored = peek(*up.global_scale.tensor, expert);
    if (gate_stored == up_stored) return Done{};
    if (!is_scale(gate_stored) || !is_scale(up_stored)) {
      return invalid("fix.source", "a global scale is invalid and cannot be reconciled")
          .at(gate.global_scale.tensor->entry.name)
          .expects("finite numbers above zero", fmt::format("{} and {}", gate_stored, up_stored));
    }
    // The larger factor stays, so that the other's block scales shrink and never exceed 448.
    const bool divides = layer.row->global_scale == GlobalScale::divides;
    const bool gate_stays = (gate_stored > up_stored) != divides;
    const ProjectionPlaces& other = gate_stays ? up : gate;
    const float kept = gate_stays ? gate_stored : up_stored;
    const float replaced = gate_stays ? up_stored : gate_stored;
    const double ratio = divides ? static_cast<double>(kept) / static_cast<double>(replaced)
                                 : static_cast<double>(replaced) / static_cast<double>(kept);
    const StoredTensor& scales = *other.scales.tensor;
    const std::span<const std::byte> old = store_.bytes(scales);
    std::vector<std::byte> bytes(old.begin(), old.end());
    const Rescaled rescaled = rescale_e4m3(bytes, ratio);
    report_.rescaled_scales += bytes.size();
    report_.rounded_scales += rescaled.rounded;
    if (rescaled.worst > report_.worst_relative_change) {
      report_.worst_relative_change = rescaled.worst;
      worst_tensor_ = scales.entry.name;
      worst_is_inverted_ = looks_inverted(canonical_scale(*layer.row, gate_stored)) ||
                           looks_inverted(canonical_scale(*layer.row, up_stored));
    }
    value(*other.global_scale.tensor, expert) = kept;
    change(FixPolicy::reconcile_global_scale, other.global_scale.tensor->entry.name,
           fmt::format("{} -> {}", replaced, kept));
    change(FixPolicy::reconcile_global_scale, scales.entry.name,
           rescaled.rounded == 0
               ? fmt::format("block scales times {:.6g}, exactly", ratio)
               : fmt::format("block scales times {:.6g}, {} of {} rounded, by at most {:.3g} %",
                             ratio, rescaled.rounded, bytes.size(), 100 * rescaled.worst));
    edits_.put.push_back(
        {{scales.entry.name, scales.entry.dtype, scales.entry.shape}, std::move(bytes)});
    return Done{};
  }

  // Writing gives every index its right size.
  Result<Done> total_size() {
    if (store_.kind() != tensor::StoreKind::safetensors) {
      return usage("fix.dialect", "total-size is for safetensors").expects("an index", "gguf");
    }
    change(FixPolicy::total_size, "model.safetensors.index.json", "written again");
    return Done{};
  }

  const Checkpoint& checkpoint_;
  const tensor::Store& store_;
  const std::vector<FixPolicy>& policies_;
  CheckpointEdits edits_{};
  std::map<const StoredTensor*, std::vector<float>> scalars_{};
  FixReport report_{};
  std::string worst_tensor_{};
  bool worst_is_inverted_ = false;
};

}  // namespace

std::span<const FixPolicyRow> fix_policies() { return kPolicies; }

std::optional<FixPolicy> fix_policy_from_name(std::string_view name) {
  for (const FixPolicyRow& row : kPolicies) {
    if (row.name == name) return row.policy;
  }
  return std::nullopt;
}

std::string_view name(FixPolicy policy) { return kPolicies[static_cast<int>(policy)].name; }

Result<FixReport> fix(const std::string& path, const std::string& out, const FixOptions& options) {
  const auto asked = [&options](FixPolicy policy) {
    return std::find(options.policies.begin(), options.policies.end(), policy) !=
           options.policies.end();
  };
  if (asked(FixPolicy::fill_input_scale) && asked(FixPolicy::drop_input_scale)) {
    return usage("fix.policies", "fill-input-scale and drop-input-scale contradict each other")
        .expects("one of them", "both");
  }
  // Scales must be right side up before they are compared.
  std::vector<FixPolicy> order = options.policies;
  std::sort(order.begin(), order.end(), [](FixPolicy a, FixPolicy b) {
    const auto rank = [](FixPolicy policy) {
      return policy == FixPolicy::invert_global_scale ? -1 : static_cast<int>(policy);
    };
    return rank(a) < rank(b);
  });
  order.erase(std::unique(order.begin(), order.end()), order.end());
  const auto checkpoint = Checkpoint::open(path);
  if (!checkpoint) return checkpoint.why();
  Fixer fixer(*checkpoint, order);
  if (const auto done = fixer.plan(); !done) return done.why();
  if (fixer.report().changes.empty()) {
    return usage("fix.nothing", "there is nothing these policies would change")
        .expects("a defect they repair", "none")
        .try_this("Run fp4moe lint to see what there is");
  }
  if (fixer.report().worst_relative_change > kMaxRelativeChange && !options.force)
    return fixer.harm();
  const auto copied = copy_checkpoint(
      checkpoint->store(), out, fixer.edits(),
      {.threads = options.threads, .is_checked = true, .progress = options.progress});
  if (!copied) return copied.why();
  return std::move(fixer.report());
}

}  // namespace fp4moe::checkpoint
