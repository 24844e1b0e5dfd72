// The decode kernel on hand-made tiles, against sums in float64: all three instances, both formats,
// few and many blocks, experts without tokens, of all tokens and chosen twice, launch after launch in
// the same memory.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "matrices.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_decode_test {

constexpr float kAlpha = 1.5f, kBeta = 0.5f, kLimit = 7.0f;

struct Case {
  std::uint32_t tokens = 3, top_k = 2, experts = 5;
  std::uint32_t hidden = 176,
                k_blocks2 = 2;  // k_blocks2: of GEMM2; the intermediate size is 64 x it
  bool is_nvfp4 = false;
  std::uint32_t blocks = 3;
  // The choices of a token: a random expert, the same one for all, or an unassigned one now and then.
  enum class Ids : std::uint8_t { random, one, gaps } ids = Ids::random;

  std::uint32_t k_blocks1() const { return (hidden + kBlockK - 1) / kBlockK; }
};

// What the kernel reads, and what it should give.
struct Given {
  HostMatrix w13, w2;
  std::vector<float> x;           // [tokens][hidden]
  std::vector<std::int32_t> ids;  // [tokens][top_k]
  std::vector<float> weights;
};

Given make(const Case& c) {
  Given result{make_matrix(c.experts, 2 * c.k_blocks2, c.k_blocks1(), c.is_nvfp4, 5),
               make_matrix(c.experts, c.k_blocks1(), c.k_blocks2, c.is_nvfp4, 9),
               random_values(std::size_t{c.tokens} * c.hidden, 3),
               {},
               random_values(std::size_t{c.tokens} * c.top_k, 4)};
  for (float& value : result.x) value = as_stored(ElementType::bf16, value);
  SplitMix64 random(11);
  for (std::uint32_t i = 0; i < c.tokens * c.top_k; ++i) {
    auto id = static_cast<std::int32_t>(c.ids == Case::Ids::one ? 1 : random.next() % c.experts);
    if (c.ids == Case::Ids::gaps && i % 3 == 0) id = i % 2 == 0 ? -1 : 1000;
    result.ids.push_back(id);
  }
  return result;
}

// The sums of a token, and how large a difference roundings of h to bf16 may make.
struct Expected {
  std::vector<double> sums, slack;
};
Expected expected(const Case& c, const Given& given, std::uint32_t token) {
  Expected result{std::vector<double>(c.hidden), std::vector<double>(c.hidden)};
  const HostMatrix &w13 = given.w13, &w2 = given.w2;
  for (std::uint32_t j = 0; j < c.top_k; ++j) {
    const std::int32_t id = given.ids[token * c.top_k + j];
    if (id < 0 || id >= static_cast<std::int32_t>(c.experts)) continue;
    const auto expert = static_cast<std::size_t>(id);
    const double weight = given.weights[token * c.top_k + j];
    const auto gemm1 = [&](std::size_t row, std::size_t half) {
      double sum = 0;
      for (std::uint32_t k = 0; k < c.hidden; ++k)
        sum += w13.row(expert, row)[k] * double{given.x[token * c.hidden + k]};
      return sum * double{w13.factors[2 * expert + half]} +
             double{w13.bias[expert * w13.rows() + row]};
    };
    std::vector<double> h(w2.columns());
    for (std::size_t i = 0; i < h.size(); ++i) {
      const std::size_t row = i / 8 * 16 + i % 8;
      const double gate = std::min(gemm1(row, 0), double{kLimit});
      const double up = std::clamp(gemm1(row + 8, 1), -double{kLimit}, double{kLimit});
      h[i] = gate / (1 + std::exp(-kAlpha * gate)) * (up + kBeta);
    }
    for (std::uint32_t column = 0; column < c.hidden; ++column) {
      double sum = 0, size = 0;
      for (std::size_t k = 0; k < h.size(); ++k) {
        const double part = w2.row(expert, column)[k] * h[k];
        sum += part;
        size += part * part;
      }
      const double factor = w2.factors[expert];
      result.sums[column] += weight * (sum * factor + double{w2.bias[expert * w2.rows() + column]});
      result.slack[column] += std::abs(weight * factor) * std::sqrt(size) * 0x1p-6;
    }
  }
  return result;
}

class Decode : public WithMatrices {
 protected:
  void SetUp() override {
    WithMatrices::SetUp();
    if (!IsSkipped()) sms_ = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  }

