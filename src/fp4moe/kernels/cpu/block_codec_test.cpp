// Every row of the list that this machine can run, against the functions of formats/.
#include "fp4moe/kernels/cpu/block_codec.hpp"

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/mxfp8.hpp"
#include "fp4moe/formats/nibbles.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/kernels/cpu/block_codec_list.hpp"

namespace fp4moe::kernels::cpu {

// GoogleTest finds it by its argument's namespace.
static void PrintTo(const BlockCodec& codec, std::ostream* out) { *out << codec.name; }

namespace block_codec_test {

using formats::Bf16;
using formats::F16;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 7, 31, 33, 1000};
constexpr Element kElements[] = {Element::bf16, Element::f16, Element::f32};
constexpr std::uint8_t kCanary = 0xA5;

std::size_t size_of(Element element) { return element == Element::f32 ? 4 : 2; }

float value_of(Element element, const std::uint8_t* from) {
  if (element == Element::f32) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  std::uint16_t code = 0;
  std::memcpy(&code, from, 2);
  return element == Element::bf16 ? Bf16::decode(code) : F16::decode(code);
}

// A buffer that starts at an odd address and has a canary behind its end.
class Unaligned {
 public:
  explicit Unaligned(std::size_t bytes) : bytes_(bytes + 2, kCanary) {}
  explicit Unaligned(const Bytes& content) : Unaligned(content.size()) {
    std::copy(content.begin(), content.end(), bytes_.begin() + 1);
  }
  std::uint8_t* data() { return bytes_.data() + 1; }
  Bytes content() const { return {bytes_.begin() + 1, bytes_.end() - 1}; }
  bool is_intact() const { return bytes_.front() == kCanary && bytes_.back() == kCanary; }

 private:
  Bytes bytes_;
};

// What blocks are made of. Each kind drives the scale into another corner.
enum class Kind { any_bits, normal, tiny, least, huge, ties, zeros, nearly_finite };
constexpr Kind kKinds[] = {Kind::any_bits, Kind::normal, Kind::tiny,  Kind::least,
                           Kind::huge,     Kind::ties,   Kind::zeros, Kind::nearly_finite};

float sample(Kind kind, SplitMix64& random) {
  const auto bits = static_cast<std::uint32_t>(random.next() >> 32);
  const float sign = (bits & 1) != 0 ? -1.0f : 1.0f;
  const float unit = random.unit();
  switch (kind) {
    case Kind::any_bits:
      return formats::float_from_bits(bits);
    case Kind::normal:
      return sign * (unit + random.unit() + random.unit() - 1.5f);
    case Kind::tiny:  // around and below the smallest normal number
      return sign * unit * formats::power_of_two(-120 - static_cast<int>(random.next() % 28));
    case Kind::least:  // maxima whose quotients vanish
      return sign * unit * formats::power_of_two(-142);
    case Kind::huge:
      return sign * (1.0f + 0.999f * unit) * 0x1p126f * (1.0f + static_cast<float>(bits >> 31));
    case Kind::ties:  // multiples of one eighth: every threshold of E2M1 with scale 1 is among them
      return sign * static_cast<float>(random.next() % 64) * 0.125f;
    case Kind::zeros:
      return sign * 0.0f;
    case Kind::nearly_finite: {  // now and then infinity or NaN
      const std::uint64_t dice = random.next() % 64;
      if (dice == 0) return formats::float_from_bits(0x7FC00000u | (bits << 31));
      if (dice == 1) return formats::float_from_bits(0x7F800000u | (bits << 31));
      return sign * unit;
    }
  }
  return 0.0f;
}

Bytes make_input(Element element, Kind kind, std::size_t count, std::uint64_t seed) {
  SplitMix64 random(seed);
  Bytes input(count * size_of(element));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint8_t* to = input.data() + i * size_of(element);
    if (element == Element::f32) {
      const float value = sample(kind, random);
      std::memcpy(to, &value, 4);
    } else if (kind == Kind::any_bits) {
      const auto code = static_cast<std::uint16_t>(random.next() >> 48);
      std::memcpy(to, &code, 2);
    } else {
      const float value = sample(kind, random);
      const std::uint16_t code =
          element == Element::bf16 ? Bf16::encode(value) : F16::encode(value);
      std::memcpy(to, &code, 2);
    }
  }
  return input;
}

