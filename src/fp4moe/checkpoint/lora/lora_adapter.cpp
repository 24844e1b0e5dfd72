#include "fp4moe/checkpoint/lora/lora_adapter.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr Projection kAllProjections[] = {Projection::gate, Projection::up, Projection::down};

// The share of a rank in a size that all ranks share out evenly.
Result<Range> even_share(std::uint64_t size, Rank rank, std::string_view what) {
  if (size % rank.size != 0)
    return usage("adapter.sharding", "a fully sharded adapter cannot be shared out")
        .expects(fmt::format("{} that is a multiple of {} ranks", what, rank.size),
                 std::to_string(size))
        .try_this("Load it without full sharding");
  const std::uint64_t each = size / rank.size;
  return Range{rank.rank * each, (rank.rank + 1) * each};
}

struct FactorCuts {
  FactorPart a{}, b{};
};

// A rank's part of a pair.
Result<FactorCuts> cuts_of(const LoraCut& cut, Range intermediate, Projection which,
                           const LowRankPlace& place) {
  FactorCuts cuts{
      .a = {.rows = {0, place.rank()}, .columns = {0, place.a.columns}},
      .b = {.rows = {0, place.b.rows}, .columns = {0, place.rank()}, .scale = place.scale}};
  const Rank rank = cut.slice.tensor_parallel;
  if (which == Projection::down) {
    cuts.a.columns = intermediate;
    if (!cut.fully_sharded) return cuts;
    const Result<Range> rows = even_share(place.b.rows, rank, "a hidden size");
    if (!rows) return rows.why();
    cuts.b.rows = *rows;
  } else {
    cuts.b.rows = intermediate;
    if (!cut.fully_sharded) return cuts;
    const Result<Range> rows = even_share(place.rank(), rank, "a rank");
    if (!rows) return rows.why();
    cuts.a.rows = *rows;
  }
  return cuts;
}

// A rank's part of a layer.
Result<Range> share_of(const LoraLayer& layer, Rank rank, std::string_view prefix) {
  const Result<Range> share = split_intermediate(layer.shape.intermediate,
                                                 block_size(layer.shape.format), rank, layer.rule);
  if (share && share->size() == 0)
    return usage("slice.empty", "this rank holds no rows of the layer")
        .at(prefix)
        .expects("fewer tensor-parallel ranks", fmt::format("{} of {}", rank.rank, rank.size));
  return share;
}

class LayerLoader {
 public:
  explicit LayerLoader(const Adapter& adapter) : adapter_(adapter) {}

  // Factors that experts, or gate and up, have in common are held once.
  Result<LoraMatrix> load(const FactorPlace& place, const FactorPart& part,
                          std::vector<std::vector<float>>& numbers) {
    for (const Held& held : last_)
      if (held.place == place && held.part.rows == part.rows && held.part.columns == part.columns &&
          held.part.scale == part.scale)
        return held.matrix;
    std::vector<float>& result = numbers.emplace_back(part.rows.size() * part.columns.size());
    if (Result<Done> done = read_factor(adapter_, place, part, result); !done) return done.why();
    const LoraMatrix matrix{result.data(), part.rows.size(), part.columns.size()};
    last_[next_++ % last_.size()] = {place, part, matrix};
    return matrix;
  }

 private:
  struct Held {
    FactorPlace place{};
    FactorPart part{};
    LoraMatrix matrix{};
  };
  const Adapter& adapter_;
  std::array<Held, 12> last_{};  // two experts' worth: enough to see what repeats
  std::size_t next_ = 0;
};

}  // namespace

