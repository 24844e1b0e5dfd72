#include "fp4moe/checkpoint/lora/adapter_builder.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::Shape;
using tensor::StoredTensor;

std::string shapes_text(const StoredTensor& a, const StoredTensor& b) {
  return fmt::format("A {}, B {}", tensor::text(a.entry.shape), tensor::text(b.entry.shape));
}

std::string_view projection_word(StoredProjection projection) {
  switch (projection) {
    case StoredProjection::gate:
      return "gate_proj";
    case StoredProjection::up:
      return "up_proj";
    case StoredProjection::down:
      return "down_proj";
    case StoredProjection::gate_up:
      break;
  }
  return "gate_up_proj";
}

}  // namespace

Error AdapterBuilder::at(const StoredTensor& tensor, std::string_view id,
                         std::string_view message) const {
  return invalid(id, message).in(adapter_.store().path(tensor)).at(tensor.entry.name);
}

Result<Done> AdapterBuilder::build() {
  if (Result<Done> done = collect(); !done) return done;
  if (Result<Done> done = find_layers(); !done) return done;
  for (const auto& [name, module] : modules_) {
    if (Result<Done> fine = check_module(module); !fine) return fine;
    if (!module.name.projection) continue;
    if (Result<Done> done = add_named(module); !done) return done;
  }
  return add_wrapped();
}

Result<Done> AdapterBuilder::collect() {
  std::set<std::string> others;
  for (const StoredTensor& tensor : adapter_.store().tensors()) {
    const std::string_view name = tensor.entry.name;
    const std::optional<AdapterName> parsed = parse_adapter_name(name);
    if (!parsed) {
      if (adapter_mentions_experts(name))
        return at(tensor, "adapter.name", "a tensor of the experts is none that LoRA has")
            .expects("...experts.7.gate_proj.lora_A.weight, ...experts.lora_B.weight and the like",
                     printable(name));
      const std::size_t end = std::min(name.find(".lora_"), name.size());
      others.emplace(model_name(name.substr(0, end)));
      continue;
    }
    Module& module = modules_[parsed->module];
    module.name = *parsed;
    const StoredTensor*& factor = parsed->factor == Factor::a ? module.a : module.b;
    if (factor != nullptr)
      return at(tensor, "adapter.duplicate", "a factor is given twice")
          .expects("one tensor", fmt::format("{} too", printable(factor->entry.name)));
    factor = &tensor;
    const tensor::DType dtype = tensor.entry.dtype;
    if (dtype != tensor::DType::f32 && dtype != tensor::DType::bf16 && dtype != tensor::DType::f16)
      return at(tensor, "adapter.dtype", "factors of this type cannot be read")
          .expects("F32, BF16 or F16", tensor::name(dtype));
  }
  adapter_.other_modules_.assign(others.begin(), others.end());
  return Done{};
}

// The whole prefix decides; a model wrapped in another (language_model.) is known by its number,
// when only one layer has it.
Result<std::size_t> AdapterBuilder::find_layer(const Module& module) const {
  const std::vector<AdapterTarget>& targets = adapter_.targets_;
  std::vector<std::size_t> numbered;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].prefix == module.name.prefix) return i;
    if (targets[i].index == module.name.layer) numbered.push_back(i);
  }
  if (numbered.size() == 1) return numbered[0];
  const StoredTensor& tensor = module.a != nullptr ? *module.a : *module.b;
  std::string found = "no MoE layer";
  if (!targets.empty())
    found = fmt::format("{} MoE layer{}, {} to {}", targets.size(), targets.size() == 1 ? "" : "s",
                        targets.front().prefix, targets.back().prefix);
  return at(tensor, "adapter.layer", "the model has no such layer with FP4 experts")
      .expects(fmt::format("layer {}", printable(module.name.prefix)), found)
      .try_this("Check that the adapter was trained for this model");
}

Result<Done> AdapterBuilder::find_layers() {
  std::map<std::size_t, std::string_view> prefixes;
  for (auto& [name, module] : modules_) {
    const Result<std::size_t> layer = find_layer(module);
    if (!layer) return layer.why();
    module.layer = *layer;
    const auto [known, added] = prefixes.emplace(*layer, module.name.prefix);
    if (added || known->second == module.name.prefix) continue;
    const StoredTensor& tensor = module.a != nullptr ? *module.a : *module.b;
    return at(tensor, "adapter.duplicate", "two sets of names mean the same layer")
        .expects("one",
                 fmt::format("{} and {}", printable(known->second), printable(module.name.prefix)));
  }
  return Done{};
}

Result<Done> AdapterBuilder::check_module(const Module& module) const {
  if (module.a == nullptr || module.b == nullptr) {
    const StoredTensor& alone = module.a != nullptr ? *module.a : *module.b;
    return at(alone, "adapter.pair", "a factor has no partner")
        .expects("lora_A and lora_B of a module",
                 module.a != nullptr ? "lora_A alone" : "lora_B alone");
  }
  const AdapterTarget& target = adapter_.targets_[module.layer];
  if (module.name.expert && *module.name.expert >= target.shape.experts)
    return at(*module.a, "adapter.expert", "the layer has no such expert")
        .expects(fmt::format("experts 0 to {}", target.shape.experts - 1),
                 fmt::format("expert {}", *module.name.expert));
  const bool wants_gate =
      module.name.projection && (*module.name.projection == StoredProjection::gate ||
                                 *module.name.projection == StoredProjection::gate_up);
  if (wants_gate && !target.shape.gated())
    return at(*module.a, "adapter.no_gate", "the model has no gate")
        .expects("up_proj and down_proj", projection_word(*module.name.projection));
  return Done{};
}