  void expect_computed(const Case& c) {
    SCOPED_TRACE(fmt::format("{} tokens, top {}, {} experts, {} x {} blocks, nvfp4 {}, {} blocks",
                             c.tokens, c.top_k, c.experts, c.hidden, c.k_blocks2, c.is_nvfp4,
                             c.blocks));
    const Given given = make(c);
    std::vector<Memory> memory;
    const auto keep = [&](Memory one) { return memory.emplace_back(std::move(one)).data(); };
    const auto keep_as = [&]<class T>(const std::vector<T>& values) {
      return reinterpret_cast<T*>(keep(upload(values)));
    };
    const auto matrix = [&](const HostMatrix& w, std::size_t factors) {
      std::vector<float> scaled = w.factors;
      for (float& factor : scaled) factor /= static_cast<float>(w.unit);
      scaled.resize(factors);
      return WeightMatrix{
          .tiles = reinterpret_cast<const std::uint8_t*>(keep(pack(w, c.experts, c.is_nvfp4))),
          .expert_bytes = std::uint64_t{w.m_blocks} * w.k_blocks * weight_tile_bytes(c.is_nvfp4),
          .m_blocks = w.m_blocks,
          .k_blocks = w.k_blocks,
          .factor = keep_as(scaled),
          .bias = keep_as(w.bias)};
    };
    const std::size_t assignments = given.ids.size();
    const Memory out = buffer<std::uint16_t>(given.x.size());
    DecodeParams p{.call = {.x = {keep(upload(stored(ElementType::bf16, given.x))),
                                  ElementType::bf16, c.tokens, c.hidden},
                            .tokens = c.tokens,
                            .top_k = c.top_k,
                            .ids = keep_as(given.ids),
                            .weights = keep_as(given.weights),
                            .out = {out.data(), ElementType::bf16, c.tokens, c.hidden}},
                   .layer = {.w13 = matrix(given.w13, 2 * c.experts),
                             .w2 = matrix(given.w2, c.experts),
                             .experts = c.experts,
                             .hidden = c.hidden,
                             .intermediate = c.k_blocks2 * kBlockK,
                             .is_nvfp4 = c.is_nvfp4 ? 1u : 0u,
                             .act = Activation::swigluoai,
                             .alpha = kAlpha,
                             .beta = kBeta,
                             .limit = kLimit}};
    const DecodeShape shape = decode_shape(p.layer, c.tokens);
    ASSERT_NE(shape.tile_tokens, 0u);
    p.tile_tokens = shape.tile_tokens;
    p.stages = shape.stages;
    p.partial_sums = keep_as(
        std::vector<std::uint64_t>(std::size_t{c.blocks} * 4 * kBlockM * kDecodeTileTokens));
    p.hidden = keep_as(std::vector<std::uint64_t>(assignments * given.w2.columns()));
    p.gemm2_sums = keep_as(std::vector<std::uint64_t>(assignments * given.w2.rows()));
    p.counters = keep_as(std::vector<std::uint32_t>(kDecodeCounters));
    ASSERT_EQ(bf16_specialization(p), p);

    std::vector<std::uint16_t> first;
    for (const char* const kind : {"generic", "bf16", "quantized", "bf16"}) {
      ASSERT_TRUE(device_->clear(out.data(), 0xFF, out.size(), nullptr));
      const std::string name =
          fmt::format("fp4moe_sm90_decode_{}_{}", kind, c.is_nvfp4 ? "nvfp4" : "mxfp4");
      run(name.c_str(), p, {c.blocks, kDecodeThreads, shape.shared_bytes, true});
      const auto bits = download<std::uint16_t>(out, given.x.size());
      if (first.empty()) first = bits;
      ASSERT_EQ(bits, first) << kind;
    }
    for (std::uint32_t token = 0; token < c.tokens; ++token) {
      const Expected wanted = expected(c, given, token);
      for (std::uint32_t column = 0; column < c.hidden; ++column)
        ASSERT_NEAR(formats::Bf16::decode(first[token * c.hidden + column]), wanted.sums[column],
                    std::abs(wanted.sums[column]) * 0x1p-7 + wanted.slack[column] + 1e-3)
            << "token " << token << ", column " << column;
    }
  }

  std::uint32_t sms_ = 0;
};

TEST_F(Decode, ComputesLayersOfBothFormats) {
  for (const bool is_nvfp4 : {false, true})
    for (const std::uint32_t tokens : {1u, 2u, 7u, 8u, 9u, 16u})
      expect_computed({.tokens = tokens, .is_nvfp4 = is_nvfp4, .blocks = sms_});
}

TEST_F(Decode, GivesTheSameWithAnyNumberOfBlocks) {
  for (const std::uint32_t blocks : {1u, 2u, 5u, sms_})
    for (const std::uint32_t k_blocks2 : {1u, 3u})
      expect_computed({.tokens = 4, .k_blocks2 = k_blocks2, .blocks = blocks});
}

// More tokens of an expert than its mma takes at once.
TEST_F(Decode, OneExpertMayHaveAllTokens) {
  for (const bool is_nvfp4 : {false, true})
    expect_computed(
        {.tokens = 16, .top_k = 3, .is_nvfp4 = is_nvfp4, .blocks = 7, .ids = Case::Ids::one});
}

TEST_F(Decode, UnassignedChoicesAddNothing) {
  expect_computed({.tokens = 9, .top_k = 3, .blocks = 9, .ids = Case::Ids::gaps});
  expect_computed({.tokens = 1, .top_k = 1, .experts = 1, .blocks = 2, .ids = Case::Ids::gaps});
}

// As many K blocks as the stages hold, fewer, and more.
TEST_F(Decode, RowsOfWeightsMayHaveAnyLength) {
  for (const std::uint32_t hidden : {8u, 64u, 520u, 2880u})
    expect_computed({.tokens = 2, .experts = 2, .hidden = hidden, .blocks = 5});
}

}  // namespace kernels_decode_test
}  // namespace fp4moe::kernels::cuda::sm90
