// The number formats: tables of every code's value, and encoders that round as formats/ does.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "errors.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::python {
namespace {

using formats::Bf16;
using formats::E2m1;
using formats::E4m3fn;
using formats::E5m2;
using formats::E8m0;

template <class Format>
std::vector<float> every_value() {
  std::vector<float> result(std::size_t{1} << Format::kBits);
  for (std::size_t code = 0; code < result.size(); ++code)
    result[code] = Format::decode(static_cast<decltype(Format::kMaxCode)>(code));
  return result;
}

struct FormatRow {
  std::string_view name;
  std::vector<float> (*values)();
};
constexpr FormatRow kFormats[] = {
    {"e2m1", every_value<E2m1>}, {"e8m0", every_value<E8m0>}, {"e4m3fn", every_value<E4m3fn>},
    {"e5m2", every_value<E5m2>}, {"bf16", every_value<Bf16>},
};

// One loop for each encoder, so that the compiler sees through it.
template <auto encode, class Code>
void encode_all(const float* from, void* to, std::size_t count) {
  auto* codes = static_cast<Code*>(to);
  for (std::size_t i = 0; i < count; ++i) codes[i] = encode(from[i]);
}

struct EncoderRow {
  std::string_view format;
  std::string_view rounding;  // as golden files spell it
  tensor::DType code;
  void (*run)(const float* from, void* to, std::size_t count);
};
constexpr auto kByte = tensor::DType::u8;
constexpr EncoderRow kEncoders[] = {
    {"e2m1", "rne_satfinite", kByte, encode_all<E2m1::encode, std::uint8_t>},
    {"e2m1", "nearest_ties_away_satfinite", kByte,
     encode_all<E2m1::encode_ties_away, std::uint8_t>},
    {"e8m0", "toward_pos_inf_satfinite", kByte, encode_all<E8m0::encode_up, std::uint8_t>},
    {"e8m0", "toward_zero_satfinite", kByte, encode_all<E8m0::encode_down, std::uint8_t>},
    {"e8m0", "torch_cast", kByte, encode_all<E8m0::encode_torch, std::uint8_t>},
    {"e4m3fn", "rne_satfinite", kByte, encode_all<E4m3fn::encode, std::uint8_t>},
    {"e4m3fn", "rne_overflow_to_nan", kByte, encode_all<E4m3fn::encode_or_nan, std::uint8_t>},
    {"e5m2", "rne_satfinite", kByte, encode_all<E5m2::encode, std::uint8_t>},
    {"e5m2", "rne_overflow_to_inf", kByte, encode_all<E5m2::encode_or_infinity, std::uint8_t>},
    {"bf16", "rne", tensor::DType::u16, encode_all<Bf16::encode, std::uint16_t>},
    {"bf16", "rne_satfinite", tensor::DType::u16, encode_all<Bf16::encode_finite, std::uint16_t>},
};

nb::bytes format_values(const std::string& name) {
  for (const FormatRow& row : kFormats)
    if (row.name == name) {
      const std::vector<float> values = row.values();
      return nb::bytes(values.data(), values.size() * sizeof(float));
    }
  std::string known;
  for (const FormatRow& row : kFormats)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  raise(usage("formats.name", "there is no such number format").expects("one of " + known, name));
}

nb::list format_roundings(const std::string& name) {
  nb::list result;
  for (const EncoderRow& row : kEncoders)
    if (row.format == name) result.append(nb::str(row.rounding.data(), row.rounding.size()));
  return result;
}

const EncoderRow& encoder(const std::string& format, const std::string& rounding) {
  std::string known;
  for (const EncoderRow& row : kEncoders) {
    if (row.format != format) continue;
    if (row.rounding == rounding) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.rounding);
  }
  raise(usage("formats.rounding", fmt::format("unknown rounding of {}", format))
            .expects("one of " + known, rounding));
}

void check_line(const Array& array, const char* what, tensor::DType dtype) {
  if (array.dimensions() != 1 || array.dtype() != dtype ||
      (array.shape(0) > 1 &&
       array.stride(0) != static_cast<std::int64_t>(tensor::row(dtype).block_bytes)))
    raise(usage("formats.array", fmt::format("{} cannot be used", what))
              .expects(fmt::format("a line of {} without gaps", tensor::name(dtype)),
                       fmt::format("{} {}", array.dtype_text(), array.shape_text())));
}

void encode_numbers(const std::string& format, const std::string& rounding, nb::handle values,
                    nb::handle codes) {
  const EncoderRow& row = encoder(format, rounding);
  const Array from = Array::take(values, "values");
  const Array to = Array::take(codes, "codes", {.access = Access::write});
  check_line(from, "values", tensor::DType::f32);
  check_line(to, "codes", row.code);
  if (from.shape(0) != to.shape(0))
    raise(usage("formats.array", "there is not one code for each value")
              .expects(fmt::format("{}", from.shape(0)), fmt::format("{}", to.shape(0))));
  done_or_raise(without_gil([&]() -> Result<Done> {
    row.run(static_cast<const float*>(from.data()), to.data(),
            static_cast<std::size_t>(from.shape(0)));
    return Done{};
  }));
}

}  // namespace

void bind_formats(nb::module_& module) {
  module.def("format_values", &format_values, nb::arg("format"),
             "The value of every code of a number format, as float32.");
  module.def("format_roundings", &format_roundings, nb::arg("format"),
             nb::sig("def format_roundings(format: str) -> list[str]"),
             "The roundings to a number format, the usual one first.");
  module.def("encode", &encode_numbers, nb::arg("format"), nb::arg("rounding"), nb::arg("values"),
             nb::arg("codes"),
             nb::sig("def encode(format: str, rounding: str, values: typing.Any, codes: typing.Any)"
                     " -> None"),
             "Round a line of float32 to codes.");
}

}  // namespace fp4moe::python
