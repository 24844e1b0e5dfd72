#include "golden/layout_data.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/sha256.hpp"
#include "golden/fields.hpp"
#include "golden/layout_fill.hpp"

namespace fp4moe::golden {
namespace {

using tensor::DType;

struct DTypeWord {
  std::string_view word;
  DType dtype;
};
constexpr DTypeWord kDTypeWords[] = {
    {"u8", DType::u8},        {"uint8", DType::u8},
    {"e8m0", DType::f8_e8m0}, {"float8_e8m0fnu", DType::f8_e8m0},
    {"e4m3", DType::f8_e4m3}, {"float8_e4m3fn", DType::f8_e4m3},
    {"bf16", DType::bf16},    {"bfloat16", DType::bf16},
    {"f16", DType::f16},      {"float16", DType::f16},
    {"f32", DType::f32},      {"float32", DType::f32},
    {"i32", DType::i32},      {"int32", DType::i32},
};

constexpr std::uint64_t kMaxExtent = std::uint64_t{1} << 32;
constexpr std::size_t kMaxRank = 8;

Result<const Json*> list_field(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end()) return malformed(key, "a list", "none");
  if (!found->is_array()) return malformed(key, "a list", found->type_name());
  return &*found;
}

Result<tensor::Shape> extents_field(const Json& object, std::string_view key, std::uint64_t min) {
  const Result<const Json*> list = list_field(object, key);
  if (!list) return list.why();
  if ((*list)->empty() || (*list)->size() > kMaxRank)
    return malformed(key, fmt::format("1 to {} extents", kMaxRank),
                     std::to_string((*list)->size()));
  tensor::Shape shape;
  for (const Json& extent : **list) {
    const bool whole = extent.is_number_integer() && extent.get<std::int64_t>() >= 0;
    if (!whole || extent.get<std::uint64_t>() < min || extent.get<std::uint64_t>() > kMaxExtent)
      return malformed(key, fmt::format("whole numbers from {} to {}", min, kMaxExtent),
                       extent.is_number() ? extent.dump() : extent.type_name());
    shape.push_back(extent.get<std::uint64_t>());
  }
  return shape;
}

Result<DType> dtype_field(const Json& object) {
  const Result<std::string> word = string_field(object, "dtype");
  if (!word) return word.why();
  if (const std::optional<DType> dtype = dtype_from_golden(*word)) return *dtype;
  return malformed("dtype", "u8, e8m0, e4m3, bf16, f16, f32 or i32", "\"" + *word + "\"");
}

Result<std::string> digest_field(const Json& object) {
  Result<std::string> digest = string_field(object, "sha256");
  if (!digest) return digest;
  std::ranges::transform(*digest, digest->begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const bool is_hex = std::ranges::all_of(
      *digest, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (digest->size() != 64 || !is_hex)
    return malformed("sha256", "64 hexadecimal digits", "\"" + *digest + "\"");
  return digest;
}

// The inputs of a refused case may be shapes alone.
Result<LayoutInput> read_input(const Json& item, bool may_be_bare, std::uint64_t& budget) {
  LayoutInput input;
  const Result<std::string> name = string_field(item, "name");
  if (!name) return name.why();
  input.name = *name;
  const Result<tensor::Shape> shape = extents_field(item, "shape", 1);
  if (!shape) return shape.why();
  input.shape = *shape;
  const bool is_bare = may_be_bare && !item.contains("seed");
  if (!is_bare || item.contains("dtype")) {
    const Result<DType> dtype = dtype_field(item);
    if (!dtype) return dtype.why();
    input.dtype = *dtype;
  }
  const std::optional<std::uint64_t> bytes = tensor::byte_count(input.dtype, input.shape);
  if (!bytes || *bytes > budget)
    return invalid("golden.size", "the case is too large to be run")
        .at(input.name)
        .expects(fmt::format("at most {} bytes in all", kMaxCaseBytes), tensor::text(input.shape));
  budget -= *bytes;
  input.bytes.resize(*bytes);
  if (is_bare) return input;

  const Result<Fill> fill = read_fill(item);
  if (!fill) return fill.why();
  if (fill->element_bytes() != tensor::row(input.dtype).block_bytes)
    return malformed("dtype", fmt::format("a type of {} bytes", fill->element_bytes()),
                     tensor::name(input.dtype));
  fill->make(input.bytes);
  if (!item.contains("sha256")) return input;
  const Result<std::string> digest = digest_field(item);
  if (!digest) return digest.why();
  if (const std::string ours = sha256_hex(input.bytes); ours != *digest)
    return invalid("golden.input", "the generated tensor is not the one the case was made from")
        .at(input.name)
        .expects("SHA-256 " + *digest, ours);
  return input;
}

Result<LayoutOutput> read_output(const Json& item) {
  LayoutOutput output;
  const Result<std::string> name = string_field(item, "name");
  if (!name) return name.why();
  output.name = *name;
  const Result<DType> dtype = dtype_field(item);
  if (!dtype) return dtype.why();
  output.dtype = *dtype;
  const Result<tensor::Shape> shape = extents_field(item, "shape", 1);
  if (!shape) return shape.why();
  output.shape = *shape;
  for (const auto& [key, target] :
       {std::pair{"strides", &output.strides}, std::pair{"logical_shape", &output.logical}}) {
    if (!item.contains(key)) continue;
    const Result<tensor::Shape> extents = extents_field(item, key, 0);
    if (!extents) return extents.why();
    *target = *extents;
  }
  const Result<std::uint64_t> bytes = number_field(item, "nbytes", kMaxCaseBytes);
  if (!bytes) return bytes.why();
  output.bytes = *bytes;
  const Result<std::string> digest = digest_field(item);
  if (!digest) return digest.why();
  output.sha256 = *digest;
  const std::string_view key = item.contains("head_hex") ? "head_hex" : "first64";
  const Result<std::vector<std::uint8_t>> head = bytes_field(item, key);
  if (!head) return head.why();
  if (head->size() != std::min<std::uint64_t>(64, output.bytes))
    return malformed(key, fmt::format("{} bytes", std::min<std::uint64_t>(64, output.bytes)),
                     std::to_string(head->size()));
  for (const std::uint8_t byte : *head) output.head.push_back(std::byte{byte});
  const Result<std::string> layout = word_param(item, "layout");
  if (!layout) return layout.why();
  output.layout = *layout;
  return output;
}

}  // namespace

const LayoutInput* LayoutCase::input(std::string_view name) const {
  const auto found = std::ranges::find(inputs, name, &LayoutInput::name);
  return found == inputs.end() ? nullptr : &*found;
}

std::optional<DType> dtype_from_golden(std::string_view name) {
  const auto* found = std::ranges::find(kDTypeWords, name, &DTypeWord::word);
  if (found == std::end(kDTypeWords)) return std::nullopt;
  return found->dtype;
}

Result<bool> flag_param(const Json& params, std::string_view key) {
  const auto found = params.find(key);
  if (found == params.end()) return false;
  if (!found->is_boolean()) return malformed(key, "true or false", found->type_name());
  return found->get<bool>();
}

Result<std::uint64_t> number_param(const Json& params, std::string_view key, std::uint64_t missing,
                                   std::uint64_t max) {
  if (!params.contains(key)) return missing;
  Result<std::uint64_t> number = number_field(params, key, max);
  if (number && *number == 0)
    return malformed(key, fmt::format("a whole number from 1 to {}", max), "0");
  return number;
}

Result<std::string> word_param(const Json& params, std::string_view key) {
  if (!params.contains(key)) return std::string();
  return string_field(params, key);
}

Result<LayoutCase> read_layout_case(const Json& item) {
  LayoutCase result;
  const Result<std::string> layout = string_field(item, "layout");
  if (!layout) return layout.why();
  result.layout = *layout;
  const Result<std::string> reference = word_param(item, "reference");
  if (!reference) return reference.why();
  result.reference = *reference;
  const Result<std::string> expect = word_param(item, "expect");
  if (!expect) return expect.why();
  if (!expect->empty() && *expect != "error")
    return malformed("expect", "\"error\" or nothing", "\"" + *expect + "\"");
  result.expects_refusal = !expect->empty();
  const auto params = item.find("params");
  if (params == item.end() || !params->is_object())
    return malformed("params", "an object", params == item.end() ? "none" : params->type_name());
  result.params = &*params;

  const Result<const Json*> inputs = list_field(item, "inputs");
  if (!inputs) return inputs.why();
  std::uint64_t budget = kMaxCaseBytes;
  for (const Json& one : **inputs) {
    Result<LayoutInput> input = read_input(one, result.expects_refusal, budget);
    if (!input) return input.why();
    if (result.input(input->name) != nullptr)
      return malformed("inputs", "every name once", "\"" + input->name + "\" again");
    result.inputs.push_back(std::move(*input));
  }
  if (result.inputs.empty()) return malformed("inputs", "at least one tensor", "none");

  if (result.expects_refusal && !item.contains("outputs")) return result;
  const Result<const Json*> outputs = list_field(item, "outputs");
  if (!outputs) return outputs.why();
  for (const Json& one : **outputs) {
    Result<LayoutOutput> output = read_output(one);
    if (!output) return output.why();
    result.outputs.push_back(std::move(*output));
  }
  if (result.outputs.empty() != result.expects_refusal)
    return malformed("outputs", result.expects_refusal ? "none of a refused case" : "at least one",
                     std::to_string(result.outputs.size()));
  return result;
}

}  // namespace fp4moe::golden
