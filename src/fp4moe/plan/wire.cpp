#include "fp4moe/plan/wire.hpp"

#include "fp4moe/moe/exchange/table.hpp"

namespace fp4moe::plan {
namespace {

using moe::exchange::CostRequest;
using oracle::ActivationKey;

std::vector<ActivationKey> travelling_types(checkpoint::WeightFormat format) {
  if (format == checkpoint::WeightFormat::nvfp4)
    return {ActivationKey::none, ActivationKey::fp8_block128, ActivationKey::nvfp4};
  return {ActivationKey::none, ActivationKey::mxfp8, ActivationKey::mxfp4};
}

std::string_view used_exchange(const Split& split, oracle::PolicyDate policy_date) {
  const auto* row = moe::exchange::exchange_for(oracle::exchange(split.parallel, policy_date));
  if (row == nullptr) return "";
  return row->needs_ranks ? row->name : "all_reduce";
}

}  // namespace

std::vector<WireRow> plan_wire(const Model& model, const Split& split,
                               oracle::PolicyDate policy_date) {
  std::vector<WireRow> rows;
  if (split.ranks <= 1) return rows;
  CostRequest request{.ranks = split.ranks,
                      .experts = model.shape.experts,
                      .top_k = model.layer.experts_per_token,
                      .hidden = model.shape.hidden};
  const std::string_view used = used_exchange(split, policy_date);
  rows.push_back({cost_of("all_reduce", request), used == "all_reduce"});
  if (!split.parallel.use_ep) return rows;
  for (const moe::exchange::ExchangeRow& exchange : moe::exchange::all_exchanges()) {
    if (!exchange.needs_ranks) continue;
    for (const ActivationKey key : travelling_types(model.shape.format)) {
      request.activations = key;
      rows.push_back({cost_of(exchange.name, request), used == exchange.name});
    }
  }
  return rows;
}

}  // namespace fp4moe::plan
