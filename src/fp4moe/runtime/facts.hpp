// The facts of a model that running a layer needs beside the weights: the words a backend is chosen
// with, the activation, the router. From a checkpoint, from a converted folder, or as a caller
// describes it (layer_description.hpp).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/moe/routing/router.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::convert {
class ConvertedFolder;
}

namespace fp4moe::runtime {

// Finds a tensor of the model by its whole name; empty when there is none.
using FindTensor = std::function<std::optional<tensor::TensorView>(std::string_view name)>;
// The names of the model's tensors that begin with `prefix`.
using ListTensors = std::function<std::vector<std::string>(std::string_view prefix)>;

struct LayerFacts {
  plan::Model model{};          // of this layer alone, without parallelism
  std::string prefix{};         // "model.layers.3.mlp."
  std::string router_module{};  // after the prefix: "gate"
  moe::routing::RouterOptions router{};
  bool has_router_weights = false;
  std::vector<std::string> router_tensors{};       // names of the weight and the biases
  std::string unread_router_tensor{};              // one that is not applied; empty: none
  bool weight_on_input = false;                    // router weights multiply x
  std::optional<double> alpha{}, beta{}, limit{};  // instead of the activation's
  std::uint64_t router_hidden = 0;                 // the width of what the router reads
  // Why experts cannot be chosen from logits: the model does it in a way that is not known here, or
  // by something else than logits. Chosen experts can be given all the same.
  std::optional<Error> no_routing{};
  std::vector<std::string> notes{};  // what was assumed
};

// Errors: facts.top_k (the configuration does not say how many experts a token has), facts.router (a
// correction bias of another shape or type), facts.activation (the experts' is not known).
Result<LayerFacts> layer_facts(const checkpoint::ModelConfig& config,
                               const checkpoint::MoeShape& shape, std::string_view prefix,
                               checkpoint::SplitRule rule, const FindTensor& find,
                               const ListTensors& list);
Result<LayerFacts> layer_facts(const checkpoint::Checkpoint& checkpoint, std::size_t number);

Result<LayerFacts> layer_facts(const convert::ConvertedFolder& folder, std::size_t number);

// Tensors beside the experts; what is found lives as long as the argument.
FindTensor finder(const checkpoint::Checkpoint& checkpoint);
FindTensor finder(const convert::ConvertedFolder& folder);
ListTensors lister(const checkpoint::Checkpoint& checkpoint);
ListTensors lister(const convert::ConvertedFolder& folder);

// The linear map from hidden states to logits.
struct RouterWeights {
  std::uint64_t experts = 0, hidden = 0;
  std::vector<float> weight{};  // [experts, hidden]
  std::vector<float> bias{};    // [experts], or none

  // logits[t][e] in float32, float64 inside. [T, experts]. Errors: interrupted.
  Result<std::vector<float>> logits(const moe::ConstRows& x) const;
};
// Errors: facts.router when the model has no such tensor, one of another shape, or one that is not
// applied.
Result<RouterWeights> load_router(const LayerFacts& facts, const FindTensor& find);

}  // namespace fp4moe::runtime
