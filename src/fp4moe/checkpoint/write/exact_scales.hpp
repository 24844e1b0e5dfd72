// Global and input scales in both conventions at once. ModelOpt stores s, compressed-tensors 1/s;
// float32 cannot always undo a reciprocal. So a number is carried as a pair: what the file stores,
// and what the other convention's file stored before, where that was recorded.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

struct ScaleBits {
  std::uint32_t multiplies = 0, divides = 0;

  std::uint32_t in(GlobalScale convention) const {
    return convention == GlobalScale::divides ? divides : multiplies;
  }
  std::uint32_t in_other(GlobalScale convention) const {
    return convention == GlobalScale::divides ? multiplies : divides;
  }
};

// The pair of a stored number; `recorded` is the other convention's, if known.
ScaleBits scale_bits(std::uint32_t stored, GlobalScale convention,
                     std::optional<std::uint32_t> recorded);

// True if a file of this convention must record the other number to be able to give it back.
inline bool needs_record(const ScaleBits& bits, GlobalScale convention) {
  return reciprocal_bits(bits.in(convention)) != bits.in_other(convention);
}

// The scalars of the experts of a checkpoint, and its records.
class ScaleSource {
 public:
  static Result<ScaleSource> open(const Checkpoint& checkpoint);

  // As a file of convention `target` stores them. Refuses an expert without an input scale in a
  // layer that has them.
  Result<StoredScales> scales(const LayerTensors& layer, std::uint64_t expert,
                              GlobalScale target) const;
  // The scales to record when the checkpoint is written under `plan`.
  Result<ExactScales> records_for(const CheckpointPlan& plan) const;

  // One scalar tensor that belongs to no expert.
  ScaleBits bits_of(const tensor::StoredTensor& tensor, std::uint64_t expert,
                    GlobalScale convention) const;

 private:
  const Checkpoint* checkpoint_ = nullptr;
  ExactScales records_{};
};

}  // namespace fp4moe::checkpoint
