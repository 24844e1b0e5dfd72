// The middle of a layer: the experts of one rank, their weights laid out for an engine, and what
// they make of prepared tokens. Everything above (routing, exchanges, kernels, layers) knows
// engines only by these words.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/lora.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/tensor/shape.hpp"

namespace fp4moe::moe {

// The place where an engine reads weights: in tiles or tensors of its layout, packed into memory, or mapped:
// row by row where the checkpoint's rows lie.
enum class WeightsHome : std::uint8_t { packed, mapped };

// The problem, fixed when experts are made.
struct ExpertsProblem {
  checkpoint::MoeShape shape{};  // of this rank: `experts` are the local ones
  Activation activation = Activation::swigluoai;
  ActivationParams params{};
  Numerics numerics{};
  ActivationKey quantizes = ActivationKey::none;  // x, and the activation's output
  // NVFP4: G of x and of the activation's output; static FP8: their scales. One for all local
  // experts or one for each; empty where the key needs none.
  std::vector<float> input_scales{}, hidden_scales{};
};

// A rank's weights, in any memory. `visit` hands an expert's canonical view to `use`, from any
// thread; the view lives as long as the call.
using UseExpert = std::function<Result<Done>(const checkpoint::ExpertView&)>;
struct ExpertSource {
  checkpoint::MoeShape shape{};
  std::function<Result<Done>(std::size_t position, const UseExpert& use)> visit{};
  // Weights that lie in a layout already, for engines that read it: the tensors, [experts, ...], as
  // long as the source's owner lives.
  struct PackedTensor {
    std::string name{};  // "w13", "w13_scale", ...
    std::span<const std::byte> bytes{};
    tensor::Shape shape{};  // as stored
  };
  std::string layout{}, generation{};  // empty: in none
  std::vector<PackedTensor> packed{};
  // Kernels with one w13 have one global scale for it: the gate's, which `visit` then gives for the
  // ups, too.
  bool shares_global = false;
  // Views that `visit` passes to `use` stay as long as the source's owner lives.
  bool views_stay = false;
};

// One call. ids of `in` are global; `expert_map` gives the local position of each or -1, and
// without one ids are positions. Ids outside of either count as -1.
struct ExpertsCall {
  const Prepared& in;
  std::span<const std::int32_t> expert_map{};
  LoraView lora{};
  bool weight_on_input = false;  // already in x: no weight is applied
};

class Experts {
 public:
  virtual ~Experts() = default;
  virtual const ExpertsProblem& problem() const = 0;
  virtual std::string_view engine() const = 0;
  virtual std::string kernel() const = 0;  // what runs, human-readable
  // Fills `out`: [M, H] summed, [M * top_k, H] assignments without their weights, or for batched tokens
  // [experts * capacity, H]. Every element of `out` that may be read later is written. The result
  // depends on neither threads nor the other tokens of the call.
  virtual Result<Done> compute(const ExpertsCall& call, OutputForm form,
                               const MutableRows& out) = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const = 0;  // "reference", "cpu", "cuda"
  virtual Result<std::unique_ptr<Experts>> make(const ExpertsProblem& problem,
                                                const ExpertSource& source) const = 0;
};

// Shapes and scales that no engine can compute with. Errors: experts.activation (gated or not, in
// disagreement with the weights), experts.scales (missing, not finite or not positive),
// experts.blocks (sizes that are not whole blocks of the quantized activations).
Result<Done> check(const ExpertsProblem& problem);
// The same for a call: experts.format, experts.ids, experts.adapters, rows.*.
Result<Done> check(const ExpertsProblem& problem, const ExpertsCall& call, OutputForm form,
                   const MutableRows& out);

}  // namespace fp4moe::moe