Result<LoraAdapter> LoraAdapter::load(const Adapter& adapter, std::size_t layer,
                                      const LoraCut& cut) {
  const AdapterTarget& target = adapter.targets()[layer];
  const Slice& slice = cut.slice;
  const Result<Range> intermediate =
      share_of({target.shape, target.is_gpt_oss ? SplitRule::ceil_blocks : SplitRule::equal},
               slice.tensor_parallel, target.prefix);
  if (!intermediate) return intermediate.why();
  Result<std::vector<std::uint64_t>> experts =
      local_experts(target.shape.experts, slice.expert_parallel, slice.placement);
  if (!experts) return experts.why();
  LoraAdapter result;
  result.experts_ = *std::move(experts);
  result.pairs_.resize(result.experts_.size());
  LayerLoader loader(adapter);
  for (std::size_t i = 0; i < result.experts_.size(); ++i)
    for (const Projection which : kAllProjections) {
      const LowRankPlace& place = adapter.place(layer, which, result.experts_[i]);
      if (place.empty()) continue;
      const Result<FactorCuts> cuts = cuts_of(cut, *intermediate, which, place);
      if (!cuts) return cuts.why();
      const Result<LoraMatrix> a = loader.load(place.a, cuts->a, result.numbers_);
      if (!a) return a.why();
      const Result<LoraMatrix> b = loader.load(place.b, cuts->b, result.numbers_);
      if (!b) return b.why();
      result.pairs_[i][static_cast<std::size_t>(which)] = {.a = *a, .b = *b};
    }
  return result;
}

namespace {

// One of the given pairs, as the factors of one projection: B's rows may be part of a w13's.
struct PairSource {
  std::string_view name{};
  const StackedPair* pair = nullptr;
  std::uint64_t inputs = 0, outputs = 0;        // of the pair
  std::uint64_t first = 0, step = 1, rows = 0;  // of B
};

std::vector<std::pair<Projection, PairSource>> sources_of(const LoraWeights& given,
                                                          const MoeShape& shape) {
  std::vector<std::pair<Projection, PairSource>> result;
  const std::uint64_t width = shape.intermediate, hidden = shape.hidden;
  const auto add = [&](Projection which, const PairSource& source) {
    if (!source.pair->a.bytes.empty() || !source.pair->b.bytes.empty())
      result.emplace_back(which, source);
  };
  const bool is_interleaved = shape.order == RowOrder::interleaved;
  const std::uint64_t both = shape.w13_rows(), step = is_interleaved ? 2 : 1;
  if (shape.gated()) add(Projection::gate, {"w13", &given.w13, hidden, both, 0, step, width});
  add(Projection::up, {"w13", &given.w13, hidden, both,
                       !shape.gated()   ? 0
                       : is_interleaved ? 1
                                        : width,
                       step, width});
  add(Projection::gate, {"gate", &given.gate, hidden, width, 0, 1, width});
  add(Projection::up, {"up", &given.up, hidden, width, 0, 1, width});
  add(Projection::down, {"down", &given.down, width, hidden, 0, 1, hidden});
  return result;
}

// How many experts a factor holds: all, or 1 for all of them.
Result<std::uint64_t> experts_in(const StackedFactor& factor, std::string_view name,
                                 std::uint64_t experts, std::uint64_t numbers) {
  using tensor::DType;
  if (factor.bytes.empty() || factor.bytes.data() == nullptr)
    return usage("adapter.pair", "one factor of a pair is missing").at(name);
  if (factor.dtype != DType::bf16 && factor.dtype != DType::f16 && factor.dtype != DType::f32)
    return usage("adapter.dtype", "the factor has another type")
        .at(name)
        .expects("BF16, F16 or F32", tensor::name(factor.dtype));
  const auto one = checked_multiply(numbers, tensor::row(factor.dtype).block_bytes);
  const auto all = one ? checked_multiply(*one, experts) : std::nullopt;
  if (one && factor.bytes.size() == *one) return 1;
  if (all && factor.bytes.size() == *all) return experts;
  return usage("adapter.shape", "the memory of a factor has another size")
      .at(name)
      .expects(fmt::format("{} numbers for one expert or for each of {}", numbers, experts),
               fmt::format("{} bytes of {}", factor.bytes.size(), tensor::name(factor.dtype)));
}

Result<Done> check_given(const LoraWeights& given, const MoeShape& shape) {
  const std::uint64_t max = std::min(shape.hidden, shape.intermediate);
  if (given.rank == 0 || given.rank > max)
    return usage("adapter.rank", "the rank does not fit the layer's matrices")
        .expects(fmt::format("1 to {}", max), std::to_string(given.rank));
  const auto is_given = [](const StackedPair& pair) {
    return !pair.a.bytes.empty() || !pair.b.bytes.empty();
  };
  if (is_given(given.w13) && (is_given(given.gate) || is_given(given.up)))
    return usage("adapter.duplicate", "w13 is changed together with its parts")
        .expects("w13, or gate and up", "both");
  if (!shape.gated() && is_given(given.gate))
    return usage("adapter.no_gate", "the adapter changes a gate, and the layer has none");
  return Done{};
}

}  // namespace

