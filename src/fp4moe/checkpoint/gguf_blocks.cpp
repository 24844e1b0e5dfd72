#include "fp4moe/checkpoint/gguf_blocks.hpp"

#include <cassert>

#include "fp4moe/checkpoint/codec.hpp"

namespace fp4moe::checkpoint {
namespace {

const std::uint8_t* in(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
std::uint8_t* out(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}

[[maybe_unused]] bool agree(WeightFormat format, std::size_t codes, std::size_t scales,
                            std::size_t blocks) {
  const std::size_t code_bytes = block_size(format) / 2;
  return codes == scales * code_bytes && blocks == scales * (code_bytes + 1);
}

}  // namespace

GgufBlocks::GgufBlocks(WeightFormat format)
    : format_(format),
      pack_(format == WeightFormat::mxfp4 ? machine_codec().pack_gguf_mxfp4
                                          : machine_codec().pack_gguf_nvfp4),
      unpack_(format == WeightFormat::mxfp4 ? machine_codec().unpack_gguf_mxfp4
                                            : machine_codec().unpack_gguf_nvfp4) {}

void GgufBlocks::pack(std::span<const std::byte> codes, std::span<const std::byte> scales,
                      std::span<std::byte> blocks) const {
  assert(agree(format_, codes.size(), scales.size(), blocks.size()));
  pack_({.codes = in(codes), .scales = in(scales), .blocks = scales.size(), .gguf = out(blocks)});
}

void GgufBlocks::unpack(std::span<const std::byte> blocks, std::span<std::byte> codes,
                        std::span<std::byte> scales) const {
  assert(agree(format_, codes.size(), scales.size(), blocks.size()));
  unpack_(
      {.gguf = in(blocks), .blocks = scales.size(), .codes = out(codes), .scales = out(scales)});
}

}  // namespace fp4moe::checkpoint
