// Everything a selection may look at. A plain value: nothing else is read while deciding.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "fp4moe/oracle/parallel.hpp"
#include "fp4moe/oracle/words.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/platform/environment.hpp"

namespace fp4moe::oracle {

// The layer as one rank holds it; the defaults are gpt-oss-20b's.
struct Layer {
  std::uint64_t num_experts = 32;  // all of them, redundant ones included
  std::uint64_t num_local_experts = 32;
  std::uint64_t experts_per_token = 4;
  std::uint64_t hidden = 2880;
  std::uint64_t intermediate = 2880;  // of one rank, not rounded yet
  Activation activation = Activation::swigluoai;
  bool gated = true;  // false: up only
  ScalarType in_dtype = ScalarType::bfloat16;
  ScalarType router_logits_dtype = ScalarType::bfloat16;
  Routing routing = Routing::renormalize;
  std::string backend = "auto";  // the explicit request
  bool lora = false;
  bool has_bias = false;
  bool disable_inplace = true;
  bool shared_experts = false;
  std::uint64_t max_num_tokens = 256;
  // How the checkpoint wants activations quantized, and what the user wants instead.
  ActivationKey activation_key = ActivationKey::none;
  std::optional<ActivationKey> activation_override{};
  std::optional<double> swiglu_limit{};
  std::optional<double> swiglu_alpha{}, swiglu_beta{};    // absent: the activation's own
  std::optional<double> situ_beta{}, situ_linear_beta{};  // absent: the model says nothing
  bool hash_routing = false;           // routes come from a table of token numbers
  bool decomposed = false;             // routes are changed between routing and experts
  bool skip_final_all_reduce = false;  // the model sums over ranks itself
  bool dual_batch_overlap = false;
  bool weight_transfer = false;  // weights are replaced at run time
  Parallel parallel{};
};

struct Request {
  platform::Device device{};
  platform::Environment environment{};
  Layer layer{};
};

}  // namespace fp4moe::oracle
