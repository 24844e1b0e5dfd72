// Puts one unpacked expert back to where a checkpoint keeps it: the inverse of ExpertReader, by the
// same places. Rows that a rank holds go to their part of the matrices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/convert/folder/raw_file.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::convert {

// The memory of an expert in work. Gate and up share one matrix if the checkpoint interleaves them.
class ExpertMemory {
 public:
  // For experts of `layer` cut to `range` of the intermediate size.
  static Result<ExpertMemory> make(const checkpoint::LayerTensors& layer, checkpoint::Range range,
                                   tensor::DType bias_type);

  const LayerPacker::ExpertTarget& target() const { return target_; }
  // A view of what it holds. `has_down_bias`: only the first tensor-parallel rank does.
  checkpoint::ExpertView view(bool has_down_bias) const;

 private:
  friend class ExpertWriter;
  checkpoint::MoeShape shape_{};
  tensor::DType bias_type_ = tensor::DType::bf16;
  tensor::Buffer buffer_{};
  LayerPacker::ExpertTarget target_{};
  std::span<std::byte> blocks_{};  // GGUF: rows of blocks, of the widest matrix
};

class ExpertWriter {
 public:
  // `files` are those of the checkpoint's store, in its order. Errors: unconvert.blocks, for a
  // rank's range that cuts through GGUF blocks.
  static Result<ExpertWriter> make(const checkpoint::Checkpoint& checkpoint, std::size_t layer,
                                   checkpoint::Slice slice, std::span<const RawFile> files);

  checkpoint::Range range() const { return range_; }
  Result<Done> write(std::uint64_t expert, const ExpertMemory& memory) const;

 private:
  ExpertWriter(const checkpoint::LayerTensors& layer, checkpoint::Slice slice,
               std::span<const RawFile> files)
      : layer_(&layer), slice_(slice), files_(files) {}
  struct Rows;
  Result<Done> write_rows(const tensor::StoredTensor& tensor, const Rows& rows) const;
  Result<Done> write_matrix(std::uint64_t expert, checkpoint::Projection which,
                            const ExpertMemory& memory) const;
  Result<Done> write_columns(std::uint64_t expert, checkpoint::Projection which,
                             const ExpertMemory& memory) const;
  Result<Done> write_blocks(std::uint64_t expert, checkpoint::Projection which,
                            const ExpertMemory& memory) const;
  Result<Done> write_bias(std::uint64_t expert, const ExpertMemory& memory) const;
  bool is_joined(std::uint64_t expert) const;

  const checkpoint::LayerTensors* layer_;
  checkpoint::Slice slice_;
  std::span<const RawFile> files_;
  checkpoint::Range range_{};
};

}  // namespace fp4moe::convert
