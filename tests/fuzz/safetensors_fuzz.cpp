#include "fp4moe/tensor/files/safetensors.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = tensor::parse_safetensors(fuzz::bytes(data, size));
  if (!header) {
    fuzz::require_complete(header.why(), "safetensors.");
    return 0;
  }
  std::uint64_t position = header->data_begin;
  for (const tensor::TensorEntry& entry : header->tensors) {
    fuzz::require(!entry.name.empty());
    fuzz::require(entry.begin == position);
    fuzz::require(tensor::byte_count(entry.dtype, entry.shape) == entry.bytes);
    position += entry.bytes;
  }
  fuzz::require(position == size);
  return 0;
}

}  // namespace fp4moe