AdapterBuilder::Sizes AdapterBuilder::sizes_of(const AdapterTarget& target,
                                               StoredProjection projection) const {
  const std::uint64_t hidden = target.shape.hidden, intermediate = target.shape.intermediate;
  if (projection == StoredProjection::down)
    return {.projection = projection, .inputs = intermediate, .outputs = hidden};
  return {.projection = projection,
          .inputs = hidden,
          .outputs = projection == StoredProjection::gate_up ? 2 * intermediate : intermediate};
}

Result<Done> AdapterBuilder::add_named(const Module& module) {
  return add(module, sizes_of(adapter_.targets_[module.layer], *module.name.projection));
}

// Wrappers do not say which parameter they change; their sizes do. Where a down matrix is square,
// its factors changed places if those of gate and up did.
Result<Done> AdapterBuilder::add_wrapped() {
  std::map<std::size_t, std::vector<const Module*>> wrappers;
  for (const auto& [name, module] : modules_)
    if (!module.name.projection) wrappers[module.layer].push_back(&module);
  for (auto& [layer, all] : wrappers) {
    // The innermost first: it holds the parameter that the model declares first, gate and up.
    std::ranges::sort(all, std::ranges::greater{}, [](const Module* m) { return m->name.depth; });
    std::optional<bool> swapped;
    for (const Module* module : all) {
      const Result<Sizes> sizes = wrapped_sizes(*module, all.size(), swapped);
      if (!sizes) return sizes.why();
      if (sizes->projection == StoredProjection::gate_up && sizes->inputs != sizes->outputs)
        swapped = sizes->swapped;
      if (Result<Done> done = add(*module, *sizes); !done) return done;
    }
  }
  return Done{};
}

Result<AdapterBuilder::Sizes> AdapterBuilder::wrapped_sizes(const Module& module,
                                                            std::size_t wrappers,
                                                            std::optional<bool> swapped) const {
  const AdapterTarget& target = adapter_.targets_[module.layer];
  const StoredProjection first =
      target.shape.gated() ? StoredProjection::gate_up : StoredProjection::up;
  const Shape &a = module.a->entry.shape, &b = module.b->entry.shape;
  std::vector<Sizes> fitting;
  if (a.size() == 2 && b.size() == 2)
    for (const bool swap : {false, true})
      for (const StoredProjection projection : {first, StoredProjection::down}) {
        Sizes sizes = sizes_of(target, projection);
        sizes.swapped = swap;
        const std::uint64_t of_a = swap ? sizes.outputs : sizes.inputs;
        const std::uint64_t of_b = swap ? sizes.inputs : sizes.outputs;
        if (a[1] == of_a && b[0] == of_b) fitting.push_back(sizes);
      }
  if (fitting.empty()) {
    const Sizes w13 = sizes_of(target, first), w2 = sizes_of(target, StoredProjection::down);
    return at(*module.a, "adapter.shape", "the factors fit no matrix of the experts")
        .expects(fmt::format("A [{0} * rank, {1}], B [{2}, rank * {0}] for {3}, or A [{0} * rank, "
                             "{4}], B [{5}, rank * {0}] for down_proj",
                             target.shape.experts, w13.inputs, w13.outputs, projection_word(first),
                             w2.inputs, w2.outputs),
                 shapes_text(*module.a, *module.b));
  }
  // Without a gate, up and down have the same sizes with places changed.
  StoredProjection wanted = fitting[0].projection;
  const bool several = std::ranges::any_of(
      fitting, [&](const Sizes& other) { return other.projection != fitting[0].projection; });
  if (several && wrappers == 2) wanted = module.name.depth != 0 ? first : StoredProjection::down;
  if (several && wrappers == 1 && adapter_.config().target_parameters.size() == 1)
    wanted = adapter_.config().target_parameters[0].ends_with("down_proj") ? StoredProjection::down
                                                                           : first;
  std::erase_if(fitting, [&](const Sizes& other) { return other.projection != wanted; });
  if (swapped)
    for (const Sizes& other : fitting)
      if (other.swapped == *swapped) return other;
  return fitting[0];
}

