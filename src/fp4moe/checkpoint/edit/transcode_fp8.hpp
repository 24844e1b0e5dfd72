// FP8 modules beside the experts of a checkpoint that is transcoded.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/transcode_fp4.hpp"
#include "fp4moe/checkpoint/fp8_module.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

class Fp8Modules {
 public:
  // Source and FP4 modules must outlive it.
  Fp8Modules(const Checkpoint& source, Dialect target, std::span<const QuantClaim> claims,
             const Fp4Modules& fp4);

  const std::map<std::string, Fp8Module>& all() const { return modules_; }  // by the weight's name
  // The module to which a scale belongs; null when there is none.
  const Fp8Module* of_scale(std::string_view name) const;
  // Modules in another format than the experts', and parts of quantized modules that nothing here
  // applies. FP8 is written where the target's documents can tell it. Errors:
  // transcode.mixed_precision.
  Result<Done> check(const tensor::StoredTensor& tensor, OtherTensor& other) const;

 private:
  Result<Done> check_weight(const tensor::StoredTensor& tensor) const;
  const tensor::StoredTensor* codes_changed_by(const std::string& name) const;

  const Checkpoint& source_;
  const Fp4Modules& fp4_;
  Dialect target_;
  WeightFormat format_;
  std::map<std::string, Fp8Module> modules_{};
};

}  // namespace fp4moe::checkpoint
