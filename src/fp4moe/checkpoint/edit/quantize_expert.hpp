// One expert's matrices from numbers to FP4, a few rows at a time.
#pragma once
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/edit/plain_checkpoint.hpp"
#include "fp4moe/checkpoint/edit/quantize.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::checkpoint {

// Sums over a matrix, to be added up in a fixed order.
struct ErrorSums {
  double max = 0, squared_error = 0, squared = 0;

  void add(const ErrorSums& other);
};

struct ExpertErrors {
  ErrorSums gate{}, up{}, down{};
};

class ExpertQuantizer {
 public:
  ExpertQuantizer(const PlainCheckpoint& source, const QuantizeOptions& options)
      : source_(&source), options_(&options) {}

  // The quantized expert; valid until the next call. `shape` says format and input scales.
  Result<ExpertView> quantize(const PlainLayer& layer, std::uint64_t expert, const MoeShape& shape);
  const StoredScales& scales(GlobalScale convention);  // of the last expert
  const ExpertErrors& errors() const { return errors_; }

 private:
  Result<float> max_magnitude(const PlainMatrix& matrix);
  Result<Done> quantize_matrix(const PlainMatrix& matrix, float divisor, ProjectionView& view,
                               ErrorSums& sums);
  // Rows as dense numbers: in place where they lie so, else gathered.
  const std::byte* rows_of(const PlainMatrix& matrix, std::uint64_t begin, std::uint64_t end);
  Error not_finite(const PlainMatrix& matrix, std::uint64_t begin, std::uint64_t end) const;

  const PlainCheckpoint* source_;
  const QuantizeOptions* options_;
  tensor::Buffer output_{}, rows_{}, back_{};
  std::byte* next_ = nullptr;
  float gate_divisor_ = 1, up_divisor_ = 1, down_divisor_ = 1;
  std::optional<float> gate_input_{}, up_input_{}, down_input_{};
  StoredScales stored_{};
  ExpertErrors errors_{};
};

// The input scale for a module, by the first pattern that matches.
Result<std::optional<float>> input_scale_of(const QuantizeOptions& options,
                                            const std::string& module);

}  // namespace fp4moe::checkpoint
