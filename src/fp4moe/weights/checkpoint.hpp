// A checkpoint opened for its MoE layers: dialect recognised and proven, every layer's tensors
// found and their shapes checked, nothing read yet but headers.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "fp4moe/weights/dialect.hpp"
#include "fp4moe/weights/expert.hpp"
#include "fp4moe/weights/moe_shape.hpp"
#include "fp4moe/weights/slice.hpp"

namespace fp4moe::weights {

// What config.json (or GGUF metadata) says and a reader needs; absent fields were not given.
struct ModelConfig {
  std::string model_type{};
  std::optional<std::uint64_t> layers{}, experts{}, top_k{}, hidden{}, intermediate{};
  std::optional<double> swiglu_limit{};
};

// One tensor of a layer as it lies in the store. Null: the checkpoint has none (bias, input scale).
struct TensorPlace {
  const tensor::StoredTensor* tensor = nullptr;
};

struct ProjectionPlaces {
  TensorPlace codes{}, scales{}, global_scale{}, input_scale{}, bias{};
};

// Where a layer's weights are. Per-expert dialects have one entry per expert, others one for all.
// Fused dialects name the same tensor for gate and up.
struct MoeLayer {
  std::uint64_t index = 0;  // the layer's number in its name
  std::string prefix{};     // e.g. "model.layers.3.mlp."
  const DialectRow* row = nullptr;
  MoeShape shape{};
  std::vector<ProjectionPlaces> gate{}, up{}, down{};
};

class Checkpoint {
 public:
  // Opens a file, a folder or an index. Errors: dialect.unknown, dialect.ambiguous, dialect.mixed,
  // layer.missing_expert, tensor.missing, tensor.shape, tensor.dtype, ...
  static Result<Checkpoint> open(const std::string& path);

  const tensor::Store& store() const { return *store_; }
  const ModelConfig& config() const { return config_; }
  const DialectRow& dialect() const { return *row_; }
  std::string_view evidence() const { return evidence_; }  // what marks the dialect, for people
  std::span<const MoeLayer> layers() const { return layers_; }

 private:
  std::unique_ptr<tensor::Store> store_{};
  ModelConfig config_{};
  const DialectRow* row_ = nullptr;
  std::string evidence_{};
  std::vector<MoeLayer> layers_{};
};

// Reads one expert at a time. Zero-copy where bytes lie as canonical rows; GGUF blocks are unpacked
// into scratch that is reused. Only the slice's bytes are touched.
class ExpertReader {
 public:
  ExpertReader(const Checkpoint& checkpoint, Slice slice)
      : checkpoint_(&checkpoint), slice_(slice) {}

  // Expert `expert` (global number) of layer `layer` (position in Checkpoint::layers()), cut to the
  // slice. Valid until the next call. Refuses NaN scales and zero or non-finite global scales.
  Result<ExpertView> read(std::size_t layer, std::uint64_t expert);
  // Lets the pages of the last expert leave memory.
  void release();

 private:
  const Checkpoint* checkpoint_;
  Slice slice_;
  tensor::Buffer scratch_{};
  std::vector<std::pair<const tensor::StoredTensor*, std::span<const std::byte>>> touched_{};
};

}  // namespace fp4moe::weights
