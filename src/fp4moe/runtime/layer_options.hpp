// How a layer is to be run: backend, engine, slice, exchange.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/exchange/table.hpp"
#include "fp4moe/moe/experts.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/runtime/engines.hpp"

namespace fp4moe::runtime {

// Experts that see every token: adds their output to `out`, which holds zeros.
using SharedExperts =
    std::function<Result<Done>(const moe::ConstRows& x, const moe::MutableRows& out)>;

// The divisors of quantized activations: of x, and of the activation's output.
struct InputScale {
  float input = 1.0f, hidden = 1.0f;
};

struct LayerOptions {
  BackendRequest backend_request{};
  EngineKind engine = EngineKind::automatic;
  // Packed into the backend's layout, in memory of the layer's own, or mapped: backend CPU reads the
  // rows of the checkpoint, or of the memory given, which then outlives the layer.
  moe::WeightsHome weights = moe::WeightsHome::packed;
  std::size_t threads = 0;             // 0: all this process may use
  std::shared_ptr<ThreadPool> pool{};  // instead: shared with others
  checkpoint::Slice slice{};
  // The ranks that hold the other slices; outlives the layer. None: outputs are this slice's part
  // of the sum. Exchange `local`: every rank has all tokens, outputs are summed over ranks.
  moe::exchange::Communicator* ranks = nullptr;
  moe::exchange::ExchangeKind exchange = moe::exchange::ExchangeKind::local;
  std::uint64_t max_tokens = 256;                    // per rank, for exchanges with batches
  std::optional<moe::NumericsKind> numerics{};       // instead of the backend's
  std::optional<oracle::ActivationKey> quantizes{};  // instead of the scheme's
  std::optional<InputScale> input_scale{};           // instead of the checkpoint's
  // Copies of experts beyond the first of each: the logical expert of every physical one, of all
  // ranks. Empty: none. Ids and logits stay logical; slice.placement must be linear.
  std::vector<std::int32_t> physical_experts{};
  std::uint64_t chunk = 0;  // tokens at once; 0: all
  SharedExperts shared{};
};

// The words for types that an engine quantizes activations to. "none": it does not.
struct ActivationsWord {
  std::string_view word{};
  oracle::ActivationKey key = oracle::ActivationKey::none;
};
inline constexpr ActivationsWord kActivationsWords[] = {
    {"none", oracle::ActivationKey::none},
    {"fp8", oracle::ActivationKey::fp8_static_tensor},
    {"fp8_token", oracle::ActivationKey::fp8_token},
    {"fp8_block", oracle::ActivationKey::fp8_block128},
    {"mxfp8", oracle::ActivationKey::mxfp8},
    {"mxfp4", oracle::ActivationKey::mxfp4},
    {"nvfp4", oracle::ActivationKey::nvfp4}};
// Errors: layer.activations.
Result<oracle::ActivationKey> activations_from_word(std::string_view word);

// The same choices in words, as the command line, C and Python say them. Weights are "auto" (packed),
// "packed" or "mapped"; "" is what the options say already.
struct OptionWords {
  std::string_view engine{}, weights{}, numerics{}, activations{}, exchange{};
};
// Errors: engine.unknown, layer.weights, numerics.unknown, layer.activations, exchange.name.
Result<Done> read_words(const OptionWords& words, LayerOptions& options);

}  // namespace fp4moe::runtime
