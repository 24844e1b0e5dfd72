// Modules in FP8 (E4M3) beside FP4 experts: what their tensors are, how each dialect stores their
// scales, and what its documents can tell.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

enum class Fp8Scales : std::uint8_t { tensor, rows, blocks };

struct Fp8Module {
  std::string name{};
  Fp8Scales scales = Fp8Scales::tensor;
  Fp8Inputs inputs = Fp8Inputs::none;
  std::array<std::uint64_t, 2> shape{};  // of the weight
  std::array<std::uint64_t, 2> block{};  // rows and columns that share a scale
};

// The module of an FP8 weight ("NAME.weight"); none when its scale is of no known kind.
std::optional<Fp8Module> find_fp8_module(const tensor::Store& store,
                                         const tensor::StoredTensor& weight,
                                         std::span<const QuantClaim> claims);

// ModelOpt's word for such a module; null when it has none.
const char* modelopt_fp8_algorithm(const Fp8Module& module);

// True if a dialect's documents can express how the module is quantized.
bool can_tell(Dialect dialect, const Fp8Module& module);

// The shape in which a dialect stores the scale of a weight.
tensor::Shape fp8_scale_shape(Dialect dialect, const Fp8Module& module,
                              const tensor::Shape& stored);

// "FP8 with a scale for each row, activations quantized dynamically".
std::string to_words(const Fp8Module& module);

}  // namespace fp4moe::checkpoint
