// Rows to FP4 blocks and back, with the bulk codecs of this machine, in threads, without the GIL.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "errors.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/codec.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/formats/weight_format.hpp"

namespace fp4moe::python {
namespace {

using formats::WeightFormat;
using kernels::cpu::Element;
using tensor::DType;

constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;  // numbers that a thread takes at a time

struct Rule {
  formats::Mxfp4Rule mxfp4 = formats::Mxfp4Rule::even_rne;
  formats::Nvfp4Rule nvfp4 = formats::Nvfp4Rule::reference;
};

struct Work {
  WeightFormat format{};
  moe::MutableRows values{};
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  Rule rule{};
  float global_scale = 1;

  std::uint64_t blocks() const { return values.columns / formats::block_size(format); }
  bool dense() const { return values.stride == values.columns * moe::element_bytes(values.dtype); }
  Element element() const {
    return values.dtype == DType::bf16  ? Element::bf16
           : values.dtype == DType::f16 ? Element::f16
                                        : Element::f32;
  }
};

// Calls run(first row, rows) for runs of rows that lie without gaps, on several threads.
template <class Run>
Result<Done> for_rows(const Work& work, const Run& run) {
  const moe::MutableRows& x = work.values;
  if (x.rows == 0 || x.columns == 0) return Done{};
  const std::uint64_t step = std::max<std::uint64_t>(1, kPiece / x.columns);
  const std::uint64_t pieces = (x.rows + step - 1) / step;
  return parallel_for(available_threads(), pieces, [&](std::size_t piece) -> Result<Done> {
    const std::uint64_t begin = piece * step, end = std::min(x.rows, begin + step);
    const std::uint64_t rows = work.dense() ? end - begin : 1;
    for (std::uint64_t r = begin; r < end; r += rows)
      if (Result<Done> done = run(r, rows); !done) return done.why();
    return Done{};
  });
}

float largest(const Work& work, std::uint64_t row, std::uint64_t rows) {
  return checkpoint::machine_codec().max_magnitude({.input = work.values.row(row),
                                                    .element = work.element(),
                                                    .count = rows * work.values.columns});
}

Error not_finite(const Work& work, std::uint64_t first, std::uint64_t rows) {
  std::uint64_t row = first, column = 0;
  const auto wrong = [&](std::uint64_t r, std::uint64_t c) {
    const std::byte* at = work.values.row(r) + c * moe::element_bytes(work.values.dtype);
    return checkpoint::machine_codec().max_magnitude(
        {.input = at, .element = work.element(), .count = 1});
  };
  while (row + 1 < first + rows && std::isfinite(largest(work, row, 1))) ++row;
  while (column + 1 < work.values.columns && std::isfinite(wrong(row, column))) ++column;
  return invalid("quantize.not_finite", "a value is not a finite number")
      .expects("finite values",
               fmt::format("{} at row {}, column {}",
                           std::isnan(wrong(row, column)) ? "NaN" : "infinity", row, column));
}

// The largest magnitude of all rows; numbers that are not finite are refused.
Result<float> max_magnitude(const Work& work) {
  const std::uint64_t step =
      std::max<std::uint64_t>(1, kPiece / std::max<std::uint64_t>(1, work.values.columns));
  std::vector<float> maxima(work.values.rows / step + 1, 0.0f);
  const Result<Done> done =
      for_rows(work, [&](std::uint64_t row, std::uint64_t rows) -> Result<Done> {
        const float found = largest(work, row, rows);
        if (!std::isfinite(found)) return not_finite(work, row, rows);
        maxima[row / step] = std::max(maxima[row / step], found);
        return Done{};
      });
  if (!done) return done.why();
  return *std::max_element(maxima.begin(), maxima.end());
}

Result<Done> quantize_rows(const Work& work) {
  return for_rows(work, [&](std::uint64_t row, std::uint64_t rows) -> Result<Done> {
    const kernels::cpu::QuantizeBlocks job{.input = work.values.row(row),
                                           .element = work.element(),
                                           .blocks = rows * work.blocks(),
                                           .codes = work.codes + row * (work.values.columns / 2),
                                           .scales = work.scales + row * work.blocks(),
                                           .mxfp4_rule = work.rule.mxfp4,
                                           .nvfp4_rule = work.rule.nvfp4,
                                           .global_scale = work.global_scale};
    const kernels::cpu::BlockCodec& codec = checkpoint::machine_codec();
    (work.format == WeightFormat::mxfp4 ? codec.quantize_mxfp4 : codec.quantize_nvfp4)(job);
    return Done{};
  });
}

Result<Done> dequantize_rows(const Work& work) {
  return for_rows(work, [&](std::uint64_t row, std::uint64_t rows) -> Result<Done> {
    const kernels::cpu::DequantizeBlocks job{.codes = work.codes + row * (work.values.columns / 2),
                                             .scales = work.scales + row * work.blocks(),
                                             .blocks = rows * work.blocks(),
                                             .output = work.values.row(row),
                                             .element = work.element(),
                                             .global_kind = kernels::cpu::GlobalScaleUse::divisor,
                                             .global_scale = work.global_scale};
    const kernels::cpu::BlockCodec& codec = checkpoint::machine_codec();
    (work.format == WeightFormat::mxfp4 ? codec.dequantize_mxfp4 : codec.dequantize_nvfp4)(job);
    return Done{};
  });
}

Result<WeightFormat> format_of(const std::string& name) {
  if (const auto found = formats::weight_format_from_name(name)) return *found;
  return usage("quantize.format", "there is no such format of weights")
      .expects("mxfp4 or nvfp4", "'" + printable(name) + "'");
}

// "even.rne" is short for "mxfp4.even.rne".
Result<Rule> rule_of(WeightFormat format, const std::string& name) {
  Rule result;
  if (name.empty()) return result;
  const std::string whole = fmt::format("{}.{}", formats::name(format), name);
  std::string known;
  const auto try_row = [&](const auto& row, auto& to) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
    if (row.name == name || row.name == whole) to = row.rule;
    return row.name == name || row.name == whole;
  };
  if (format == WeightFormat::mxfp4) {
    for (const auto& row : formats::kMxfp4Rules)
      if (try_row(row, result.mxfp4)) return result;
  } else {
    for (const auto& row : formats::kNvfp4Rules)
      if (try_row(row, result.nvfp4)) return result;
  }
  return usage("quantize.rule", "there is no such rule")
      .expects("one of " + known, "'" + printable(name) + "'");
}

// Bytes [rows, columns] without gaps.
std::uint8_t* bytes_of(const Array& array, const char* what, std::uint64_t rows,
                       std::uint64_t columns) {
  const bool fits = array.dimensions() == 2 && array.shape(0) == static_cast<std::int64_t>(rows) &&
                    array.shape(1) == static_cast<std::int64_t>(columns);
  const bool is_bytes = array.dtype() && tensor::row(*array.dtype()).block_bytes == 1 &&
                        tensor::row(*array.dtype()).block_elements == 1;
  if (!fits || !is_bytes)
    raise(usage("formats.rows.size", fmt::format("{} do not fit the values", what))
              .expects(fmt::format("[{}, {}] of bytes", rows, columns),
                       fmt::format("{} {}", array.dtype_text(), array.shape_text())));
  const bool dense =
      (columns <= 1 || rows == 0 || array.stride(1) == 1) &&
      (rows <= 1 || columns == 0 || array.stride(0) == static_cast<std::int64_t>(columns));
  if (!dense)
    raise(usage("rows.stride", fmt::format("there are gaps between {}", what))
              .expects("an array without gaps",
                       fmt::format("{} bytes from row to row", array.stride(0)))
              .try_this("copy them: numpy.ascontiguousarray(x), x.contiguous()"));
  return static_cast<std::uint8_t*>(array.data());
}

Result<Work> work_of(const std::string& format, const moe::MutableRows& values) {
  Work work;
  const Result<WeightFormat> found = format_of(format);
  if (!found) return found.why();
  work.format = *found;
  work.values = values;
  const std::uint64_t block = formats::block_size(work.format);
  if (values.dtype == DType::f64)
    return usage("rows.type", "values have a type that is not rounded from")
        .expects("BF16, F16 or F32", "F64")
        .try_this("choose a rounding to float32 first: x.astype(numpy.float32), x.float()");
  if (values.columns % block != 0)
    return usage("quantize.blocks", "rows are not whole blocks")
        .expects(fmt::format("a multiple of {} columns", block), fmt::format("{}", values.columns));
  return work;
}

float quantize(nb::handle values, nb::handle codes, nb::handle scales, const std::string& format,
               const std::string& rule, std::optional<float> global_scale) {
  const Array x = Array::take(values, "values");
  const Array code_array = Array::take(codes, "codes", {.access = Access::write});
  const Array scale_array = Array::take(scales, "scales", {.access = Access::write});
  Work work = value_or_raise(work_of(format, mutable_rows_of(x, "values")));
  work.rule = value_or_raise(rule_of(work.format, rule));
  work.codes = bytes_of(code_array, "codes", work.values.rows, work.values.columns / 2);
  work.scales = bytes_of(scale_array, "scales", work.values.rows, work.blocks());
  const bool scaled =
      work.format == WeightFormat::nvfp4 && work.rule.nvfp4 != formats::Nvfp4Rule::no_global;
  if (global_scale && (!scaled || !std::isfinite(*global_scale) || *global_scale <= 0))
    raise(usage("quantize.global_scale", "invalid global scale")
              .expects(scaled ? "a finite number above zero" : "none, by this format and rule",
                       fmt::format("{}", *global_scale)));
  done_or_raise(without_gil([&]() -> Result<Done> {
    const Result<float> max = max_magnitude(work);
    if (!max) return max.why();
    if (scaled) work.global_scale = global_scale.value_or(formats::nvfp4_global_scale(*max));
    return quantize_rows(work);
  }));
  return work.global_scale;
}

void dequantize(nb::handle codes, nb::handle scales, float global_scale, const std::string& format,
                nb::handle out) {
  const Array code_array = Array::take(codes, "codes");
  const Array scale_array = Array::take(scales, "scales");
  const Array to = Array::take(out, "values", {.access = Access::write});
  Work work = value_or_raise(work_of(format, mutable_rows_of(to, "values")));
  work.codes = bytes_of(code_array, "codes", work.values.rows, work.values.columns / 2);
  work.scales = bytes_of(scale_array, "scales", work.values.rows, work.blocks());
  work.global_scale = global_scale;
  done_or_raise(without_gil([&] { return dequantize_rows(work); }));
}

nb::list rule_names(const std::string& format) {
  nb::list result;
  const auto add = [&result](std::string_view name) {
    result.append(nb::str(name.data(), name.size()));
  };
  if (value_or_raise(format_of(format)) == WeightFormat::mxfp4)
    for (const auto& row : formats::kMxfp4Rules) add(row.name);
  else
    for (const auto& row : formats::kNvfp4Rules) add(row.name);
  return result;
}

}  // namespace

void bind_quantize(nb::module_& module) {
  module.def("quantize", &quantize, nb::arg("values"), nb::arg("codes"), nb::arg("scales"),
             nb::arg("format"), nb::arg("rule"), nb::arg("global_scale").none(),
             nb::sig("def quantize(values: typing.Any, codes: typing.Any, scales: typing.Any, "
                     "format: str, rule: str, global_scale: float | None) -> float"),
             "Quantize rows into codes and scales; the global scale.");
  module.def("dequantize", &dequantize, nb::arg("codes"), nb::arg("scales"),
             nb::arg("global_scale"), nb::arg("format"), nb::arg("out"),
             nb::sig("def dequantize(codes: typing.Any, scales: typing.Any, global_scale: float, "
                     "format: str, out: typing.Any) -> None"),
             "The values of codes and scales, into `out`.");
  module.def("quantize_rules", &rule_names, nb::arg("format"),
             nb::sig("def quantize_rules(format: str) -> list[str]"),
             "The names of a format's rounding rules.");
}

}  // namespace fp4moe::python
