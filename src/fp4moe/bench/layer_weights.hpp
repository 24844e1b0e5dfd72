// Experts with weights as quantizing normal data gives them, made quickly however large the model
// is: one buffer of quantized blocks is slightly longer than the largest matrix, and every matrix
// of every expert and layer is a window of it at another offset. A measured layer packs them into
// its own memory, so caches see as many bytes as the model has.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::bench {

class RandomExperts {
 public:
  // Errors: bench.shape (sizes that are not whole blocks), no memory.
  static Result<RandomExperts> make(const checkpoint::MoeShape& shape, std::uint64_t seed);

  // The experts of a layer; valid as long as this object. Different layers differ.
  moe::ExpertSource source(std::uint64_t layer) const;
  checkpoint::ExpertView expert(std::uint64_t layer, std::uint64_t position) const;

 private:
  checkpoint::ProjectionView window(std::uint64_t number, std::uint64_t rows,
                                    std::uint64_t columns) const;

  checkpoint::MoeShape shape_{};
  tensor::Buffer codes_{}, scales_{}, bias_{};  // bias: bf16
  float global_scale_ = 1.0f;
};

}  // namespace fp4moe::bench
