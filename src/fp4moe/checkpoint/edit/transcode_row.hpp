// The form that a transcoded checkpoint's experts take: the target's row of the table of dialects,
// with the names of projections and the type of input scales that the source had before, if known.
#pragma once
#include <string>
#include <utility>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/origin.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"

namespace fp4moe::checkpoint {

class TargetRow {
 public:
  // All but the model's type must outlive it.
  TargetRow(const Checkpoint& source, Dialect target, const Origin& origin,
            const ScaleSource& scales, std::string model_type)
      : source_(source),
        target_(target),
        origin_(origin),
        scales_(scales),
        model_type_(std::move(model_type)) {}

  // Errors: transcode.format, transcode.pair.
  Result<DialectRow> choose() const;
  ProjectionNames projections() const;
  tensor::DType source_input_dtype() const;

 private:
  DialectRow former_row(const DialectRow& usual) const;
  bool fits_scales(const DialectRow& row) const;
  tensor::DType input_scale_dtype() const;
  bool input_scales_fit() const;
  bool uses_numbers() const;

  const Checkpoint& source_;
  Dialect target_;
  const Origin& origin_;
  const ScaleSource& scales_;
  std::string model_type_;
};

// Dialects that can be written for a format, for remedies.
std::string possible_targets(WeightFormat format, Dialect except);

}  // namespace fp4moe::checkpoint
