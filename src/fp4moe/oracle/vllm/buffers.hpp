// The buffers that a layer makes before weights are loaded, and the check of what the loader left
// in them. Sizes are rounded already, so a buffer may be larger than the part of the checkpoint it
// receives; what is left over must be zero, which is why MXFP4 buffers begin as zeros.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/sizes.hpp"

namespace fp4moe::oracle {

// NVFP4 checkpoints come with two sets of names; MXFP4 has one.
enum class BufferNames : std::uint8_t { modelopt, compressed_tensors };

struct BufferRequest {
  WeightFormat format{};
  BufferNames names = BufferNames::modelopt;
  Sizes sizes{};  // rounded
  std::uint64_t local_experts = 0;
  std::uint64_t experts = 0;  // of all ranks
  bool gated = true;
  bool has_bias = false;
  bool global_activation_scales = false;  // the backend's column
  // Until April the reference gives a layer without a gate twice the rows it needs (Q22); strict
  // mode does not.
  bool always_two_halves = false;
};

struct Buffer {
  std::string_view name;
  std::vector<std::uint64_t> shape{};
  std::string_view dtype{};    // "u8", "bf16", "f32", "f8_e4m3"
  std::string_view initial{};  // "zero", "uninitialised"
  std::uint64_t bytes = 0;
};

// True where the reference has this defect and it is asked for.
bool has_two_halves_always(WeightFormat format, PolicyDate policy_date, Mode mode);

// An error with id buffers.overflow when a size does not fit 64 bits, buffers.block when the hidden
// or intermediate size is not made of whole blocks: the reference would cut off a scale.
Result<std::vector<Buffer>> weight_buffers(const BufferRequest& request);
Result<std::uint64_t> total_bytes(std::span<const Buffer> buffers);

// A tensor as it is found after loading.
struct LoadedShape {
  std::string_view name;
  std::vector<std::uint64_t> shape{};
};

// Checks before conversion: each tensor has the shape of its buffer, biases may be absent.
// An error with id buffers.missing, buffers.unknown or buffers.shape that names the tensor. In
// compat mode the number of experts of w2_weight_scale is not looked at (Q19).
Result<Done> check_loaded(const BufferRequest& request, std::span<const LoadedShape> loaded,
                          Mode mode);

}  // namespace fp4moe::oracle
