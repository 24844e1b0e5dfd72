// The plan as JSON: every number of plan.hpp by its name there.
#include "fp4moe/plan/plan.hpp"

namespace fp4moe::plan {
namespace {

Json to_json(const oracle::Sizes& sizes) {
  return {{"hidden", sizes.hidden}, {"intermediate", sizes.intermediate}};
}

Json to_json(const BackendPlan& plan) {
  Json json{{"backend", plan.backend->name}, {"chosen", plan.chosen}};
  json["refused"] = plan.refused.empty() ? Json() : Json(plan.refused);
  if (plan.impossible) {
    json["impossible"] = {{"id", plan.impossible->id},
                          {"message", plan.impossible->message},
                          {"expected", plan.impossible->expected},
                          {"found", plan.impossible->found},
                          {"remedy", plan.impossible->remedy},
                          {"nearest", plan.nearest}};
    return json;
  }
  json["layout"] = plan.backend->layout.empty() ? "as loaded" : plan.backend->layout;
  json["before"] = to_json(plan.before);
  json["after"] = to_json(plan.after);
  json["padding_percent"] = {{"hidden", plan.hidden_padding},
                             {"intermediate", plan.intermediate_padding}};
  json["buffers"] = Json::array();
  for (const oracle::Buffer& buffer : plan.buffers)
    json["buffers"].push_back({{"name", buffer.name},
                               {"dtype", buffer.dtype},
                               {"shape", buffer.shape},
                               {"bytes", buffer.bytes},
                               {"initial", buffer.initial}});
  json["bytes"] = {{"layer", plan.layer_bytes},
                   {"rank", plan.rank_bytes},
                   {"all_ranks", plan.all_ranks_bytes},
                   {"without_padding", plan.real_bytes}};
  json["work_ratio"] = plan.work;
  json["memory_ratio"] = plan.memory;
  json["transient_bytes"] = {{"one_expert", plan.expert_peak}, {"whole_layer", plan.layer_peak}};
  json["fits"] = plan.fits ? Json(*plan.fits) : Json();
  return json;
}

}  // namespace

Json to_json(const Plan& plan) {
  const checkpoint::MoeShape& shape = plan.model.shape;
  const oracle::Parallel& parallel = plan.split.parallel;
  Json json{{"model", plan.model.name},
            {"policy", plan.policy->name},
            {"mode", oracle::kModeNames[static_cast<std::size_t>(plan.mode)]},
            {"device", plan.device.name},
            {"device_bytes", plan.device.memory_bytes}};
  json["layer"] = {{"format", checkpoint::name(shape.format)},
                   {"experts", shape.experts},
                   {"hidden", shape.hidden},
                   {"intermediate", shape.intermediate},
                   {"gated", shape.gated()},
                   {"has_bias", shape.has_bias},
                   {"activation", oracle::name(plan.model.layer.activation)}};
  json["layers"] = plan.model.layers;
  json["split"] = {
      {"ranks", plan.split.ranks},
      {"tp", parallel.tp_size},
      {"ep", parallel.ep_size},
      {"dp", parallel.dp_size},
      {"all2all", parallel.all2all_backend},
      {"rule", plan.model.rule == checkpoint::SplitRule::equal ? "equal" : "ceil_blocks"},
      {"intermediate_divided", plan.split.divided},
      {"intermediate_most", plan.split.max_intermediate},
      {"intermediate_least", plan.split.min_intermediate},
      {"empty_ranks", plan.split.empty_ranks},
      {"experts_most", plan.split.max_experts},
      {"experts_least", plan.split.min_experts}};
  json["no_choice"] = plan.no_choice.empty() ? Json() : Json(plan.no_choice);
  json["nearest_miss"] = plan.nearest_miss.empty() ? Json() : Json(plan.nearest_miss);
  json["backends"] = Json::array();
  for (const BackendPlan& backend : plan.backends) json["backends"].push_back(to_json(backend));
  json["wire"] = Json::array();
  for (const WireRow& row : plan.wire)
    json["wire"].push_back({{"exchange", row.cost.exchange},
                            {"activations", oracle::name(row.cost.activations)},
                            {"used", row.used},
                            {"dispatch_bytes", row.cost.dispatch},
                            {"combine_bytes", row.cost.combine},
                            {"worst_dispatch_bytes", row.cost.dispatch_at_worst},
                            {"worst_combine_bytes", row.cost.combine_at_worst},
                            {"call_bytes", row.cost.call}});
  json["splits_that_fit"] = plan.that_fit;
  json["notes"] = Json::array();
  for (const std::string& note : plan.model.notes) json["notes"].push_back(note);
  for (const std::string& note : plan.split.notes) json["notes"].push_back(note);
  return json;
}

}  // namespace fp4moe::plan
