// A checkpoint opened for its MoE layers: dialect recognized and proven, every layer's tensors
// found and their shapes checked, nothing read yet but headers.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

struct Survey;

// One tensor of a layer as it lies in the store. Null: the checkpoint has none (bias, input scale).
struct TensorPlace {
  const tensor::StoredTensor* tensor = nullptr;
};

struct ProjectionPlaces {
  TensorPlace codes{}, scales{}, global_scale{}, input_scale{}, bias{};
};

// The tensors of a layer's weights. Per-expert dialects have one entry per expert, others one for
// all. Fused dialects name the same tensor for gate and up. Without a gate, `gate` is empty.
struct LayerTensors {
  std::uint64_t index = 0;  // the layer's number in its name
  std::string prefix{};     // e.g. "model.layers.3.mlp."
  const DialectRow* row = nullptr;
  MoeShape shape{};
  std::vector<ProjectionPlaces> gate{}, up{}, down{};

  const std::vector<ProjectionPlaces>& at(Projection which) const {
    return which == Projection::gate ? gate : which == Projection::up ? up : down;
  }
  // The tensors of one expert's projection; for stacked and fused dialects those of all experts.
  const ProjectionPlaces& places(Projection which, std::uint64_t expert) const {
    const auto& all = at(which);
    return row->grouping == Grouping::per_expert ? all[expert] : all[0];
  }
};

// A layer whose experts are not FP4 (a draft layer kept in BF16, say): listed, never read.
struct OtherLayer {
  std::uint64_t index = 0;
  std::string prefix{};
  std::string what{};  // "BF16"
};

class Checkpoint {
 public:
  // Opens a file, a folder or an index. Errors: dialect.unknown, dialect.ambiguous, dialect.mixed,
  // dialect.contradiction, dialect.unquantized, dialect.unsupported, dialect.converted (what
  // fp4moe convert wrote), layer.missing_expert, layer.extra_expert,
  // layer.duplicate, tensor.missing, tensor.shape, tensor.dtype, tensor.duplicate, config.*, and
  // those of the files.
  static Result<Checkpoint> open(const std::string& path);
  // From tensors that the caller has read already; see tensor::Store::of.
  static Result<Checkpoint> of(tensor::Store store);
  // From a store already open and what survey() found in it.
  static Result<Checkpoint> from(std::unique_ptr<tensor::Store> store, Survey found);

  const tensor::Store& store() const { return *store_; }
  const ModelConfig& config() const { return config_; }
  const DialectRow& dialect() const { return *row_; }
  std::string_view evidence() const { return evidence_; }  // what marks the dialect, human-readable
  std::span<const LayerTensors> layers() const { return layers_; }
  std::span<const OtherLayer> others() const { return others_; }

 private:
  std::unique_ptr<tensor::Store> store_{};
  ModelConfig config_{};
  const DialectRow* row_ = nullptr;
  std::string evidence_{};
  std::vector<LayerTensors> layers_{};
  std::vector<OtherLayer> others_{};
};

// How tensor parallelism cuts this layer: gpt-oss by its own rule however it is stored.
SplitRule split_rule(const Checkpoint& checkpoint, const LayerTensors& layer);

// Reads one expert at a time. Zero-copy where bytes lie as canonical rows; GGUF blocks are unpacked
// into scratch that is reused. Only the slice's bytes are touched.
class ExpertReader {
 public:
  ExpertReader(const Checkpoint& checkpoint, Slice slice)
      : checkpoint_(&checkpoint), slice_(slice) {}

  // Expert `expert` (global number) of layer `layer` (position in Checkpoint::layers()), cut to the
  // slice. Valid until the next call.
  // Refuses NaN block scales (scale.nan), negative ones in GGUF where they have no meaning
  // (scale.negative), zero, negative or non-finite global scales (scale.global), experts of other
  // ranks (slice.expert) and ranks without rows (slice.empty). Input scales are handed on as they
  // are: weights alone do not need them.
  // The bias of `down` is absent on tensor-parallel ranks other than 0, so that a sum over ranks
  // adds it once.
  // GGUF blocks of a whole expert are unpacked into `buffers` where one is given, else, and for
  // slices, into memory of the reader's own.
  Result<ExpertView> read(std::size_t layer, std::uint64_t expert,
                          const ExpertBuffers* buffers = nullptr);
  // Lets the pages of the last expert leave memory.
  void release();

 private:
  struct Cut;
  struct Window;
  struct Packed;
  Window window_of(const Cut& cut, Projection which) const;
  Result<Done> read_projection(const Cut& cut, Projection which, ProjectionView& view);
  RowsView stored_rows(const tensor::StoredTensor& tensor, const Window& window,
                       std::uint64_t per_byte);
  Packed packed_rows(const Cut& cut, Projection which, ProjectionView& view);
  static void unpack(WeightFormat format, std::span<const Packed> together);
  void unpack_expert(const Cut& cut, ExpertView& view);
  void transpose_rows(const Cut& cut, Projection which, ProjectionView& view);
  Result<ExpertBuffers> own_buffers(const MoeShape& shape, std::uint64_t rows, Range columns);
  std::span<const std::byte> touch(const tensor::StoredTensor& tensor, std::uint64_t offset,
                                   std::uint64_t size);

  const Checkpoint* checkpoint_;
  Slice slice_;
  tensor::Buffer scratch_{};
  std::vector<std::pair<const tensor::StoredTensor*, std::span<const std::byte>>> touched_{};
};

}  // namespace fp4moe::checkpoint
