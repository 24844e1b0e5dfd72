// Runs golden cases about one operation: over the map, over the fast path, and back.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/pack/pack_matrix.hpp"
#include "golden/fields.hpp"
#include "golden/layout_compare.hpp"
#include "golden/layout_operations.hpp"
#include "golden/layouts.hpp"

namespace fp4moe::golden {
namespace {

using convert::PackPath;
using layout::Element;
using layout::IndexMap;

using Bytes = std::vector<std::byte>;

// Where row n of the input goes.
std::uint64_t target_row(const Operation& operation, std::uint64_t rows, std::uint64_t n) {
  if (operation.shuffles_rows) return layout::shuffled_row(n);
  if (operation.block == 0) return n;
  const std::uint64_t half = rows / 2, which = n / half, i = n % half;
  return i / operation.block * 2 * operation.block + which * operation.block + i % operation.block;
}

// The columns of a [columns, rows] tensor as rows, one matrix for each byte of an element.
Bytes transposed_plane(const LayoutInput& input, const Matrices& size, std::uint64_t width,
                       std::uint64_t plane) {
  Bytes result(size.rows * size.cols);
  for (std::uint64_t row = 0; row < size.rows; ++row)
    for (std::uint64_t col = 0; col < size.cols; ++col)
      result[row * size.cols + col] = input.bytes[(col * size.rows + row) * width + plane];
  return result;
}

struct Packing {
  const Operation& operation;
  const IndexMap& map;
  std::uint64_t row_bytes = 0;  // of the source
};

// `matrix` into `out` both ways, and from there back.
std::optional<Mismatch> pack_both_ways(const Packing& packing, std::span<const std::byte> matrix,
                                       std::span<std::byte> out, const MadeTensor& result) {
  const IndexMap& map = packing.map;
  const std::uint64_t rows = map.logical().rows;
  std::vector<const std::byte*> from(map.padded().rows, nullptr);
  Bytes back(matrix.size());
  std::vector<std::byte*> to(map.padded().rows, nullptr);
  for (std::uint64_t n = 0; n < rows; ++n) {
    const std::uint64_t target = target_row(packing.operation, rows, n);
    from[target] = matrix.data() + n * packing.row_bytes;
    to[target] = back.data() + n * packing.row_bytes;
  }
  Bytes fast(out.size(), std::byte{0xA5});
  convert::pack_matrix(map, {.rows = from}, out, PackPath::map);
  convert::pack_matrix(map, {.rows = from}, fast, PackPath::fast);
  MadeTensor found = result;
  found.bytes = fast;
  found.assignment_bytes = 1;
  if (auto mismatch = compare_bytes("the fast path differs from the map", out, found))
    return mismatch;
  for (const PackPath path : {PackPath::map, PackPath::fast}) {
    if (path == PackPath::map && out.size() > kMaxBytesBackByMap) continue;
    std::ranges::fill(back, std::byte{0xA5});
    convert::unpack_matrix(map, out, {.rows = to}, path);
    const auto at =
        static_cast<std::uint64_t>(std::ranges::mismatch(matrix, back).in1 - matrix.begin());
    if (at == matrix.size()) continue;
    return Mismatch{fmt::format("unpacking by the {} does not give the input back: tensor {}, row "
                                "{}, byte {}",
                                path == PackPath::map ? "map" : "fast path", result.name,
                                at / packing.row_bytes, at % packing.row_bytes),
                    fmt::format("{:#04x}", std::to_integer<unsigned>(matrix[at])),
                    fmt::format("{:#04x}", std::to_integer<unsigned>(back[at]))};
  }
  return std::nullopt;
}

layout::Shape reported_shape(const Operation& operation, const Matrices& size, const IndexMap& map,
                             std::uint64_t bytes) {
  if (operation.reported == Reported::flat) return {.extents = {bytes}, .strides = {1}};
  layout::Shape shape = layout::kernel_shape(map, size.experts);
  const bool drops_experts = !size.has_expert_axis && shape.extents.size() > 2;
  if (drops_experts) {
    shape.extents.erase(shape.extents.begin());
    shape.strides.erase(shape.strides.begin());
  }
  return shape;
}

tensor::Shape logical_shape(const Operation& operation, const Matrices& size) {
  if (operation.logical_per_col == 0) return {};
  const std::uint64_t cols = size.cols * operation.logical_per_col;
  if (operation.is_left_operand) return {size.experts, size.rows, cols};
  return {size.experts, cols, size.rows};
}

Outcome run(const LayoutCase& given, const Operation& operation, const Matrices& size) {
  const LayoutInput& input = given.inputs.front();
  const std::uint64_t width = tensor::row(input.dtype).block_bytes;
  if (width != 1 && !operation.is_transposed)
    return malformed("dtype", "a type of one byte", tensor::name(input.dtype));
  const std::uint64_t turn = 2 * std::uint64_t{operation.block};
  if (turn != 0 && size.rows % turn != 0)
    return refused(
        given, usage("layout.size", "gate and up rows do not fill their blocks")
                   .expects(fmt::format("a multiple of {} rows", turn), std::to_string(size.rows)));
  const bool is_nibbles = operation.map.element == Element::nibble;
  const Result<IndexMap> map =
      IndexMap::bind(operation.map, {size.rows, is_nibbles ? 2 * size.cols : size.cols});
  if (!map) return refused(given, map.why());
  if (given.expects_refusal) return not_refused();
  if (given.outputs.size() != 1)
    return malformed("outputs", "one tensor", std::to_string(given.outputs.size()));

  const std::uint64_t each = map->bytes() * width;  // offsets below 2^48, elements of a few bytes
  const auto total = checked_multiply(each, size.experts);
  if (!total || *total > kMaxCaseBytes)
    return invalid("golden.size", "the case is too large to be run")
        .expects(fmt::format("at most {} bytes", kMaxCaseBytes),
                 fmt::format("{} experts of {} bytes", size.experts, each));
  Bytes out(*total);
  MadeTensor result{.name = given.outputs.front().name,
                    .dtype = operation.dtype.value_or(input.dtype),
                    .shape = reported_shape(operation, size, *map, *total),
                    .logical = logical_shape(operation, size),
                    .expert_bytes = each,
                    .bytes = out,
                    .map = &*map,
                    .assignment_bytes = width};
  const Packing packing{operation, *map, size.cols};
  if (operation.is_transposed) {
    Bytes plane(map->bytes());
    for (std::uint64_t p = 0; p < width; ++p) {
      if (auto mismatch =
              pack_both_ways(packing, transposed_plane(input, size, width, p), plane, result))
        return mismatch;
      for (std::uint64_t offset = 0; offset < plane.size(); ++offset)
        out[offset * width + p] = plane[offset];
    }
  } else {
    const std::uint64_t matrix = size.rows * size.cols;
    for (std::uint64_t e = 0; e < size.experts; ++e)
      if (auto mismatch =
              pack_both_ways(packing, std::span(input.bytes).subspan(e * matrix, matrix),
                             std::span(out).subspan(e * each, each), result))
        return mismatch;
  }
  return compare(given.outputs.front(), result);
}

}  // namespace

std::optional<Outcome> check_layout_operation(const LayoutCase& given) {
  const tensor::Shape& shape = given.inputs.front().shape;
  Matrices size{.has_expert_axis = shape.size() == 3};
  if (shape.size() >= 2) {
    size.rows = shape[shape.size() - 2];
    size.cols = shape.back();
  }
  if (size.has_expert_axis) size.experts = shape.front();
  const std::optional<Result<Operation>> operation = plan_operation(given, size);
  if (!operation) return std::nullopt;
  if (given.inputs.size() != 1 || shape.size() < 2 || shape.size() > 3)
    return malformed(
        "inputs", "one tensor of rank 2 or 3",
        fmt::format("{} tensors, the first {}", given.inputs.size(), tensor::text(shape)));
  if (!*operation) return (*operation).why();
  if ((*operation)->is_transposed && size.has_expert_axis)
    return malformed("inputs", "a tensor of rank 2", tensor::text(shape));
  if ((*operation)->is_transposed) std::swap(size.rows, size.cols);
  if ((*operation)->joins_experts) {
    size.rows *= size.experts;  // their product is the size of a tensor in memory
    size.experts = 1;
    size.has_expert_axis = false;
  }
  return run(given, **operation, size);
}

}  // namespace fp4moe::golden
