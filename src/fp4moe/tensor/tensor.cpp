#include "fp4moe/tensor/tensor.hpp"

#include <string>
#include <utility>

namespace fp4moe::tensor {

Result<Tensor> Tensor::allocate(DType dtype, Shape shape) {
  const std::optional<std::uint64_t> bytes = byte_count(dtype, shape);
  if (!bytes)
    return usage("tensor.size", "the size overflows or does not fill whole blocks")
        .expects("a multiple of " + std::to_string(row(dtype).block_elements) + " elements",
                 std::string(name(dtype)) + " " + text(shape));
  Result<Buffer> buffer = Buffer::allocate(*bytes);
  if (!buffer) return buffer.why();
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.buffer_ = *std::move(buffer);
  return tensor;
}

}  // namespace fp4moe::tensor
