#include "fp4moe/checkpoint/synth/synth_expert.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/random.hpp"

namespace fp4moe::checkpoint {
namespace {

// Parts of an expert, each with its own stream.
constexpr std::uint64_t kCodes = 0, kScales = 8, kBias = 16, kGlobal = 24, kInput = 32;

// Fills with eight bytes at a time; `shape_word` turns uniform bytes into the wanted ones.
template <class ShapeWord>
void fill_bytes(std::uint64_t seed, std::span<std::byte> out, ShapeWord shape_word) {
  SplitMix64 random(seed);
  std::size_t at = 0;
  for (; at + 8 <= out.size(); at += 8) {
    const std::uint64_t word = shape_word(random.next());
    std::memcpy(out.data() + at, &word, 8);
  }
  const std::uint64_t word = shape_word(random.next());
  std::memcpy(out.data() + at, &word, out.size() - at);
}

constexpr std::uint64_t kEachByte = 0x0101010101010101u;

// 119 + two 2-bit numbers per byte: 2^-8 to 2^-2, the middle most often.
constexpr std::uint64_t e8m0_scales(std::uint64_t word) {
  return 119 * kEachByte + (word & 3 * kEachByte) + ((word >> 2) & 3 * kEachByte);
}

// 0x30 + 6 bits per byte: E4M3 from 0.5 to 120.
constexpr std::uint64_t e4m3_scales(std::uint64_t word) {
  return 0x30 * kEachByte + (word & 0x3F * kEachByte);
}

void fill_bias(std::uint64_t seed, std::span<std::byte> out) {
  SplitMix64 random(seed);
  for (std::size_t at = 0; at + 2 <= out.size(); at += 2) {
    const float value = (random.unit() - 0.5f) * 0.25f;
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
    std::memcpy(out.data() + at, &bits, 2);
  }
}

struct Sizes {
  std::uint64_t rows, k;
};

}  // namespace

std::uint64_t part_seed(const ExpertSeed& seed, std::uint64_t part) {
  // Each step mixes the whole state, so neighbors share nothing.
  std::uint64_t state = SplitMix64(seed.seed).next();
  for (const std::uint64_t value : {seed.layer, seed.expert, part})
    state = SplitMix64(state ^ (value + 1) * 0xD1B54A32D192ED03u).next();
  return state;
}

Result<ExpertView> SynthExpert::make(const ExpertSeed& seed, const MoeShape& shape) {
  const std::uint64_t block = block_size(shape.format);
  const Sizes w13{shape.intermediate, shape.hidden}, w2{shape.hidden, shape.intermediate};
  const auto codes_of = [](Sizes s) { return round_up(s.rows * s.k / 2, 64); };
  const auto scales_of = [&](Sizes s) { return round_up(s.rows * s.k / block, 64); };
  const auto bias_of = [](Sizes s) { return round_up(s.rows * 2, 64); };
  const auto all_of = [&](Sizes s) { return codes_of(s) + scales_of(s) + bias_of(s); };
  const std::uint64_t wanted = 2 * all_of(w13) + all_of(w2);
  if (memory_.size() < wanted) {
    Result<tensor::Buffer> memory = tensor::Buffer::allocate(wanted);
    if (!memory) return memory.why();
    memory_ = *std::move(memory);
  }
  std::byte* next = memory_.data();
  const auto take = [&next](std::uint64_t bytes, std::uint64_t used) {
    const std::span<std::byte> part{next, used};
    next += bytes;
    return part;
  };
  const bool is_mxfp4 = shape.format == WeightFormat::mxfp4;
  const auto fill = [&](Sizes size, std::uint64_t which, std::uint64_t scalars) {
    ProjectionView view;
    const auto codes = take(codes_of(size), size.rows * size.k / 2);
    fill_bytes(part_seed(seed, kCodes + which), codes, [](std::uint64_t word) { return word; });
    view.codes = {codes.data(), size.rows, size.k / 2, size.k / 2};
    const auto scales = take(scales_of(size), size.rows * size.k / block);
    fill_bytes(part_seed(seed, kScales + which), scales, is_mxfp4 ? e8m0_scales : e4m3_scales);
    view.scales = {scales.data(), size.rows, size.k / block, size.k / block};
    if (!is_mxfp4)
      view.global_scale =
          1e-4f * (1.0f + 9.0f * SplitMix64(part_seed(seed, kGlobal + scalars)).unit());
    if (shape.has_input_scale)
      view.input_scale =
          1e-3f * (1.0f + 4.0f * SplitMix64(part_seed(seed, kInput + scalars)).unit());
    if (shape.has_bias) {
      const auto bias = take(bias_of(size), size.rows * 2);
      fill_bias(part_seed(seed, kBias + which), bias);
      view.bias = {bias.data(), size.rows, 2, tensor::DType::bf16};
    }
    return view;
  };
  ExpertView view{.shape = shape};
  if (shape.gated()) view.gate = fill(w13, 0, 0);
  view.up = fill(w13, 1, 0);
  view.down = fill(w2, 2, 1);
  return view;
}

void fill_normal_bf16(std::uint64_t seed, std::uint64_t k, std::span<std::uint16_t> out) {
  // The sum of four bytes has mean 510 and deviation 147.8.
  const float scale = 1.0f / (147.8f * std::sqrt(static_cast<float>(k)));
  const auto value = [scale](std::uint32_t four) {
    const std::uint32_t pairs = (four & 0x00FF00FFu) + ((four >> 8) & 0x00FF00FFu);
    const auto sum = static_cast<float>((pairs & 0xFFFFu) + (pairs >> 16));
    const auto bits = std::bit_cast<std::uint32_t>((sum - 510.0f) * scale);
    return static_cast<std::uint16_t>(bits >> 16);
  };
  SplitMix64 random(seed);
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const std::uint64_t word = random.next();
    out[i] = value(static_cast<std::uint32_t>(word));
    if (i + 1 < out.size()) out[i + 1] = value(static_cast<std::uint32_t>(word >> 32));
  }
}

}  // namespace fp4moe::checkpoint
