#include "fp4moe/weights/lora_adapter.hpp"

#include <fmt/format.h>

namespace fp4moe::weights {
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

class LayerLoader {
 public:
  LayerLoader(const Adapter& adapter, const LoraCut& cut, Range intermediate)
      : adapter_(adapter), cut_(cut), intermediate_(intermediate) {}

  Result<FactorCuts> cuts(Projection which, const LowRankPlace& place) const {
    FactorCuts cuts{
        .a = {.rows = {0, place.rank()}, .columns = {0, place.a.columns}},
        .b = {.rows = {0, place.b.rows}, .columns = {0, place.rank()}, .scale = place.scale}};
    const Rank rank = cut_.slice.tensor_parallel;
    if (which == Projection::down) {
      cuts.a.columns = intermediate_;
      if (!cut_.fully_sharded) return cuts;
      const Result<Range> rows = even_share(place.b.rows, rank, "a hidden size");
      if (!rows) return rows.why();
      cuts.b.rows = *rows;
    } else {
      cuts.b.rows = intermediate_;
      if (!cut_.fully_sharded) return cuts;
      const Result<Range> rows = even_share(place.rank(), rank, "a rank");
      if (!rows) return rows.why();
      cuts.a.rows = *rows;
    }
    return cuts;
  }

  // Factors that experts, or gate and up, have in common are held once.
  Result<LoraMatrix> load(const FactorPlace& place, const FactorPart& part,
                          std::vector<std::vector<float>>& numbers) {
    for (const Held& held : last_)
      if (held.place == place && held.part.rows == part.rows && held.part.columns == part.columns &&
          held.part.scale == part.scale)
        return held.matrix;
    std::vector<float>& made = numbers.emplace_back(part.rows.size() * part.columns.size());
    if (Result<Done> done = read_factor(adapter_, place, part, made); !done) return done.why();
    const LoraMatrix matrix{made.data(), part.rows.size(), part.columns.size()};
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
  const LoraCut& cut_;
  Range intermediate_;
  std::array<Held, 12> last_{};  // two experts' worth: enough to see what repeats
  std::size_t next_ = 0;
};

}  // namespace

Result<LoraAdapter> LoraAdapter::load(const Adapter& adapter, std::size_t layer,
                                      const LoraCut& cut) {
  const AdapterTarget& target = adapter.targets()[layer];
  const Slice& slice = cut.slice;
  const Result<Range> intermediate = split_intermediate(
      target.shape.intermediate, block_size(target.shape.format), slice.tensor_parallel,
      target.is_gpt_oss ? SplitRule::ceil_blocks : SplitRule::equal);
  if (!intermediate) return intermediate.why();
  if (intermediate->size() == 0)
    return usage("slice.empty", "this rank holds no rows of the layer")
        .at(target.prefix)
        .expects("fewer tensor-parallel ranks",
                 fmt::format("{} of {}", slice.tensor_parallel.rank, slice.tensor_parallel.size));
  Result<std::vector<std::uint64_t>> experts =
      local_experts(target.shape.experts, slice.expert_parallel, slice.placement);
  if (!experts) return experts.why();
  LoraAdapter made;
  made.experts_ = *std::move(experts);
  made.pairs_.resize(made.experts_.size());
  LayerLoader loader(adapter, cut, *intermediate);
  for (std::size_t i = 0; i < made.experts_.size(); ++i)
    for (const Projection which : kAllProjections) {
      const LowRankPlace& place = adapter.place(layer, which, made.experts_[i]);
      if (place.empty()) continue;
      const Result<FactorCuts> cuts = loader.cuts(which, place);
      if (!cuts) return cuts.why();
      const Result<LoraMatrix> a = loader.load(place.a, cuts->a, made.numbers_);
      if (!a) return a.why();
      const Result<LoraMatrix> b = loader.load(place.b, cuts->b, made.numbers_);
      if (!b) return b.why();
      made.pairs_[i][static_cast<std::size_t>(which)] = {.a = *a, .b = *b};
    }
  return made;
}

std::uint64_t LoraAdapter::bytes() const {
  std::uint64_t total = 0;
  for (const std::vector<float>& one : numbers_) total += one.size() * sizeof(float);
  return total;
}

}  // namespace fp4moe::weights
