// FP4 modules beside the experts of a checkpoint that is transcoded: attention, shared experts and
// dense layers in the experts' own format.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/dialect.hpp"

namespace fp4moe::checkpoint {

// The names of a linear module's parts; null for dialects that quantize experts alone.
const DialectRow* module_row(Dialect dialect, WeightFormat format);

// A module whose tensors have the format's types and shapes.
struct Fp4Module {
  const tensor::StoredTensor* codes = nullptr;
  const tensor::StoredTensor* scales = nullptr;
  std::uint64_t rows = 0, k = 0;
};

class Fp4Modules {
 public:
  // Source and claims must outlive it.
  Fp4Modules(const Checkpoint& source, std::span<const QuantClaim> claims);

  // The module of this name; none where its tensors are of another format, or where the
  // configuration says so.
  std::optional<Fp4Module> find(const std::string& module) const;
  // A configuration's reason why the module's codes are not what they look like; none: there is
  // none.
  std::optional<UnreadScheme> unread(std::string_view module) const;
  // The module's scales in words: "weight_scale U8 [8, 2], no weight_scale_2".
  std::string scales_text(const std::string& module) const;

 private:
  const tensor::StoredTensor* part(const std::string& module, std::string_view ending) const;

  const Checkpoint& source_;
  std::span<const QuantClaim> claims_;
  const DialectRow* row_;
  bool has_unread_;
};

// A global or an input scale of a module is one number. Errors: tensor.dtype, tensor.shape.
Result<Done> check_module_scalar(const tensor::Store& store, const tensor::StoredTensor& tensor,
                                 bool is_input);

}  // namespace fp4moe::checkpoint
