#include "fp4moe/vllm/tensor_check.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

namespace fp4moe::vllm {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

Error wrong_tensor(std::string_view name, std::string_view what) {
  return usage("vllm.tensor", what).at(name);
}

Result<Done> check_memory(std::string_view name, const TensorView& given) {
  const auto bytes = tensor::byte_count(given.dtype, given.shape);
  if (bytes && *bytes == given.bytes.size() && (*bytes == 0 || given.bytes.data() != nullptr))
    return Done{};
  return wrong_tensor(name, "a tensor's memory does not fit its shape")
      .expects(bytes ? fmt::format("{} bytes for {}", *bytes, tensor::text(given.shape))
                     : std::string("a size that 64 bits hold"),
               given.bytes.data() == nullptr ? std::string("no memory")
                                             : fmt::format("{} bytes", given.bytes.size()));
}

}  // namespace

Result<Done> check_tensor(std::string_view name, const TensorView& given,
                          std::initializer_list<DType> types, const Shape& shape) {
  if (std::ranges::find(types, given.dtype) == types.end()) {
    std::vector<std::string_view> names;
    for (const DType type : types) names.push_back(tensor::name(type));
    return wrong_tensor(name, "a tensor has another type")
        .expects(fmt::format("{}", fmt::join(names, " or ")), tensor::name(given.dtype));
  }
  if (given.shape != shape)
    return wrong_tensor(name, "a tensor has another shape")
        .expects(tensor::text(shape), tensor::text(given.shape));
  return check_memory(name, given);
}

Result<Done> check_dimensions(std::string_view name, const TensorView& given,
                              std::size_t dimensions) {
  if (given.shape.size() == dimensions &&
      std::ranges::find(given.shape, std::uint64_t{0}) == given.shape.end())
    return Done{};
  return wrong_tensor(name, "a tensor has another shape")
      .expects(fmt::format("{} dimensions, none of them 0", dimensions),
               is_given(given) ? tensor::text(given.shape) : std::string("none given"));
}

Result<std::vector<float>> floats_of(std::string_view name, const TensorView& given) {
  if (const auto fine = check_tensor(name, given, {DType::f32}, given.shape); !fine)
    return fine.why();
  std::vector<float> values(given.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), given.bytes.data(), given.bytes.size());
  return values;
}

}  // namespace fp4moe::vllm
