#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/tensor/files/gguf.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = tensor::parse_gguf(fuzz::bytes(data, size));
  if (!header) {
    fuzz::require_complete(header.why(), "gguf.");
    return 0;
  }
  for (const tensor::TensorEntry& entry : header->tensors) {
    fuzz::require(!entry.name.empty() && entry.shape.size() <= 4);
    fuzz::require(tensor::byte_count(entry.dtype, entry.shape) == entry.bytes);
    fuzz::require(entry.begin % header->alignment == 0);
    fuzz::require(entry.bytes == 0 || (entry.begin < size && entry.bytes <= size - entry.begin));
  }
  for (const tensor::GgufField& field : header->fields)
    fuzz::require(header->find(field.key) == &field);
  // Keys and values of any kind become a configuration.
  const Json config = checkpoint::config_from_gguf(header->fields);
  fuzz::require(config.is_object());
  if (const auto facts = checkpoint::parse_config(config); !facts) fuzz::require_words(facts.why());
  return 0;
}

}  // namespace fp4moe
