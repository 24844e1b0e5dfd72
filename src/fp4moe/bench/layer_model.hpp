// Layers of a model in memory, ready to be called: of a checkpoint, or of a row of the table of
// models with random weights. All that a runtime::MoeLayer holds is here, but several engines or
// numerics share one copy of the packed weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/bench/layer_weights.hpp"
#include "fp4moe/moe/kernel.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/runtime/facts.hpp"
#include "fp4moe/runtime/packed_weights.hpp"

namespace fp4moe::bench {

// A word of --numerics, the numerics that the layer is asked for, and the bytes of an activation
// that meet each weight.
struct NumericsWord {
  std::string_view word;
  std::string_view numerics;
  unsigned limbs;
};
inline constexpr NumericsWord kNumericsWords[] = {{"exact", "native", 2}, {"fast", "fast", 1}};
// Errors: bench.numerics.
Result<const NumericsWord*> require_numerics_word(std::string_view word);

struct LayerModelOptions {
  std::string model = "gpt-oss-20b";  // a row of the table, or a path
  std::string format{};               // empty: the model's
  platform::Device device{};
  std::uint64_t layers = 0;  // at most; 0: as `keep` says
  std::uint64_t keep = 0;    // bytes of weights that calls should meet before any comes again
  std::uint64_t memory = 0;  // bytes that weights may take; 0: any
  bool packs = true;         // false: experts stay as they are, for engines that pack them
  std::size_t threads = 1;
  std::uint64_t seed = 1;
  // For tests: a small model of the same kind. 0: as the table has it.
  std::uint64_t experts = 0, hidden = 0, intermediate = 0;
};

class LayerModel {
 public:
  // Errors: models.unknown, bench.format (a checkpoint in another format), bench.memory (one layer
  // does not fit), those of checkpoints, choice and packing.
  static Result<LayerModel> open(const LayerModelOptions& options);

  const std::string& name() const { return name_; }
  const checkpoint::MoeShape& shape() const { return facts_.model.shape; }
  const moe::routing::RouterOptions& router() const { return facts_.router; }
  std::size_t layers() const { return layers_; }
  moe::ExpertSource source(std::size_t layer) const;
  moe::ExpertsProblem problem(const moe::Numerics& numerics) const;

  // Weights of an expert in elements, and in bytes as the formats have them: 4 bits and its share
  // of a block scale.
  std::uint64_t expert_weights() const;
  double expert_bytes() const;

  // From router logits to output, for each layer. Valid as long as this object.
  struct Callable {
    std::string engine{}, kernel{};
    std::vector<moe::MonolithicKernel> layers{};
  };
  // Errors: engine.unknown, numerics.unknown, those of the engine.
  Result<Callable> make(std::string_view engine, std::string_view numerics,
                        std::shared_ptr<ThreadPool> pool) const;

 private:
  LayerModel() = default;
  Result<Done> read_table(const LayerModelOptions& options);
  Result<Done> read_checkpoint(const LayerModelOptions& options);
  Result<Done> choose(const LayerModelOptions& options);
  Result<std::uint64_t> count_layers(const LayerModelOptions& options) const;
  Result<Done> pack_random(const LayerModelOptions& options);
  Result<Done> pack_checkpoint(const LayerModelOptions& options);

  std::string name_{};
  runtime::LayerFacts facts_{};
  runtime::Choice choice_{};
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_{};
  std::vector<std::unique_ptr<runtime::PackedWeights>> packed_{};
  std::size_t layers_ = 0;
  // If nothing is packed: experts as they are.
  std::unique_ptr<RandomExperts> random_{};
  std::vector<std::unique_ptr<convert::LayerJob>> jobs_{};
};

}  // namespace fp4moe::bench
