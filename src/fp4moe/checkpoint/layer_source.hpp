// The source of a rank's experts of one layer: a checkpoint, or memory of the caller. Whoever
// packs a layer reads it through this.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::checkpoint {

// For one thread.
class LayerReader {
 public:
  virtual ~LayerReader() = default;
  // An expert of the rank by its global number. Valid until the next call; where views_stay(), as
  // long as the source's memory. Errors: as of ExpertReader::read.
  virtual Result<ExpertView> read(std::uint64_t expert) = 0;
  virtual void release() {}  // pages of the last expert may leave memory
};

class LayerSource {
 public:
  virtual ~LayerSource() = default;
  virtual std::unique_ptr<LayerReader> reader() const = 0;

  // Number of experts whose input scales are known (of all ranks if possible), and one of these
  // scales.
  virtual std::uint64_t known_experts() const = 0;
  virtual std::optional<float> input_scale(Projection which, std::uint64_t known) const = 0;
  virtual bool has_input_scale() const = 0;

  // Nothing is copied, so that engines can compute with the rows where they lie. Errors:
  // weights.rows where the dialect has no such rows (GGUF).
  virtual Result<Done> check_views_stay() const = 0;
  // Releases the pages that readers have mapped.
  virtual void drop_pages() const {}
  // The error with the file and the expert it arose at, where it names none.
  virtual Error at_expert(Error why, std::uint64_t expert) const = 0;
};

// `checkpoint` outlives the source.
std::shared_ptr<const LayerSource> layer_source(const Checkpoint& checkpoint, std::size_t layer,
                                                const Slice& slice);
// `weights` hold the rank's part of the intermediate size (LayerWeightsView::slice), and all experts
// or only `experts`, the global numbers of the rank's, ascending. Errors: weights.slice.
Result<std::shared_ptr<const LayerSource>> layer_source(const LayerWeightsView& weights,
                                                        std::uint64_t all_experts,
                                                        std::vector<std::uint64_t> experts);

}  // namespace fp4moe::checkpoint
