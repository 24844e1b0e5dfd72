// FP8 modules beside the experts of a checkpoint that is transcoded.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/fp8_module.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

class Fp8Modules {
 public:
  Fp8Modules(const Checkpoint& source, Dialect target, std::span<const QuantClaim> claims);

  const std::map<std::string, Fp8Module>& all() const { return modules_; }  // by the weight's name
  // The module to which a scale belongs; null when there is none.
  const Fp8Module* of_scale(std::string_view name) const;
  // Modules in another format than the experts'. FP8 is written where the target's documents can
  // tell it. Errors: transcode.mixed_precision.
  Result<Done> check(const tensor::StoredTensor& tensor, OtherTensor& other) const;

 private:
  Dialect target_;
  WeightFormat format_;
  std::map<std::string, Fp8Module> modules_{};
};

// The names of a linear module's parts; null for dialects that quantize experts alone.
const DialectRow* module_row(Dialect dialect, WeightFormat format);

}  // namespace fp4moe::checkpoint
