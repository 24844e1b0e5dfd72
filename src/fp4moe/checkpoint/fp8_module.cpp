#include "fp4moe/checkpoint/fp8_module.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::StoredTensor;

constexpr std::uint64_t kUsualBlock = 128;

const StoredTensor* float_part(const tensor::Store& store, const std::string& name) {
  const StoredTensor* found = store.find(name);
  if (found == nullptr) return nullptr;
  const DType type = found->entry.dtype;
  const bool is_float = type == DType::f32 || type == DType::bf16 || type == DType::f16;
  return is_float ? found : nullptr;
}

std::uint64_t element_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  return count;
}

bool is_guessed(std::span<const QuantClaim> claims, std::string_view module) {
  return std::ranges::any_of(
      claims, [module](const QuantClaim& claim) { return claim.is_guessed(module); });
}

// The claim of the first configuration that names a module.
const ClaimedScheme* claimed_scheme(std::span<const QuantClaim> claims, std::string_view module) {
  for (const QuantClaim& claim : claims)
    if (const ClaimedScheme* scheme = claim.scheme(module)) return scheme;
  return nullptr;
}

// How many of `size` elements share one of `count` scales: as claimed, 128, or equal parts.
std::optional<std::uint64_t> block_of(std::uint64_t size, std::uint64_t count,
                                      std::uint64_t claimed) {
  if (count == 0) return std::nullopt;
  for (const std::uint64_t block : {claimed, kUsualBlock})
    if (block > 0 && (size + block - 1) / block == count) return block;
  if (size % count == 0) return size / count;
  return std::nullopt;
}

// Scales of blocks are [rows, columns]; ModelOpt keeps the blocks' own axes: [rows, 1, columns, 1].
bool read_blocks(const Shape& scale, const ClaimedScheme* scheme, Fp8Module& module) {
  const bool has_axes = scale.size() == 4 && scale[1] == 1 && scale[3] == 1;
  if (scale.size() != 2 && !has_axes) return false;
  const std::array<std::uint64_t, 2> counts{scale[0], scale[has_axes ? 2 : 1]};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto block =
        block_of(module.shape[i], counts[i], scheme != nullptr ? scheme->block[i] : 0);
    if (!block) return false;
    module.block[i] = *block;
  }
  module.scales = Fp8Scales::blocks;
  return true;
}

bool read_scales(const Shape& scale, const ClaimedScheme* scheme, Fp8Module& module) {
  const auto [rows, columns] = module.shape;
  module.block = module.shape;
  if (element_count(scale) == 1) {
    const bool is_one_block = scheme != nullptr && scheme->block[0] > 0 && scheme->block[1] > 0;
    if (!is_one_block) return true;
    module.scales = Fp8Scales::blocks;
    module.block = scheme->block;
    return rows <= module.block[0] && columns <= module.block[1];
  }
  const bool is_list = scale.size() == 1 || (scale.size() == 2 && scale[1] == 1);
  if (is_list && scale[0] == rows) {
    module.scales = Fp8Scales::rows;
    module.block = {1, columns};
    return true;
  }
  return read_blocks(scale, scheme, module);
}

}  // namespace

std::optional<Fp8Module> find_fp8_module(const tensor::Store& store, const StoredTensor& weight,
                                         std::span<const QuantClaim> claims) {
  constexpr std::string_view kEnding = ".weight";
  const std::string& name = weight.entry.name;
  const Shape& shape = weight.entry.shape;
  if (weight.entry.dtype != DType::f8_e4m3 || shape.size() != 2 || !name.ends_with(kEnding))
    return std::nullopt;
  Fp8Module module{.name = name.substr(0, name.size() - kEnding.size()),
                   .shape = {shape[0], shape[1]}};
  const StoredTensor* scale = float_part(store, module.name + ".weight_scale");
  const ClaimedScheme* scheme = claimed_scheme(claims, module.name);
  if (is_guessed(claims, module.name)) return std::nullopt;
  if (scale == nullptr || !read_scales(scale->entry.shape, scheme, module)) return std::nullopt;
  if (const StoredTensor* input = float_part(store, module.name + ".input_scale")) {
    if (element_count(input->entry.shape) != 1) return std::nullopt;
    module.inputs = Fp8Inputs::stored;
  } else if (scheme != nullptr && scheme->inputs == Fp8Inputs::dynamic) {
    module.inputs = Fp8Inputs::dynamic;
  }
  return module;
}

const char* modelopt_fp8_algorithm(const Fp8Module& module) {
  const bool is_stored = module.inputs == Fp8Inputs::stored;
  const bool is_one_block = module.shape[0] <= kUsualBlock && module.shape[1] <= kUsualBlock;
  switch (module.scales) {
    case Fp8Scales::tensor:
      if (is_stored) return "FP8";
      return module.inputs == Fp8Inputs::none && is_one_block ? "fp8_pb_wo" : nullptr;
    case Fp8Scales::rows:
      return module.inputs == Fp8Inputs::dynamic ? "FP8_PER_CHANNEL_PER_TOKEN" : nullptr;
    case Fp8Scales::blocks: {
      const std::array<std::uint64_t, 2> usual{kUsualBlock, kUsualBlock};
      return !is_stored && module.block == usual ? "fp8_pb_wo" : nullptr;
    }
  }
  return nullptr;
}

bool can_tell(Dialect dialect, const Fp8Module& module) {
  if (dialect == Dialect::modelopt) return modelopt_fp8_algorithm(module) != nullptr;
  return dialect == Dialect::compressed_tensors || dialect == Dialect::quark;
}

Shape fp8_scale_shape(Dialect dialect, const Fp8Module& module, const Shape& stored) {
  const auto [rows, columns] = module.shape;
  const std::uint64_t down = (rows + module.block[0] - 1) / module.block[0];
  const std::uint64_t across = (columns + module.block[1] - 1) / module.block[1];
  switch (module.scales) {
    case Fp8Scales::tensor:
      return stored;
    case Fp8Scales::rows:
      return dialect == Dialect::compressed_tensors ? Shape{rows, 1} : Shape{rows};
    case Fp8Scales::blocks:
      if (dialect != Dialect::modelopt) return {down, across};
      return down * across == 1 ? Shape{} : Shape{down, 1, across, 1};
  }
  return stored;
}

std::string to_words(const Fp8Module& module) {
  std::string words = "FP8 with one scale";
  if (module.scales == Fp8Scales::rows) words = "FP8 with a scale for each row";
  if (module.scales == Fp8Scales::blocks)
    words =
        fmt::format("FP8 with a scale for each block of {}x{}", module.block[0], module.block[1]);
  switch (module.inputs) {
    case Fp8Inputs::none:
      return words + ", activations not quantized";
    case Fp8Inputs::stored:
      return words + ", a scale for activations";
    case Fp8Inputs::dynamic:
      return words + ", activations quantized dynamically";
  }
  return words;
}

}  // namespace fp4moe::checkpoint
