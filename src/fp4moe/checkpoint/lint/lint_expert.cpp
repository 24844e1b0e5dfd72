#include "fp4moe/checkpoint/lint/lint_expert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/checkpoint/matrix_place.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/checkpoint/stored_scalar.hpp"
#include "fp4moe/checkpoint/transpose.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::StoredTensor;

constexpr Projection kLintedProjections[] = {Projection::gate, Projection::up, Projection::down};

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Codes 0 and 8 are zeros of either sign.
bool all_zero_codes(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte b) { return (b & std::byte{0x77}) == std::byte{0}; });
}

bool is_sound_scale(float value) { return std::isfinite(value) && value > 0; }

class Scanner {
 public:
  Scanner(const tensor::Store& store, const LayerTensors& layer, std::uint64_t expert,
          const ScanOptions& options)
      : store_(store), layer_(layer), expert_(expert), options_(options), deep_(options.deep) {}

  ExpertScan scan() {
    if (layer_.shape.hidden == 0 || layer_.shape.intermediate == 0) return {};
    std::uint64_t matrices = 0, dead = 0;
    for (const Projection which : kLintedProjections) {
      if (which == Projection::gate && layer_.gate.empty()) continue;
      const ProjectionPlaces& places = layer_.places(which, expert_);
      if (!options_.scalars_only) scan_matrix(which, places, matrices, dead);
      scan_scalars(which, places);
      scan_bias(which, places);
    }
    check_pair();
    if (deep_ && matrices > 0 && dead == matrices) {
      result_.found.push_back({"expert.zero",
                               layer_.places(Projection::up, expert_).codes.tensor,
                               {},
                               "every code of the expert is zero"});
    }
    return std::move(result_);
  }

 private:
  bool per_expert() const { return layer_.row->grouping == Grouping::per_expert; }

  // Rows of `row_bytes` in a tensor, if it has the size that the layer's shape asks for.
  std::optional<RowsView> rows_in(const StoredTensor* tensor, const MatrixPlace& place,
                                  std::uint64_t row_bytes) const {
    if (tensor == nullptr) return std::nullopt;
    const std::uint64_t experts = per_expert() ? 1 : layer_.shape.experts;
    const std::span<const std::byte> bytes = store_.bytes(*tensor);
    if (bytes.size() != experts * place.tensor_rows * row_bytes) return std::nullopt;
    return RowsView{bytes.data() + place.first * row_bytes, place.rows, row_bytes,
                    place.step * row_bytes};
  }

  void done_with(const StoredTensor& tensor, const RowsView& rows) {
    result_.bytes_read += rows.rows * rows.row_bytes;
    release_pages(store_, tensor, {rows.data, (rows.rows - 1) * rows.stride + rows.row_bytes});
  }

  void add(std::string_view code, const StoredTensor& tensor, std::string fact) {
    result_.found.push_back({code, &tensor, {}, std::move(fact)});
  }

  void scan_matrix(Projection which, const ProjectionPlaces& places, std::uint64_t& matrices,
                   std::uint64_t& dead) {
    const MatrixPlace size = matrix_place(layer_, expert_, which);
    const std::uint64_t block = block_size(layer_.shape.format);
    std::optional<RowsView> codes, scales;
    const StoredTensor* scale_tensor = places.scales.tensor;
    if (layer_.row->scales_inside()) {
      scale_tensor = places.codes.tensor;
      const std::uint64_t row_bytes =
          size.k / gguf_block_elements(layer_.shape.format) * gguf_block_bytes(layer_.shape.format);
      const auto blocks = rows_in(scale_tensor, size, row_bytes);
      if (!blocks) return;
      unpack(*blocks, size);
      if (layer_.shape.format == WeightFormat::nvfp4) scan_signs(*scale_tensor, *blocks);
      codes = RowsView{codes_.data(), size.rows, size.k / 2, size.k / 2};
      scales = RowsView{scales_.data(), size.rows, size.k / block, size.k / block};
      done_with(*scale_tensor, *blocks);
    } else if (layer_.row->is_transposed) {
      codes = transposed(places.codes.tensor, size, size.k / 2, codes_);
      scales = transposed(scale_tensor, size, size.k / block, scales_);
    } else {
      codes = rows_in(places.codes.tensor, size, size.k / 2);
      scales = rows_in(scale_tensor, size, size.k / block);
    }
    if (scales) scan_scales(*scale_tensor, *scales, codes ? &*codes : nullptr);
    if (scales && !layer_.row->needs_unpacking()) done_with(*scale_tensor, *scales);
    if (deep_ && codes) {
      ++matrices;
      // The first row that is not zero is enough.
      std::uint64_t visited = 0;
      bool zero = true;
      for (; visited < codes->rows && zero; ++visited) zero = all_zero_codes(codes->row(visited));
      if (zero) ++dead;
      scan_padding(which, *places.codes.tensor, *codes);
      if (!layer_.row->needs_unpacking()) {
        done_with(*places.codes.tensor, {codes->data, visited, codes->row_bytes, codes->stride});
      }
    }
  }

