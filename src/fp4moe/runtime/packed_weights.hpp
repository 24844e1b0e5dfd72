// A layer's weights in a backend's layout: memory of its own that is filled from a checkpoint or from
// memory of another owner, or a converted folder mapped without copying. Filling again puts the
// same source's bytes at the same addresses.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/pack/layer_job.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::convert {
class ConvertedFolder;
}

namespace fp4moe::runtime {

class PackedWeights {
 public:
  // Memory for a rank's share of a layer, zeroed.
  static Result<PackedWeights> create(const layout::Layout& layout,
                                      const convert::Problem& problem);
  // The layer without memory: for weights that stay where the source has them.
  static Result<PackedWeights> describe(const layout::Layout& layout,
                                        const convert::Problem& problem);
  static Result<PackedWeights> map(std::shared_ptr<const convert::ConvertedFolder> folder,
                                   std::size_t number);
  // Tensors that were packed already, in the packer's order; their memory outlives this.
  static PackedWeights of(convert::LayerPacker packer,
                          std::vector<std::span<const std::byte>> tensors);

  // Packs the layer into this memory, the first time or again; without memory, takes notes of its
  // scalars only. Errors: those of the reader and the packer, weights.mapped when the memory is a
  // file's.
  Result<Done> load(const convert::LayerJob& job, std::size_t threads);
  // The same from experts in memory, whose shape is the problem's.
  Result<Done> load(const moe::ExpertSource& source);
  // One expert again, by its position among those of the rank.
  Result<Done> load_expert(const convert::LayerJob& job, std::size_t position);

  // Errors: weights.mapped.
  Result<Done> check_own_memory() const;

  const convert::LayerPacker& packer() const { return packer_; }
  std::span<const std::span<const std::byte>> tensors() const { return views_; }
  std::span<const std::span<std::byte>> memory() const { return targets_; }  // none where mapped
  // A small tensor as numbers; empty when the layout has none of this name.
  std::vector<float> scalars(std::string_view name) const;
  std::uint64_t bytes() const;  // in memory, mapped, or as they would be

  // Experts as canonical views, unpacked one at a time. Valid as long as this object.
  moe::ExpertSource source() const;
  // The same experts as rows where the source has them. Valid as long as the job and its source's
  // memory.
  // Errors: weights.rows where the dialect has no such rows (GGUF).
  Result<moe::ExpertSource> source(const convert::LayerJob& job) const;

 private:
  explicit PackedWeights(convert::LayerPacker packer) : packer_(std::move(packer)) {}

  convert::LayerPacker packer_;
  std::vector<tensor::Buffer> memory_{};
  std::vector<std::span<std::byte>> targets_{};
  std::vector<std::span<const std::byte>> views_{};
  std::shared_ptr<const convert::ConvertedFolder> folder_{};
};

}  // namespace fp4moe::runtime
