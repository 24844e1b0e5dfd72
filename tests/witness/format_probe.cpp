// Shows the number formats to another program: raw bytes in on stdin, raw bytes out on stdout, all
// little-endian.
//
//   format_probe encode FORMAT RULE            float32 -> codes (one byte, or two for bf16 and f16)
//   format_probe decode FORMAT RULE            codes -> float32; RULE is "strict" or "shifted"
//   format_probe quantize FORMAT RULE [G]      float32 -> blocks: a scale byte, then its codes
//   format_probe dequantize FORMAT RULE [G]    blocks -> float32; RULE is "strict" or "shifted",
//   and
//                                              for nvfp4 "divide" or "multiply"
//
// Block formats are mxfp4, mxfp8 and nvfp4; the last block may be short. G is nvfp4's float32 scale
// as 8 hexadecimal digits, 1 when absent. Exit status: 0, or 2 when the words are not known.
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e4m3fnuz.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nvfp4.hpp"

namespace fp4moe::formats {
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Request {
  std::string_view format{};
  std::string_view rule{};
  float global_scale = 1.0f;
};

Bytes read_input() {
  Bytes all;
  std::array<std::uint8_t, 65536> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), stdin))
    all.insert(all.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(got));
  return all;
}

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class In, class Out>
Bytes map(const Bytes& input, Out (*convert)(In)) {
  std::vector<Out> out;
  for (const In value : values_of<In>(input)) out.push_back(convert(value));
  return bytes_of(out);
}

struct Conversion {
  std::string_view format, rule;
  Bytes (*run)(const Bytes& input);
};

// clang-format off
constexpr Conversion kEncoders[] = {
    {"e2m1",     "rne_satfinite",               [](const Bytes& in) { return map(in, E2m1::encode); }},
    {"e2m1",     "nearest_ties_away_satfinite", [](const Bytes& in) { return map(in, E2m1::encode_ties_away); }},
    {"e8m0",     "toward_pos_inf_satfinite",    [](const Bytes& in) { return map(in, E8m0::encode_up); }},
    {"e8m0",     "toward_zero_satfinite",       [](const Bytes& in) { return map(in, E8m0::encode_down); }},
    {"e8m0",     "torch_cast",                  [](const Bytes& in) { return map(in, E8m0::encode_torch); }},
    {"e4m3fn",   "rne_satfinite",               [](const Bytes& in) { return map(in, E4m3fn::encode); }},
    {"e4m3fn",   "rne_overflow_to_nan",         [](const Bytes& in) { return map(in, E4m3fn::encode_or_nan); }},
    {"e5m2",     "rne_satfinite",               [](const Bytes& in) { return map(in, E5m2::encode); }},
    {"e5m2",     "rne_overflow_to_inf",         [](const Bytes& in) { return map(in, E5m2::encode_or_infinity); }},
    {"e4m3fnuz", "rne_satfinite",               [](const Bytes& in) { return map(in, E4m3fnuz::encode); }},
    {"e4m3fnuz", "rne_overflow_to_nan",         [](const Bytes& in) { return map(in, E4m3fnuz::encode_or_nan); }},
    {"bf16",     "rne",                         [](const Bytes& in) { return map(in, Bf16::encode); }},
    {"f16",      "rne",                         [](const Bytes& in) { return map(in, F16::encode); }},
};

constexpr Conversion kDecoders[] = {
    {"e2m1",     "strict",  [](const Bytes& in) { return map(in, E2m1::decode); }},
    {"e8m0",     "strict",  [](const Bytes& in) { return map(in, E8m0::decode); }},
    {"e8m0",     "shifted", [](const Bytes& in) { return map(in, E8m0::decode_shifted); }},
    {"e4m3fn",   "strict",  [](const Bytes& in) { return map(in, E4m3fn::decode); }},
    {"e5m2",     "strict",  [](const Bytes& in) { return map(in, E5m2::decode); }},
    {"e4m3fnuz", "strict",  [](const Bytes& in) { return map(in, E4m3fnuz::decode); }},
    {"bf16",     "strict",  [](const Bytes& in) { return map(in, Bf16::decode); }},
    {"f16",      "strict",  [](const Bytes& in) { return map(in, F16::decode); }},
};
// clang-format on

bool convert(std::span<const Conversion> table, const Request& request, const Bytes& input,
             Bytes& output) {
  for (const Conversion& row : table)
    if (row.format == request.format && row.rule == request.rule) {
      output = row.run(input);
      return true;
    }
  return false;
}