Result<LoraAdapter> LoraAdapter::of(const LoraWeights& given, const LoraLayer& layer,
                                    const LoraCut& cut) {
  const MoeShape& shape = layer.shape;
  if (const auto fine = check_given(given, shape); !fine) return fine.why();
  const Result<Range> intermediate = share_of(layer, cut.slice.tensor_parallel, {});
  if (!intermediate) return intermediate.why();
  Result<std::vector<std::uint64_t>> experts =
      local_experts(shape.experts, cut.slice.expert_parallel, cut.slice.placement);
  if (!experts) return experts.why();
  LoraAdapter result;
  result.experts_ = *std::move(experts);
  result.pairs_.resize(result.experts_.size());
  const auto read = [&](const StackedFactor& from, std::string_view name, const FactorPlace& place,
                        const FactorPart& part) -> Result<LoraMatrix> {
    std::vector<float>& numbers =
        result.numbers_.emplace_back(part.rows.size() * part.columns.size());
    const auto wrong = decode_factor(from.bytes.data(), from.dtype, place, part, numbers);
    if (wrong)
      return invalid("adapter.not_finite",
                     "a number of the adapter is not finite once it is scaled")
          .at(name)
          .expects("finite numbers", fmt::format("NaN or infinity at element {}", *wrong));
    return LoraMatrix{numbers.data(), part.rows.size(), part.columns.size()};
  };
  for (const auto& [which, source] : sources_of(given, shape)) {
    const StackedPair& pair = *source.pair;
    const auto a_experts = experts_in(pair.a, fmt::format("{}.lora_A", source.name), shape.experts,
                                      given.rank * source.inputs);
    if (!a_experts) return a_experts.why();
    const auto b_experts = experts_in(pair.b, fmt::format("{}.lora_B", source.name), shape.experts,
                                      source.outputs * given.rank);
    if (!b_experts) return b_experts.why();
    LoraPair last;
    for (std::size_t i = 0; i < result.experts_.size(); ++i) {
      const std::uint64_t of_a = *a_experts == 1 ? 0 : result.experts_[i];
      const std::uint64_t of_b = *b_experts == 1 ? 0 : result.experts_[i];
      const LowRankPlace place{.a = {.rows = given.rank,
                                     .columns = source.inputs,
                                     .first = of_a * given.rank * source.inputs,
                                     .row_step = source.inputs,
                                     .column_step = 1},
                               .b = {.rows = source.rows,
                                     .columns = given.rank,
                                     .first = (of_b * source.outputs + source.first) * given.rank,
                                     .row_step = source.step * given.rank,
                                     .column_step = 1},
                               .scale = given.scale};
      const Result<FactorCuts> cuts = cuts_of(cut, *intermediate, which, place);
      if (!cuts) return cuts.why();
      if (which == Projection::up && source.pair == &given.w13 && shape.gated()) {
        last.a = result.pairs_[i][static_cast<std::size_t>(Projection::gate)].a;  // in common
      } else if (last.a.data == nullptr || *a_experts != 1) {
        const auto matrix = read(pair.a, source.name, place.a, cuts->a);
        if (!matrix) return matrix.why();
        last.a = *matrix;
      }
      if (last.b.data == nullptr || *b_experts != 1) {
        const auto matrix = read(pair.b, source.name, place.b, cuts->b);
        if (!matrix) return matrix.why();
        last.b = *matrix;
      }
      result.pairs_[i][static_cast<std::size_t>(which)] = last;
    }
  }
  return result;
}

std::uint64_t LoraAdapter::bytes() const {
  std::uint64_t total = 0;
  for (const std::vector<float>& one : numbers_) total += one.size() * sizeof(float);
  return total;
}

}  // namespace fp4moe::checkpoint
