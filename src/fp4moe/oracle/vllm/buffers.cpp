#include "fp4moe/oracle/vllm/buffers.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::oracle {
namespace {

// The thing that a dimension of a buffer counts. `none` ends the list.
enum class Extent : std::uint8_t {
  none,
  experts,       // of this rank
  input_scales,  // of this rank, or of all where activation scales are shared
  halves,        // gate and up, or up alone
  rows13,        // halves times intermediate
  hidden,
  hidden_bytes,
  hidden_blocks,
  intermediate_bytes,
  intermediate_blocks,
};
enum class When : std::uint8_t { always, with_bias };

struct BufferRow {
  std::string_view name;    // MXFP4 and ModelOpt
  std::string_view packed;  // compressed-tensors
  std::array<Extent, 3> extents;
  std::string_view dtype;
  std::uint64_t width;  // bytes of an element
  When when = When::always;
};

using enum Extent;
// clang-format off
constexpr BufferRow kMxfp4[] = {
    {"w13_weight",       "", {experts, rows13, hidden_bytes},         "u8",   1},
    {"w13_weight_scale", "", {experts, rows13, hidden_blocks},        "u8",   1},
    {"w2_weight",        "", {experts, hidden, intermediate_bytes},   "u8",   1},
    {"w2_weight_scale",  "", {experts, hidden, intermediate_blocks},  "u8",   1},
    {"w13_bias",         "", {experts, rows13, none},                 "bf16", 2, When::with_bias},
    {"w2_bias",          "", {experts, hidden, none},                 "bf16", 2, When::with_bias},
};
constexpr BufferRow kNvfp4[] = {
    {"w13_weight",         "w13_weight_packed",       {experts, rows13, hidden_bytes},        "u8",      1},
    {"w2_weight",          "w2_weight_packed",        {experts, hidden, intermediate_bytes},  "u8",      1},
    {"w13_weight_scale",   "w13_weight_scale",        {experts, rows13, hidden_blocks},       "f8_e4m3", 1},
    {"w2_weight_scale",    "w2_weight_scale",         {experts, hidden, intermediate_blocks}, "f8_e4m3", 1},
    {"w13_weight_scale_2", "w13_weight_global_scale", {experts, halves, none},                "f32",     4},
    {"w2_weight_scale_2",  "w2_weight_global_scale",  {experts, none, none},                  "f32",     4},
    {"w13_input_scale",    "w13_input_global_scale",  {input_scales, halves, none},           "f32",     4},
    {"w2_input_scale",     "w2_input_global_scale",   {input_scales, none, none},             "f32",     4},
};
// clang-format on

std::span<const BufferRow> rows(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? std::span<const BufferRow>(kMxfp4) : kNvfp4;
}

std::string_view name_of(const BufferRow& row, const BufferRequest& request) {
  const bool packed =
      request.format == WeightFormat::nvfp4 && request.names == BufferNames::compressed_tensors;
  return packed ? row.packed : row.name;
}

std::uint64_t halves_of(const BufferRequest& request) {
  return request.gated || request.always_two_halves ? 2 : 1;
}

std::optional<std::uint64_t> count(Extent extent, const BufferRequest& request) {
  const std::uint64_t block = formats::block_size(request.format);
  switch (extent) {
    case none:
      return 1;
    case experts:
      return request.local_experts;
    case input_scales: {
      // compressed-tensors always keeps scales of its own experts only.
      const bool shared =
          request.global_activation_scales && request.names == BufferNames::modelopt;
      return shared ? request.experts : request.local_experts;
    }
    case halves:
      return halves_of(request);
    case rows13:
      return checked_multiply(halves_of(request), request.sizes.intermediate);
    case hidden:
      return request.sizes.hidden;
    case hidden_bytes:
      return request.sizes.hidden / 2;
    case hidden_blocks:
      return request.sizes.hidden / block;
    case intermediate_bytes:
      return request.sizes.intermediate / 2;
    case intermediate_blocks:
      return request.sizes.intermediate / block;
  }
  return std::nullopt;
}

Error overflow(std::string_view what) {
  return invalid("buffers.overflow", "a buffer's size does not fit 64 bits").at(what);
}

Result<Buffer> make(const BufferRow& row, const BufferRequest& request) {
  Buffer buffer{.name = name_of(row, request), .dtype = row.dtype};
  buffer.initial = request.format == WeightFormat::mxfp4 ? "zero" : "uninitialised";
  for (const Extent extent : row.extents) {
    if (extent == none) break;
    const auto size = count(extent, request);
    if (!size) return overflow(buffer.name);
    buffer.shape.push_back(*size);
  }
  const auto elements = checked_product(buffer.shape);
  const auto bytes = elements ? checked_multiply(*elements, row.width) : std::nullopt;
  if (!bytes) return overflow(buffer.name);
  buffer.bytes = *bytes;
  return buffer;
}

Result<Done> check_blocks(const BufferRequest& request) {
  const std::uint64_t block = formats::block_size(request.format);
  const auto check = [&](std::string_view what, std::uint64_t size) -> Result<Done> {
    if (size % block == 0) return Done{};
    return error(ErrorCode::no_backend, "buffers.block",
                 fmt::format("the {} size is not made of whole scale blocks", what))
        .expects(fmt::format("a multiple of {}", block), std::to_string(size));
  };
  if (auto fine = check("hidden", request.sizes.hidden); !fine) return fine;
  return check("intermediate", request.sizes.intermediate);
}

std::string text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

bool has_two_halves_always(WeightFormat format, PolicyDate policy_date, Mode mode) {
  return format == WeightFormat::mxfp4 && mode == Mode::compat &&
         !kSinceAugust2026.contains(policy_date) && policy_date != PolicyDate::native;
}

Result<std::vector<Buffer>> weight_buffers(const BufferRequest& request) {
  if (const auto fine = check_blocks(request); !fine) return fine.why();
  std::vector<Buffer> buffers;
  for (const BufferRow& row : rows(request.format)) {
    if (row.when == When::with_bias && !request.has_bias) continue;
    auto buffer = make(row, request);
    if (!buffer) return buffer.why();
    buffers.push_back(*std::move(buffer));
  }
  return buffers;
}

Result<std::uint64_t> total_bytes(std::span<const Buffer> buffers) {
  std::uint64_t total = 0;
  for (const Buffer& buffer : buffers) {
    const auto sum = checked_add(total, buffer.bytes);
    if (!sum) return overflow("all buffers");
    total = *sum;
  }
  return total;
}

Result<Done> check_loaded(const BufferRequest& request, std::span<const LoadedShape> loaded,
                          Mode mode) {
  BufferRequest with_bias = request;
  with_bias.has_bias = true;  // a bias that is there must have its shape, whoever asked for it
  const auto buffers = weight_buffers(with_bias);
  if (!buffers) return buffers.why();
  for (const LoadedShape& tensor : loaded)
    if (std::ranges::find(*buffers, tensor.name, &Buffer::name) == buffers->end())
      return invalid("buffers.unknown", "no buffer of this layer has this name")
          .at(printable(tensor.name));
  for (const Buffer& buffer : *buffers) {
    const auto tensor = std::ranges::find(loaded, buffer.name, &LoadedShape::name);
    const bool optional = buffer.name.ends_with("_bias");
    if (tensor == loaded.end()) {
      if (optional) continue;
      return invalid("buffers.missing", "the layer lacks a tensor").at(buffer.name);
    }
    std::vector<std::uint64_t> expected = buffer.shape;
    // The reference forgets to look at the experts of this one.
    if (mode == Mode::compat && buffer.name == "w2_weight_scale" && !tensor->shape.empty())
      expected.front() = tensor->shape.front();
    if (tensor->shape != expected)
      return invalid("buffers.shape", "a loaded tensor does not have its buffer's shape")
          .at(buffer.name)
          .expects(text(expected), text(tensor->shape));
  }
  return Done{};
}

}  // namespace fp4moe::oracle