std::vector<float> widen(Element element, const Bytes& input) {
  std::vector<float> values(input.size() / size_of(element));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = value_of(element, input.data() + i * size_of(element));
  return values;
}

struct Quantized {
  Bytes scales, codes;
};

std::string first_difference(const Bytes& expected, const Bytes& found) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != found[i])
      return "byte " + std::to_string(i) + ": expected " + std::to_string(expected[i]) +
             ", found " + std::to_string(found[i]);
  return "none";
}

// One format as the tests see it: its block, its kernel and its reference.
struct QuantizeCase {
  std::string name;
  std::size_t elements, code_bytes;
  void (*BlockCodec::*kernel)(const QuantizeBlocks&) noexcept;
  QuantizeBlocks settings;
};

std::vector<QuantizeCase> quantize_cases() {
  std::vector<QuantizeCase> cases;
  for (const formats::Mxfp4RuleRow& row : formats::kMxfp4Rules)
    cases.push_back(
        {std::string(row.name), 32, 16, &BlockCodec::quantize_mxfp4, {.mxfp4_rule = row.rule}});
  for (const formats::Mxfp8RuleRow& row : formats::kMxfp8Rules)
    cases.push_back(
        {std::string(row.name), 32, 32, &BlockCodec::quantize_mxfp8, {.mxfp8_rule = row.rule}});
  for (const formats::Nvfp4RuleRow& row : formats::kNvfp4Rules)
    for (const float global : {1.0f, 2688.0f, 0.37f, 1e30f, 1e-30f, 3e38f, 1e-42f})
      cases.push_back({std::string(row.name) + " g=" + std::to_string(global),
                       16,
                       8,
                       &BlockCodec::quantize_nvfp4,
                       {.nvfp4_rule = row.rule, .global_scale = global}});
  return cases;
}

Quantized reference(const QuantizeCase& what, const std::vector<float>& values) {
  const std::size_t blocks = values.size() / what.elements;
  Quantized out{Bytes(blocks), Bytes(blocks * what.code_bytes)};
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::span<const float> x(values.data() + i * what.elements, what.elements);
    const std::span<std::uint8_t> codes(out.codes.data() + i * what.code_bytes, what.code_bytes);
    if (what.kernel == &BlockCodec::quantize_mxfp4)
      formats::quantize_mxfp4(what.settings.mxfp4_rule, x, out.scales[i], codes);
    else if (what.kernel == &BlockCodec::quantize_mxfp8)
      formats::quantize_mxfp8(what.settings.mxfp8_rule, x, out.scales[i], codes);
    else
      formats::quantize_nvfp4({what.settings.nvfp4_rule, what.settings.global_scale}, x,
                              out.scales[i], codes);
  }
  return out;
}

void expect_quantizes(const BlockCodec& codec, const QuantizeCase& what, Element element,
                      const Bytes& input) {
  const std::size_t blocks = input.size() / size_of(element) / what.elements;
  const Quantized expected = reference(what, widen(element, input));
  Unaligned from(input);
  Unaligned scales(blocks);
  Unaligned codes(blocks * what.code_bytes);
  QuantizeBlocks work = what.settings;
  work.input = from.data();
  work.element = element;
  work.blocks = blocks;
  work.codes = codes.data();
  work.scales = scales.data();

  (codec.*what.kernel)(work);

  ASSERT_EQ(expected.scales, scales.content())
      << first_difference(expected.scales, scales.content());
  ASSERT_EQ(expected.codes, codes.content()) << first_difference(expected.codes, codes.content());
  ASSERT_TRUE(scales.is_intact() && codes.is_intact());
}

class EveryCodec : public ::testing::TestWithParam<BlockCodec> {
 protected:
  void SetUp() override {
    if (!platform::detect_cpu_features().contains_all(GetParam().needs))
      GTEST_SKIP() << "this machine lacks " << text(GetParam().needs);
  }
};

TEST_P(EveryCodec, QuantizesLikeTheReferenceInEveryCorner) {
  for (const QuantizeCase& what : quantize_cases())
    for (const Element element : kElements)
      for (const Kind kind : kKinds) {
        SCOPED_TRACE(what.name + " element " + std::to_string(static_cast<int>(element)) +
                     " kind " + std::to_string(static_cast<int>(kind)));
        expect_quantizes(GetParam(), what, element,
                         make_input(element, kind, 200 * what.elements, 11));
        if (HasFatalFailure()) return;
      }
}