Result<AdapterBuilder::Stored> AdapterBuilder::stored_form(const Module& module, const Sizes& sizes,
                                                           LoraScale scale) const {
  const Shape &a = module.a->entry.shape, &b = module.b->entry.shape;
  const std::uint64_t experts = adapter_.targets_[module.layer].shape.experts;
  const std::uint64_t of_a = sizes.swapped ? sizes.outputs : sizes.inputs;
  const std::uint64_t of_b = sizes.swapped ? sizes.inputs : sizes.outputs;
  const bool alone = module.name.expert.has_value();
  const bool deep = !alone && module.name.projection && a.size() == 3 && b.size() == 3;
  const std::uint64_t ranks = alone || deep ? scale.rank : scale.rank * experts;
  const auto wrong = [&](std::string_view id, std::string_view message) {
    const std::string form = deep ? fmt::format("A [{0} or 1, {1}, {2}], B [{0} or 1, {3}, {1}]",
                                                experts, scale.rank, of_a, of_b)
                                  : fmt::format("A [{0}, {1}], B [{2}, {0}]", ranks, of_a, of_b);
    return at(*module.a, id, message)
        .expects(fmt::format("{} (rank {}, {} experts)", form, scale.rank, experts),
                 shapes_text(*module.a, *module.b));
  };
  if (!deep && (a.size() != 2 || b.size() != 2))
    return wrong("adapter.shape", "the factors have the wrong number of dimensions");
  const std::size_t skip = deep ? 1 : 0;
  if (a[skip + 1] != of_a || b[skip] != of_b)
    return wrong("adapter.shape", "the factors do not fit the expert's matrix");
  if (deep && ((a[0] != experts && a[0] != 1) || (b[0] != experts && b[0] != 1)))
    return wrong("adapter.shape", "the factors are for another number of experts");
  if (a[skip] != ranks || b[skip + 1] != ranks)
    return wrong("adapter.rank", "the factors have another rank than the configuration says");
  return Stored{.rank = scale.rank, .a_experts = deep ? a[0] : 0, .b_experts = deep ? b[0] : 0};
}

Result<Done> AdapterBuilder::put(const Module& module, Projection which, std::uint64_t expert,
                                 const LowRankPlace& place) {
  auto& layer = adapter_.places_[module.layer];
  if (layer.empty()) layer.resize(adapter_.targets_[module.layer].shape.experts);
  LowRankPlace& to = layer[expert][static_cast<std::size_t>(which)];
  if (!to.empty())
    return at(*module.a, "adapter.duplicate", "a matrix of an expert is changed twice")
        .expects("one pair of factors",
                 fmt::format("{} too, for expert {}", printable(to.a.tensor->entry.name), expert));
  to = place;
  return Done{};
}

Result<Done> AdapterBuilder::add(const Module& module, const Sizes& sizes) {
  const AdapterTarget& target = adapter_.targets_[module.layer];
  const std::string parameter =
      module.name.projection
          ? std::string(module.name.module)
          : fmt::format("{}experts.{}", module.name.prefix, projection_word(sizes.projection));
  const LoraScale scale = lora_scale(adapter_.config(), parameter);
  const Result<Stored> form = stored_form(module, sizes, scale);
  if (!form) return form.why();
  const std::uint64_t rank = form->rank, experts = target.shape.experts;
  const bool alone = module.name.expert.has_value();
  const bool folded = !alone && form->a_experts == 0;
  const std::uint64_t begin = alone ? *module.name.expert : 0;
  const std::uint64_t end = alone ? begin + 1 : experts;
  const std::uint64_t a_width = module.a->entry.shape.back();
  for (std::uint64_t e = begin; e < end; ++e) {
    // As stored, before the factors change places.
    FactorPlace a{.tensor = module.a,
                  .rows = rank,
                  .columns = a_width,
                  .first = (alone || form->a_experts == 1) ? 0 : e * rank * a_width,
                  .row_step = a_width,
                  .column_step = 1};
    const std::uint64_t outputs = sizes.swapped ? sizes.inputs : sizes.outputs;
    FactorPlace b{.tensor = module.b, .rows = outputs, .columns = rank};
    b.first = folded ? e : (alone || form->b_experts == 1) ? 0 : e * outputs * rank;
    b.row_step = folded ? rank * experts : rank;
    b.column_step = folded ? experts : 1;
    if (sizes.swapped) {
      const auto transposed = [](const FactorPlace& f) {
        return FactorPlace{f.tensor, f.columns, f.rows, f.first, f.column_step, f.row_step};
      };
      std::swap(a, b);
      a = transposed(a);
      b = transposed(b);
    }
    const LowRankPlace whole{.a = a, .b = b, .scale = scale.scale};
    if (sizes.projection != StoredProjection::gate_up) {
      const Projection which = sizes.projection == StoredProjection::down   ? Projection::down
                               : sizes.projection == StoredProjection::gate ? Projection::gate
                                                                            : Projection::up;
      if (Result<Done> done = put(module, which, e, whole); !done) return done;
      continue;
    }
    LowRankPlace gate = whole, up = whole;
    gate.b.rows = up.b.rows = target.shape.intermediate;
    const std::uint64_t up_row = target.is_gpt_oss ? 1 : target.shape.intermediate;
    up.b.first += up_row * whole.b.row_step;
    if (target.is_gpt_oss) gate.b.row_step = up.b.row_step = 2 * whole.b.row_step;
    if (Result<Done> done = put(module, Projection::gate, e, gate); !done) return done;
    if (Result<Done> done = put(module, Projection::up, e, up); !done) return done;
  }
  return Done{};
}

}  // namespace fp4moe::checkpoint
