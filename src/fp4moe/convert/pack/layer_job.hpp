// A rank's part of one layer, and the sizes its backend computes with: all that packing needs
// to know beside the weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/layer_source.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/oracle/backend.hpp"

namespace fp4moe::convert {

// How sizes are padded: by the backend's rules on a device, or by hand. Without both they stay.
struct Sizing {
  const oracle::Backend* backend = nullptr;
  platform::Device device{};
  std::optional<oracle::Activation> activation{};
  std::optional<std::uint64_t> hidden{}, intermediate{};
};

// The target of a conversion.
struct Recipe {
  const layout::Layout* layout = nullptr;
  Sizing sizing{};
  checkpoint::Slice slice{};
  tensor::DType params_type = tensor::DType::bf16;
};

// The sizes every rank of the group computes with. Errors: convert.padding (a size by hand that is
// smaller than what it must hold), convert.slice (a rank's part does not fit the backend's size),
// sizes.*, slice.*.
Result<layout::Sizes> padded_sizes(const Sizing& sizing, const checkpoint::MoeShape& shape,
                                   checkpoint::Rank tensor_parallel, checkpoint::SplitRule rule);

struct LayerJob {
  std::shared_ptr<const checkpoint::LayerSource> source{};
  std::vector<std::uint64_t> experts{};  // global numbers; position i of the packer is experts[i]
  Problem problem{};
};

// `checkpoint` outlives the job. Errors: those of padded_sizes, slice.empty and slice.experts (a
// rank without rows or experts), convert.bias_type (biases of several types).
Result<LayerJob> layer_job(const checkpoint::Checkpoint& checkpoint, std::size_t number,
                           const Recipe& recipe);

// A layer of this shape whose weights lie in memory: all of it, or what the slice of the recipe
// leaves of it (fewer experts, less of the intermediate size). Errors: as above, weights.slice
// (weights of neither shape).
struct MemoryLayer {
  checkpoint::MoeShape shape{};  // of the whole layer
  checkpoint::SplitRule rule = checkpoint::SplitRule::equal;
  checkpoint::LayerWeightsView weights;
};
Result<LayerJob> layer_job(const MemoryLayer& layer, const Recipe& recipe);

}  // namespace fp4moe::convert