  void scan_padding(Projection which, const StoredTensor& tensor, const RowsView& codes) {
    const bool down = which == Projection::down;
    const std::uint64_t rows = down ? options_.hidden : options_.intermediate;
    const std::uint64_t columns = down ? options_.intermediate : options_.hidden;
    if (rows >= codes.rows && columns / 2 >= codes.row_bytes) return;
    for (std::uint64_t row = 0; row < codes.rows; ++row) {
      const std::span<const std::byte> bytes = codes.row(row);
      const std::size_t real = row >= rows ? 0 : std::min<std::uint64_t>(columns / 2, bytes.size());
      if (all_zero_codes(bytes.subspan(real))) continue;
      add("padding.not_zero", tensor,
          fmt::format("row {} has codes beyond {} rows of {} columns", row, rows, columns));
      return;
    }
  }

  // Rows of a tensor whose bytes lie by columns, in memory of ours.
  std::optional<RowsView> transposed(const StoredTensor* tensor, const MatrixPlace& place,
                                     std::uint64_t columns, std::vector<std::byte>& buffer) {
    if (tensor == nullptr) return std::nullopt;
    const std::span<const std::byte> bytes = store_.bytes(*tensor);
    if (bytes.size() != layer_.shape.experts * place.tensor_rows * columns) return std::nullopt;
    buffer.resize(place.rows * columns);
    const std::byte* first = bytes.data() + first_column_byte(place, expert_, columns);
    gather_rows({first, place.rows, columns, place.tensor_rows, place.step},
                {buffer.data(), columns});
    result_.bytes_read += buffer.size();
    return RowsView{buffer.data(), place.rows, columns, columns};
  }

  void unpack(const RowsView& blocks, const MatrixPlace& size) {
    const std::uint64_t block = block_size(layer_.shape.format);
    codes_.resize(size.rows * size.k / 2);
    scales_.resize(size.rows * size.k / block);
    const std::uint64_t code_row = size.k / 2, scale_row = size.k / block;
    const GgufBlocks gguf(layer_.shape.format);
    for (std::uint64_t row = 0; row < size.rows; ++row) {
      gguf.unpack(blocks.row(row), {codes_.data() + row * code_row, code_row},
                  {scales_.data() + row * scale_row, scale_row});
    }
  }

  // GGUF's scales have no sign.
  void scan_signs(const StoredTensor& tensor, const RowsView& blocks) {
    constexpr std::size_t kBlock = 36;
    std::uint64_t count = 0, first = 0;
    for (std::uint64_t row = 0; row < blocks.rows; ++row) {
      const std::span<const std::byte> bytes = blocks.row(row);
      for (std::size_t at = 0; at + kBlock <= bytes.size(); at += kBlock) {
        std::uint32_t four = 0;
        std::memcpy(&four, bytes.data() + at, sizeof four);
        if ((four & 0x80808080u) != 0 && count++ == 0) first = row;
      }
    }
    if (count == 0) return;
    add("scale.negative_gguf", tensor,
        fmt::format("{} with a sign bit, the first in row {}", counted(count, "block"), first));
  }

