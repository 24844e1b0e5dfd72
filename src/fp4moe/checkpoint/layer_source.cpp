#include "fp4moe/checkpoint/layer_source.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/stored_scalar.hpp"

namespace fp4moe::checkpoint {
namespace {

class CheckpointLayerReader : public LayerReader {
 public:
  CheckpointLayerReader(const Checkpoint& checkpoint, std::size_t layer, const Slice& slice)
      : reader_(checkpoint, slice), layer_(layer) {}
  Result<ExpertView> read(std::uint64_t expert) override { return reader_.read(layer_, expert); }
  void release() override { reader_.release(); }

 private:
  ExpertReader reader_;
  std::size_t layer_;
};

class CheckpointLayerSource : public LayerSource {
 public:
  CheckpointLayerSource(const Checkpoint& checkpoint, std::size_t layer, const Slice& slice)
      : checkpoint_(checkpoint), number_(layer), slice_(slice) {}

  std::unique_ptr<LayerReader> reader() const override {
    return std::make_unique<CheckpointLayerReader>(checkpoint_, number_, slice_);
  }
  std::uint64_t known_experts() const override { return layer().shape.experts; }
  bool has_input_scale() const override { return layer().shape.has_input_scale; }
  std::optional<float> input_scale(Projection which, std::uint64_t expert) const override {
    const tensor::StoredTensor* tensor = layer().places(which, expert).input_scale.tensor;
    if (tensor == nullptr) return std::nullopt;
    return canonical_scale(*layer().row, stored_scalar(checkpoint_.store(), *tensor, expert));
  }
  Result<Done> check_views_stay() const override {
    const DialectRow& dialect = *layer().row;
    if (!dialect.needs_unpacking()) return Done{};
    return error(ErrorCode::unavailable, "weights.rows",
                 "this dialect's weights cannot be used where they lie")
        .in(checkpoint_.store().folder())
        .expects("codes and scales in rows of their own", dialect.name)
        .try_this("let them be packed: --weights packed");
  }
  void drop_pages() const override { drop_all(checkpoint_.store()); }
  Error at_expert(Error why, std::uint64_t expert) const override {
    if (why.path.empty()) why.path = checkpoint_.store().folder();
    if (why.tensor.empty()) why.tensor = fmt::format("{}experts.{}", layer().prefix, expert);
    return why;
  }

 private:
  const LayerTensors& layer() const { return checkpoint_.layers()[number_]; }

  const Checkpoint& checkpoint_;
  std::size_t number_;
  Slice slice_;
};

class MemoryLayerSource : public LayerSource {
 public:
  MemoryLayerSource(const LayerWeightsView& weights, std::vector<std::uint64_t> experts)
      : weights_(weights), experts_(std::move(experts)) {}

  std::unique_ptr<LayerReader> reader() const override { return std::make_unique<Reader>(*this); }
  std::uint64_t known_experts() const override { return weights_.shape().experts; }
  bool has_input_scale() const override { return weights_.shape().has_input_scale; }
  std::optional<float> input_scale(Projection which, std::uint64_t known) const override {
    return weights_.input_scale(which, known);
  }
  Result<Done> check_views_stay() const override { return Done{}; }
  Error at_expert(Error why, std::uint64_t expert) const override {
    if (why.tensor.empty()) why.tensor = fmt::format("expert {}", expert);
    return why;
  }

 private:
  class Reader : public LayerReader {
   public:
    explicit Reader(const MemoryLayerSource& source) : source_(source) {}
    Result<ExpertView> read(std::uint64_t expert) override { return source_.read(expert); }

   private:
    const MemoryLayerSource& source_;
  };

  Result<ExpertView> read(std::uint64_t expert) const {
    if (experts_.empty()) return weights_.expert(expert);
    const auto found = std::ranges::lower_bound(experts_, expert);
    if (found == experts_.end() || *found != expert)
      return usage("slice.expert", "the expert is not of this rank")
          .expects(fmt::format("one of its {} experts", experts_.size()),
                   fmt::format("expert {}", expert));
    return weights_.expert(static_cast<std::uint64_t>(found - experts_.begin()));
  }

  LayerWeightsView weights_;
  std::vector<std::uint64_t> experts_;  // empty: all, in order
};

}  // namespace

std::shared_ptr<const LayerSource> layer_source(const Checkpoint& checkpoint, std::size_t layer,
                                                const Slice& slice) {
  return std::make_shared<CheckpointLayerSource>(checkpoint, layer, slice);
}

Result<std::shared_ptr<const LayerSource>> layer_source(const LayerWeightsView& weights,
                                                        std::uint64_t all_experts,
                                                        std::vector<std::uint64_t> experts) {
  const std::uint64_t given = weights.shape().experts;
  if (given == all_experts)
    experts.clear();
  else if (given != experts.size())
    return usage("weights.slice", "the weights are neither all experts nor the rank's")
        .expects(fmt::format("{} or {} experts", all_experts, experts.size()),
                 fmt::format("{}", given));
  return std::shared_ptr<const LayerSource>(
      std::make_shared<MemoryLayerSource>(weights, std::move(experts)));
}

}  // namespace fp4moe::checkpoint
