// The variables with which users steer vLLM's choice of a MoE backend. They are read once, as
// text, and interpreted only where a policy looks at them: "unset", "set and false" and "set and
// true" are three different things to the reference, and a malformed value is an error there only
// if a policy reads it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::platform {

enum class Variable : std::uint8_t {
  flashinfer_mxfp4_bf16,
  flashinfer_mxfp4_mxfp8,
  flashinfer_mxfp4_mxfp8_cutlass,
  mxfp4_use_marlin,
  rocm_use_aiter,
  rocm_use_aiter_moe,
  batch_invariant,
  flashinfer_fp4,
  flashinfer_moe_backend,
  test_force_fp8_marlin,
  marlin_input_dtype,
  use_deep_gemm,
  b12x_force_a16,
  humming_gemm_type,
  humming_input_quant_config,
  emulation_dequant_at_load,
  rocm_aiter_situv2,
  rocm_aiter_a4w4_dsv4,
  flashinfer_low_precision_combine,
};
inline constexpr std::size_t kVariables = 19;

enum class Parsing : std::uint8_t {
  integer,       // a whole number, 0 is false; anything else is an error
  word,          // "true" or "1" in any case; anything else is false
  trimmed_word,  // the same, with spaces around it
  choice,        // one of a few words
  text,          // anything
};

struct VariableRow {
  Variable variable;
  std::string_view name;
  Parsing parsing;
  bool when_unset;  // the value of a switch that is not set
  std::string_view accepted;
  std::string_view effect;  // one line, for doctor and the documentation
};

std::span<const VariableRow, kVariables> variables();
const VariableRow& row(Variable variable);
const VariableRow* find_variable(std::string_view name);  // null when there is none

class Environment {
 public:
  bool is_set(Variable variable) const { return text(variable).has_value(); }
  const std::optional<std::string>& text(Variable variable) const {
    return values_[static_cast<std::size_t>(variable)];
  }
  void set(Variable variable, std::string_view value) {
    values_[static_cast<std::size_t>(variable)] = value;
  }
  void unset(Variable variable) { values_[static_cast<std::size_t>(variable)].reset(); }

  // The value of a switch, its `when_unset` included. An error (id environment.value, code usage)
  // when the text is not a value of its kind.
  Result<bool> flag(Variable variable) const;
  // Set, well-formed and true; set, well-formed and false. Malformed is neither.
  bool is_true(Variable variable) const;
  bool is_false(Variable variable) const;

 private:
  std::array<std::optional<std::string>, kVariables> values_{};
};

Environment read_environment(const Lookup& lookup = environment);

// Every set variable has a value of its kind; else the error of the first that has not.
Result<Done> check_environment(const Environment& environment);

}  // namespace fp4moe::platform