TEST_P(EveryCodec, QuantizesAnyNumberOfBlocks) {
  for (const QuantizeCase& what : quantize_cases())
    for (const std::size_t blocks : kCounts) {
      SCOPED_TRACE(what.name + " blocks " + std::to_string(blocks));
      expect_quantizes(GetParam(), what, Element::bf16,
                       make_input(Element::bf16, Kind::normal, blocks * what.elements, blocks));
      if (HasFatalFailure()) return;
    }
}

// Every bf16 pattern meets scales around its own size, and one far away.
TEST_P(EveryCodec, QuantizesEveryBf16Pattern) {
  Bytes input(2 * 65536);
  for (std::size_t shuffle : {1u, 32u, 12289u}) {
    for (std::size_t i = 0; i < 65536; ++i) {
      const auto code = static_cast<std::uint16_t>(i * (2 * shuffle - 1));
      std::memcpy(input.data() + 2 * i, &code, 2);
    }
    for (const QuantizeCase& what : quantize_cases()) {
      SCOPED_TRACE(what.name + " shuffle " + std::to_string(shuffle));
      expect_quantizes(GetParam(), what, Element::bf16, input);
      if (HasFatalFailure()) return;
    }
  }
}

// A block's largest value sets the scale; the others sit on, just below and just above every
// threshold of E2M1, for every exponent.
TEST_P(EveryCodec, QuantizesNeighborsOfEveryThreshold) {
  constexpr float kThresholds[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  std::vector<float> values;
  for (int exponent = -140; exponent <= 125; ++exponent) {
    const float power = formats::power_of_two(exponent);
    std::vector<float> block;
    for (const float threshold : kThresholds)
      for (const int step : {-1, 0, 1}) {
        const std::uint32_t bits = formats::float_bits(threshold * power);
        block.push_back(formats::float_from_bits(bits + static_cast<std::uint32_t>(step)));
      }
    block.push_back(6.0f * power);
    block.resize(32, 0.0f);
    values.insert(values.end(), block.begin(), block.end());
  }
  Bytes input(values.size() * 4);
  std::memcpy(input.data(), values.data(), input.size());
  for (const QuantizeCase& what : quantize_cases()) {
    SCOPED_TRACE(what.name);
    expect_quantizes(GetParam(), what, Element::f32, input);
    if (HasFatalFailure()) return;
  }
}

struct DequantizeCase {
  std::string name;
  std::size_t elements, code_bytes;
  void (*BlockCodec::*kernel)(const DequantizeBlocks&) noexcept;
  DequantizeBlocks settings;
};

std::vector<DequantizeCase> dequantize_cases() {
  std::vector<DequantizeCase> cases{
      {"mxfp4", 32, 16, &BlockCodec::dequantize_mxfp4, {}},
      {"mxfp8", 32, 32, &BlockCodec::dequantize_mxfp8, {}},
  };
  for (const GlobalScaleUse kind : {GlobalScaleUse::divisor, GlobalScaleUse::multiplier})
    for (const float global : {1.0f, 2688.0f, 0.37f, 1e38f, 1e-40f})
      cases.push_back({"nvfp4 " + std::to_string(global),
                       16,
                       8,
                       &BlockCodec::dequantize_nvfp4,
                       {.global_kind = kind, .global_scale = global}});
  return cases;
}

Bytes narrow(Element element, bool keep_finite, std::span<const float> values) {
  Bytes out(values.size() * size_of(element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint8_t* to = out.data() + i * size_of(element);
    if (element == Element::f32) {
      std::memcpy(to, &values[i], 4);
      continue;
    }
    const float x = values[i];
    const std::uint16_t code = element == Element::bf16
                                   ? (keep_finite ? Bf16::encode_finite(x) : Bf16::encode(x))
                                   : (keep_finite ? F16::encode_finite(x) : F16::encode(x));
    std::memcpy(to, &code, 2);
  }
  return out;
}

Bytes reference(const DequantizeCase& what, Element element, const Quantized& in) {
  std::vector<float> values(in.scales.size() * what.elements);
  for (std::size_t i = 0; i < in.scales.size(); ++i) {
    const std::span<const std::uint8_t> codes(in.codes.data() + i * what.code_bytes,
                                              what.code_bytes);
    const std::span<float> out(values.data() + i * what.elements, what.elements);
    if (what.kernel == &BlockCodec::dequantize_mxfp4)
      formats::dequantize_mxfp4(in.scales[i], codes, out);
    else if (what.kernel == &BlockCodec::dequantize_mxfp8)
      formats::dequantize_mxfp8(in.scales[i], codes, out);
    else if (what.settings.global_kind == GlobalScaleUse::divisor)
      formats::dequantize_nvfp4(in.scales[i], what.settings.global_scale, codes, out);
    else
      formats::dequantize_nvfp4_by_multiplier(in.scales[i], what.settings.global_scale, codes, out);
  }
  return narrow(element, what.kernel != &BlockCodec::dequantize_nvfp4, values);
}

void expect_dequantizes(const BlockCodec& codec, const DequantizeCase& what, Element element,
                        const Quantized& in) {
  const Bytes expected = reference(what, element, in);
  Unaligned scales(in.scales);
  Unaligned codes(in.codes);
  Unaligned output(expected.size());
  DequantizeBlocks work = what.settings;
  work.codes = codes.data();
  work.scales = scales.data();
  work.blocks = in.scales.size();
  work.output = output.data();
  work.element = element;

  (codec.*what.kernel)(work);

  ASSERT_EQ(expected, output.content()) << first_difference(expected, output.content());
  ASSERT_TRUE(output.is_intact());
}

// All 256 scale bytes, and every code byte with each of them.
TEST_P(EveryCodec, DequantizesEveryScaleAndCode) {
  for (const DequantizeCase& what : dequantize_cases())
    for (const Element element : kElements) {
      SCOPED_TRACE(what.name + " element " + std::to_string(static_cast<int>(element)));
      Quantized in;
      for (std::size_t scale = 0; scale < 256; ++scale)
        for (std::size_t byte = 0; byte < 256; ++byte) {
          if (byte % what.code_bytes == 0) in.scales.push_back(static_cast<std::uint8_t>(scale));
          in.codes.push_back(static_cast<std::uint8_t>(byte));
        }
      expect_dequantizes(GetParam(), what, element, in);
      if (HasFatalFailure()) return;
    }
}

TEST_P(EveryCodec, DequantizesAnyNumberOfBlocks) {
  SplitMix64 random(5);
  for (const DequantizeCase& what : dequantize_cases())
    for (const std::size_t blocks : kCounts) {
      SCOPED_TRACE(what.name + " blocks " + std::to_string(blocks));
      Quantized in{Bytes(blocks), Bytes(blocks * what.code_bytes)};
      for (std::uint8_t& byte : in.scales) byte = static_cast<std::uint8_t>(random.next());
      for (std::uint8_t& byte : in.codes) byte = static_cast<std::uint8_t>(random.next());
      expect_dequantizes(GetParam(), what, Element::bf16, in);
      if (HasFatalFailure()) return;
    }
}

TEST_P(EveryCodec, FindsTheLargestMagnitudeWhereverItStands) {
  for (const Element element : kElements)
    for (const std::size_t count : {0u, 1u, 15u, 16u, 31u, 32u, 33u, 100u, 1027u}) {
      Bytes input = make_input(element, Kind::normal, count, count);
      for (std::size_t at = 0; at < count; at += 1 + count / 40) {
        const float peak = at % 2 == 0 ? -9.5f : 9.5f;
        Bytes with_peak = input;
        const Bytes encoded = narrow(element, false, std::span(&peak, 1));
        std::copy(encoded.begin(), encoded.end(),
                  with_peak.begin() + static_cast<std::ptrdiff_t>(at * size_of(element)));
        Unaligned from(with_peak);
        EXPECT_EQ(GetParam().max_magnitude({from.data(), element, count}), 9.5f);
      }
      Unaligned from(input);
      EXPECT_EQ(GetParam().max_magnitude({from.data(), element, count}),
                formats::block_amax(widen(element, input)));
    }
}

TEST_P(EveryCodec, CallsTheLargestMagnitudeNanWhenAnyValueIs) {
  const float nan = formats::float_from_bits(0xFFC12345);
  const float infinity = formats::float_from_bits(formats::kFloatInfinityBits);
  for (const Element element : kElements)
    for (const std::size_t at : {0u, 40u, 66u}) {
      std::vector<float> values(67, infinity);
      Unaligned infinite(narrow(element, false, values));
      values[at] = nan;
      Unaligned with_nan(narrow(element, false, values));

      EXPECT_EQ(GetParam().max_magnitude({infinite.data(), element, 67}), infinity);
      EXPECT_EQ(formats::float_bits(GetParam().max_magnitude({with_nan.data(), element, 67})),
                formats::kFloatNanBits);
    }
}

// Element i of a GGUF block, straight from the format's description.
std::uint8_t gguf_element(const std::uint8_t* bytes, std::size_t half, std::size_t i) {
  return static_cast<std::uint8_t>(i < half ? bytes[i] & 15 : bytes[i - half] >> 4);
}

TEST_P(EveryCodec, MovesMxfp4ToGgufAndBack) {
  SplitMix64 random(7);
  for (const std::size_t blocks : kCounts) {
    Quantized in{Bytes(blocks), Bytes(blocks * 16)};
    for (std::uint8_t& byte : in.scales) byte = static_cast<std::uint8_t>(random.next());
    for (std::uint8_t& byte : in.codes) byte = static_cast<std::uint8_t>(random.next());
    Unaligned packed(blocks * 17);
    Unaligned scales(blocks);
    Unaligned codes(blocks * 16);

    GetParam().pack_gguf_mxfp4({in.codes.data(), in.scales.data(), blocks, packed.data()});
    GetParam().unpack_gguf_mxfp4({packed.data(), blocks, codes.data(), scales.data()});

    for (std::size_t b = 0; b < blocks; ++b) {
      const std::uint8_t* block = packed.data() + 17 * b;
      ASSERT_EQ(block[0], in.scales[b]);
      for (std::size_t i = 0; i < 32; ++i)
        ASSERT_EQ(gguf_element(block + 1, 16, i), formats::nibble(in.codes, 32 * b + i));
    }
    EXPECT_EQ(codes.content(), in.codes);
    EXPECT_EQ(scales.content(), in.scales);
    EXPECT_TRUE(packed.is_intact() && codes.is_intact() && scales.is_intact());
  }
}

TEST_P(EveryCodec, MovesNvfp4ToGgufWithoutTheSignsOfScalesAndBackWithWhatIsThere) {
  SplitMix64 random(8);
  for (const std::size_t blocks : {0u, 4u, 8u, 12u, 28u, 1000u}) {
    Quantized in{Bytes(blocks), Bytes(blocks * 8)};
    for (std::uint8_t& byte : in.scales) byte = static_cast<std::uint8_t>(random.next());
    for (std::uint8_t& byte : in.codes) byte = static_cast<std::uint8_t>(random.next());
    Unaligned packed(blocks * 9);
    Unaligned scales(blocks);
    Unaligned codes(blocks * 8);

    GetParam().pack_gguf_nvfp4({in.codes.data(), in.scales.data(), blocks, packed.data()});

    for (std::size_t b = 0; b < blocks; ++b) {
      std::uint8_t* block = packed.data() + 36 * (b / 4);
      ASSERT_EQ(block[b % 4], in.scales[b] & 0x7F);
      for (std::size_t i = 0; i < 16; ++i)
        ASSERT_EQ(gguf_element(block + 4 + 8 * (b % 4), 8, i),
                  formats::nibble(in.codes, 16 * b + i));
      block[b % 4] = in.scales[b];  // as another program might write it
    }
    GetParam().unpack_gguf_nvfp4({packed.data(), blocks, codes.data(), scales.data()});
    EXPECT_EQ(codes.content(), in.codes);
    EXPECT_EQ(scales.content(), in.scales);
    EXPECT_TRUE(packed.is_intact() && codes.is_intact() && scales.is_intact());
  }
}

std::string isa_of(const ::testing::TestParamInfo<BlockCodec>& row) {
  return std::string(row.param.name.substr(0, row.param.name.find('/')));
}

INSTANTIATE_TEST_SUITE_P(List, EveryCodec,
                         ::testing::ValuesIn(block_codecs().begin(), block_codecs().end()), isa_of);

}  // namespace block_codec_test
}  // namespace fp4moe::kernels::cpu
