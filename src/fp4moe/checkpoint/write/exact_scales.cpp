#include "fp4moe/checkpoint/write/exact_scales.hpp"

#include <array>
#include <bit>
#include <utility>

#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/stored_scalar.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::array<std::pair<Projection, Matrix>, 3> kProjections{
    {{Projection::gate, Matrix::gate},
     {Projection::up, Matrix::up},
     {Projection::down, Matrix::down}}};

std::string record_name(const std::string& tensor, std::uint64_t expert, bool shared) {
  return shared ? tensor + "[" + std::to_string(expert) + "]" : tensor;
}

}  // namespace

ScaleBits scale_bits(std::uint32_t stored, GlobalScale convention,
                     std::optional<std::uint32_t> recorded) {
  // A record whose reciprocal is not what is stored belongs to a scale that was changed since.
  const bool holds = recorded && reciprocal_bits(*recorded) == stored;
  const std::uint32_t other = holds ? *recorded : reciprocal_bits(stored);
  return convention == GlobalScale::divides ? ScaleBits{.multiplies = other, .divides = stored}
                                            : ScaleBits{.multiplies = stored, .divides = other};
}

Result<ScaleSource> ScaleSource::open(const Checkpoint& checkpoint) {
  ScaleSource source;
  source.checkpoint_ = &checkpoint;
  Result<ExactScales> records = read_exact_scales(checkpoint.store());
  if (!records) return records.why();
  source.records_ = *std::move(records);
  return source;
}

ScaleBits ScaleSource::bits_of(const tensor::StoredTensor& tensor, std::uint64_t expert,
                               GlobalScale convention) const {
  const float stored = stored_scalar(checkpoint_->store(), tensor, expert);
  std::optional<std::uint32_t> recorded;
  if (!records_.empty()) {
    const auto found =
        records_.find(record_name(tensor.entry.name, expert, has_scalar_for_each(tensor)));
    if (found != records_.end()) recorded = found->second;
  }
  return scale_bits(std::bit_cast<std::uint32_t>(stored), convention, recorded);
}

Result<StoredScales> ScaleSource::scales(const LayerTensors& layer, std::uint64_t expert,
                                         GlobalScale target) const {
  StoredScales scales;
  for (const auto& [projection, matrix] : kProjections) {
    if (projection == Projection::gate && !layer.shape.gated()) continue;
    const ProjectionPlaces& places = layer.places(projection, expert);
    const GlobalScale own = layer.row->global_scale;
    StoredScales::Pair& pair = scales.at(matrix);
    if (places.global_scale.tensor != nullptr)
      pair.global = bits_of(*places.global_scale.tensor, expert, own).in(target);
    if (places.input_scale.tensor != nullptr) {
      pair.input = bits_of(*places.input_scale.tensor, expert, own).in(target);
    } else if (layer.shape.has_input_scale) {
      return invalid("transcode.input_scale", "an expert has no input scale, others have")
          .in(checkpoint_->store().path(*places.codes.tensor))
          .at(places.codes.tensor->entry.name)
          .expects("input scales for all experts of a layer or for none", "none for this one")
          .try_this("Repair it with fp4moe lint --fix first");
    }
  }
  return scales;
}

Result<ExactScales> ScaleSource::records_for(const CheckpointPlan& plan) const {
  ExactScales records;
  const GlobalScale target = plan.row.global_scale;
  if (target == GlobalScale::none) return records;
  const GlobalScale own = checkpoint_->dialect().global_scale;
  std::size_t seen = 0;
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerTensors& layer = checkpoint_->layers()[l];
    // Nothing is lost between files of one convention unless something was recorded before.
    if (own == target && records_.empty() && !layer.shape.has_input_scale) continue;
    const ExpertLayout layout = expert_layout(plan.row, plan.layers[l].shape, plan.bias_dtype);
    const bool shared = plan.row.grouping != Grouping::per_expert && !plan.row.is_transposed;
    for (std::uint64_t e = 0; e < layer.shape.experts; ++e) {
      if (const Result<StoredScales> whole = scales(layer, e, target); !whole) return whole.why();
      for (const Run& run : layout.runs) {
        const bool global = run.part == Part::global_scale;
        if (!global && run.part != Part::input_scale) continue;
        for (const auto& [projection, matrix] : kProjections) {
          // One number for gate and up where they are one tensor.
          if (matrix != (run.matrix == Matrix::gate_up ? Matrix::up : run.matrix)) continue;
          const ProjectionPlaces& places = layer.places(projection, e);
          const TensorPlace place = global ? places.global_scale : places.input_scale;
          if (place.tensor == nullptr) continue;
          const ScaleBits bits = bits_of(*place.tensor, e, own);
          if (!needs_record(bits, target)) continue;
          const std::string name = run_tensor(layout, run, plan.layers[l].prefix, e).name;
          records[record_name(name, e, shared)] = bits.in_other(target);
        }
      }
      // The numbers lie scattered, and each brings its page along.
      if (++seen % 16 == 0) drop_all(checkpoint_->store());
    }
  }
  drop_all(checkpoint_->store());
  return records;
}

}  // namespace fp4moe::checkpoint
