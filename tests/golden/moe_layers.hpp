// The section `layers` of golden data about MoE layers.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/moe/experts.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

// Each output of each layer is a case of its own: layers/NAME/MODE. `engine` null: the reference,
// which is also asked for its stages.
void run_moe_layers(const Json& layers, const moe::Engine* engine, Report& report);

}  // namespace fp4moe::golden
