// What a golden case of a layout says, read and checked: the tensors it starts from, made from
// their seeds, and what is told of the tensors that come out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "fp4moe/tensor/shape.hpp"

namespace fp4moe::golden {

// A case may ask for so much memory: the tensors it starts from, and again what is made of them.
constexpr std::uint64_t kMaxCaseBytes = std::uint64_t{1} << 30;

// The map is slow: larger cases go through it one way only, and back over the fast path alone.
constexpr std::uint64_t kMaxBytesBackByMap = std::uint64_t{1} << 17;

struct LayoutInput {
  std::string name{};
  tensor::DType dtype = tensor::DType::u8;
  tensor::Shape shape{};
  std::vector<std::byte> bytes{};
};

struct LayoutOutput {
  std::string name{};
  tensor::DType dtype = tensor::DType::u8;
  tensor::Shape shape{};
  std::optional<tensor::Shape> strides{}, logical{};
  std::uint64_t bytes = 0;
  std::string sha256{};
  std::vector<std::byte> head{};  // the first 64 bytes, or all
  std::string layout{};           // the reference's name for it; empty: not told
};

struct LayoutCase {
  std::string layout{};
  std::string reference{};       // the code that was run; empty: not told
  const Json* params = nullptr;  // an object of the document
  std::vector<LayoutInput> inputs{};
  std::vector<LayoutOutput> outputs{};
  bool expects_refusal = false;

  const LayoutInput* input(std::string_view name) const;
};

// Errors: golden.malformed, golden.input (a generated tensor is not the one the case was made
// from), golden.size.
Result<LayoutCase> read_layout_case(const Json& item);

// Whether the document's own samples of the generator and its fills are what is generated here.
Result<Done> check_generators(const Json& document);

// "u8" and "uint8" are the same type.
std::optional<tensor::DType> dtype_from_golden(std::string_view name);

// Whether a field of params is true; false when it is missing.
Result<bool> flag_param(const Json& params, std::string_view key);
// A number from 1 to `most`; `missing` when it is not there.
Result<std::uint64_t> number_param(const Json& params, std::string_view key, std::uint64_t missing,
                                   std::uint64_t max);
// Empty when it is not there.
Result<std::string> word_param(const Json& params, std::string_view key);

}  // namespace fp4moe::golden