  // The first of several, and how many there are.
  struct Tally {
    std::uint64_t count = 0, row = 0, column = 0;
    void take(std::uint64_t in_row, std::size_t at) {
      if (count++ == 0) row = in_row, column = at;
    }
  };

  // Blocks of a row whose scale is zero though their codes are not.
  void take_zero_blocks(std::span<const std::byte> scales, std::span<const std::byte> codes,
                        std::uint64_t row, Tally& into) const {
    const std::size_t block = block_size(layer_.shape.format) / 2;
    for (std::size_t from = 0; from < scales.size();) {
      const void* hit = std::memchr(scales.data() + from, 0, scales.size() - from);
      if (hit == nullptr) return;
      const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(hit) - scales.data());
      if (!all_zero_codes(codes.subspan(at * block, block))) into.take(row, at);
      from = at + 1;
    }
  }

  void scan_scales(const StoredTensor& tensor, const RowsView& scales, const RowsView* codes) {
    Tally nan, negative, zero_blocks;
    const WeightFormat format = layer_.shape.format;
    std::uint64_t zero_rows = 0, first_zero = 0;
    for (std::uint64_t row = 0; row < scales.rows; ++row) {
      const std::span<const std::byte> bytes = scales.row(row);
      for (std::size_t from = 0; from < bytes.size();) {
        const std::size_t at = find_nan_scale(format, bytes.subspan(from));
        if (at == kNoScale) break;
        nan.take(row, from + at);
        from += at + 1;
      }
      if (format == WeightFormat::nvfp4 && !layer_.row->scales_inside()) {
        const std::size_t at = find_negative_scale(bytes);
        if (at != kNoScale && (bytes[at] & std::byte{0x7F}) != std::byte{0x7F}) {
          negative.take(row, at);
        }
      }
      if (bytes[0] == std::byte{0} && all_zero(bytes) && codes != nullptr &&
          !all_zero_codes(codes->row(row))) {
        if (zero_rows++ == 0) first_zero = row;
      } else if (format == WeightFormat::nvfp4 && codes != nullptr) {
        take_zero_blocks(bytes, codes->row(row), row, zero_blocks);
      }
    }
    if (nan.count > 0) {
      add("scale.nan", tensor,
          fmt::format("{}, the first at row {}, block {}", counted(nan.count, "NaN block scale"),
                      nan.row, nan.column));
    }
    if (negative.count > 0) {
      add("scale.negative", tensor,
          fmt::format("{} with negative block scales, the first at row {}, block {}",
                      counted(negative.count, "row"), negative.row, negative.column));
    }
    if (zero_blocks.count > 0) {
      add("scale.zero_block", tensor,
          fmt::format("{} with codes but a zero scale, the first at row {}, block {}",
                      counted(zero_blocks.count, "block"), zero_blocks.row, zero_blocks.column));
    }
    if (zero_rows > 0) {
      add("scale.zero_row", tensor,
          fmt::format("{} of {} with codes but only zero scales, the first is row {}", zero_rows,
                      counted(scales.rows, "row"), first_zero));
    }
  }

  // A scalar whose tensor has a size it may have.
  std::optional<float> scalar(const StoredTensor* tensor) const {
    if (tensor == nullptr) return std::nullopt;
    const std::size_t size = store_.bytes(*tensor).size();
    const std::size_t each = tensor::row(tensor->entry.dtype).block_bytes;
    const bool whole = !per_expert() && size == layer_.shape.experts * each;
    if (size != each && !whole) return std::nullopt;
    return stored_scalar(store_, *tensor, expert_);
  }

  void scan_scalars(Projection which, const ProjectionPlaces& places) {
    const bool reciprocal = layer_.row->global_scale == GlobalScale::divides;
    if (const auto stored = scalar(places.global_scale.tensor)) {
      const float factor = canonical_scale(*layer_.row, *stored);
      if (!is_sound_scale(*stored) || !is_sound_scale(factor)) {
        add("scale.global", *places.global_scale.tensor, fmt::format("global scale {}", *stored));
      } else if (looks_inverted(factor)) {
        add("scale.global_inverted", *places.global_scale.tensor,
            fmt::format("stored {}{}: weights up to {:.4g}; its reciprocal gives {:.4g}", *stored,
                        reciprocal ? " (a divisor)" : "", 2688.0 * factor, 2688.0 / factor));
      }
      globals_[static_cast<int>(which)] = factor;
    }
    if (const auto stored = scalar(places.input_scale.tensor)) {
      const float factor = canonical_scale(*layer_.row, *stored);
      if (!is_sound_scale(*stored) || !is_sound_scale(factor)) {
        add("scale.input", *places.input_scale.tensor, fmt::format("input scale {}", *stored));
      }
    } else if (places.input_scale.tensor == nullptr && layer_.shape.has_input_scale &&
               places.codes.tensor != nullptr) {
      result_.found.push_back({"scale.input_missing", nullptr,
                               projection_stem(*layer_.row, layer_.prefix, expert_, which) +
                                   std::string(layer_.row->parts.input_scale),
                               "other experts of the layer have one"});
    }
  }

  // A scale that looks inverted is compared as it was meant: turning it over is the repair, and
  // rescaling the other one by a factor of a million would destroy its weights.
  void check_pair() {
    const float gate = globals_[0], up = globals_[1];
    if (layer_.gate.empty() || !is_sound_scale(gate) || !is_sound_scale(up) || gate == up) return;
    const bool gate_inverted = looks_inverted(gate), up_inverted = looks_inverted(up);
    const double meant_gate = gate_inverted ? 1.0 / static_cast<double>(gate) : gate;
    const double meant_up = up_inverted ? 1.0 / static_cast<double>(up) : up;
    const double ratio = std::max(meant_gate, meant_up) / std::min(meant_gate, meant_up);
    constexpr double kRounding = 1 + 1e-6;  // of a reciprocal that was stored
    if ((gate_inverted || up_inverted) && ratio < kRounding) return;
    add("scale.global_mismatch", *layer_.places(Projection::gate, expert_).global_scale.tensor,
        fmt::format("gate {} and up {} differ by a factor of {:.6g}{}", gate, up, ratio,
                    gate_inverted || up_inverted ? " once inverted ones are set right" : ""));
  }

  void scan_bias(Projection which, const ProjectionPlaces& places) {
    const StoredTensor* tensor = places.bias.tensor;
    if (tensor == nullptr) return;
    const std::uint64_t size = tensor::row(tensor->entry.dtype).block_bytes;
    const auto rows = rows_in(tensor, matrix_place(layer_, expert_, which), size);
    if (!rows) return;
    for (std::uint64_t row = 0; row < rows->rows; ++row) {
      float value = 0;
      if (size == sizeof(float)) {
        std::memcpy(&value, rows->row(row).data(), sizeof value);
      } else {
        std::uint16_t code = 0;
        std::memcpy(&code, rows->row(row).data(), sizeof code);
        value = tensor->entry.dtype == tensor::DType::f16 ? formats::F16::decode(code)
                                                          : formats::Bf16::decode(code);
      }
      if (std::isfinite(value)) continue;
      add("bias.not_finite", *tensor, fmt::format("{} at row {}", value, row));
      break;
    }
    done_with(*tensor, *rows);
  }

  const tensor::Store& store_;
  const LayerTensors& layer_;
  std::uint64_t expert_;
  ScanOptions options_;
  bool deep_;
  float globals_[3] = {0, 0, 0};  // canonical; 0: none
  std::vector<std::byte> codes_{}, scales_{};
  ExpertScan result_{};
};

}  // namespace

ExpertScan scan_expert(const tensor::Store& store, const LayerTensors& layer, std::uint64_t expert,
                       const ScanOptions& options) {
  return Scanner(store, layer, expert, options).scan();
}

}  // namespace fp4moe::checkpoint
