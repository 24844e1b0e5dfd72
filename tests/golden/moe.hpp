// Golden data of MoE layers ("fp4moe-golden-moe/1"): what happens between router logits and output.
//
//   {routing: [{name, method, num_tokens, num_experts, top_k, logits, bias?, params, topk_ids,
//               topk_weights}],
//    auxiliary: [{name, kind, ...}], layers: [...]}
//
// Ids are compared exactly, on the fast path and on the slow one; weights, which are float64 in the
// file and float32 here, to 2e-6.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/moe/experts.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

Result<Done> run_moe(const Json& document, Report& report);
// Layers by another engine than the reference, within what moe_layers.cpp allows it.
Result<Done> run_moe_by(const Json& document, const moe::Engine& engine, Report& report);

// One case of the section `routing`, and of `auxiliary`: expert maps, block alignment, EPLB, GGUF
// blocks, quantizers of activations.
Outcome check_moe_routing(const Json& item);
Outcome check_moe_auxiliary(const Json& item);

}  // namespace fp4moe::golden