// Calls quantize(values, scale, codes) for each block.
template <class Quantize>
Bytes quantize_all(BlockShape shape, const Bytes& input, Quantize quantize) {
  std::vector<float> x = values_of<float>(input);
  const std::size_t stride = 1 + shape.code_bytes;
  Bytes output(shape.blocks_in(x.size()) * stride);
  for_each_block(shape, Rows<float>{x, x.size()}, [&](std::span<float> values, std::size_t block) {
    const std::span<std::uint8_t> out = std::span(output).subspan(block * stride, stride);
    quantize(std::span<const float>(values), out[0], out.subspan(1));
  });
  return output;
}

// Calls dequantize(scale, codes, values) for each block.
template <class Dequantize>
Bytes dequantize_all(BlockShape shape, const Bytes& input, Dequantize dequantize) {
  const std::size_t stride = 1 + shape.code_bytes;
  std::vector<float> out(input.size() / stride * shape.elements);
  for (std::size_t block = 0; block < input.size() / stride; ++block) {
    const auto in = std::span(input).subspan(block * stride, stride);
    dequantize(in[0], in.subspan(1),
               std::span(out).subspan(block * shape.elements, shape.elements));
  }
  return bytes_of(out);
}

bool quantize(const Request& request, const Bytes& input, Bytes& output) {
  if (const auto rule = mxfp4_rule_from_name(request.rule); rule && request.format == "mxfp4")
    output = quantize_all(kMxfp4Shape, input, [&](auto x, std::uint8_t& scale, auto codes) {
      quantize_mxfp4(*rule, x, scale, codes);
    });
  else if (const auto wide = mxfp8_rule_from_name(request.rule); wide && request.format == "mxfp8")
    output = quantize_all(kMxfp8Shape, input, [&](auto x, std::uint8_t& scale, auto codes) {
      quantize_mxfp8(*wide, x, scale, codes);
    });
  else if (const auto nv = nvfp4_rule_from_name(request.rule); nv && request.format == "nvfp4")
    output = quantize_all(kNvfp4Shape, input, [&](auto x, std::uint8_t& scale, auto codes) {
      quantize_nvfp4({.rule = *nv, .global_scale = request.global_scale}, x, scale, codes);
    });
  else
    return false;
  return true;
}

bool dequantize(const Request& request, const Bytes& input, Bytes& output) {
  const bool known_reading = request.rule == "strict" || request.rule == "shifted";
  const ScaleReading reading =
      request.rule == "shifted" ? ScaleReading::shifted : ScaleReading::strict;
  if (request.format == "mxfp4" && known_reading)
    output = dequantize_all(kMxfp4Shape, input, [&](std::uint8_t scale, auto codes, auto values) {
      dequantize_mxfp4(scale, codes, values, reading);
    });
  else if (request.format == "mxfp8" && known_reading)
    output = dequantize_all(kMxfp8Shape, input, [&](std::uint8_t scale, auto codes, auto values) {
      dequantize_mxfp8(scale, codes, values, reading);
    });
  else if (request.format == "nvfp4" && request.rule == "divide")
    output = dequantize_all(kNvfp4Shape, input, [&](std::uint8_t scale, auto codes, auto values) {
      dequantize_nvfp4(scale, request.global_scale, codes, values);
    });
  else if (request.format == "nvfp4" && request.rule == "multiply")
    output = dequantize_all(kNvfp4Shape, input, [&](std::uint8_t scale, auto codes, auto values) {
      dequantize_nvfp4_by_multiplier(scale, request.global_scale, codes, values);
    });
  else
    return false;
  return true;
}

bool parse_global_scale(std::string_view digits, float& scale) {
  std::uint32_t bits = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, status] = std::from_chars(digits.data(), end, bits, 16);
  scale = float_from_bits(bits);
  return digits.size() == 8 && status == std::errc{} && stopped == end;
}

int run(std::span<const char* const> words) {
  Request request;
  const bool complete = words.size() == 4 || words.size() == 5;
  if (complete) {
    request.format = words[2];
    request.rule = words[3];
  }
  if (!complete || (words.size() == 5 && !parse_global_scale(words[4], request.global_scale))) {
    std::fputs("usage: format_probe encode|decode|quantize|dequantize FORMAT RULE [G]\n", stderr);
    return 2;
  }
  const std::string_view verb = words[1];
  const Bytes input = read_input();
  Bytes output;
  const bool known = verb == "encode"       ? convert(kEncoders, request, input, output)
                     : verb == "decode"     ? convert(kDecoders, request, input, output)
                     : verb == "quantize"   ? quantize(request, input, output)
                     : verb == "dequantize" ? dequantize(request, input, output)
                                            : false;
  if (!known) {
    std::fprintf(stderr, "format_probe: unknown: %s %s %s\n", words[1], words[2], words[3]);
    return 2;
  }
  return std::fwrite(output.data(), 1, output.size(), stdout) == output.size() ? 0 : 1;
}

}  // namespace
}  // namespace fp4moe::formats

int main(int argc, char** argv) {
  return fp4moe::formats::run({argv, static_cast<std::size_t>(argc)});
}
