// The cases about selection.
#include <algorithm>
#include <string>
#include <vector>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/layer_fields.hpp"
#include "fp4moe/oracle/select.hpp"
#include "golden/fields.hpp"
#include "golden/oracle_cases.hpp"
#include "golden/oracle_fields.hpp"

namespace fp4moe::golden {
namespace {

using oracle::Layer;
using oracle::Mode;
using oracle::Policy;
using oracle::Request;
using oracle::Selection;
using oracle::Verdict;

// What a case must say, so that a misspelled key does not pass as a default.
constexpr std::string_view kRequired[] = {
    "num_experts", "num_local_experts", "experts_per_token", "hidden_dim",
    "activation",  "in_dtype",          "routing_method",    "intermediate_size_per_partition",
    "moe_backend", "is_lora_enabled",   "has_bias",          "is_act_and_mul",
    "parallel",
};

// The entry for models other than gpt-oss, which is a policy of its own here.
constexpr std::string_view kDeepseekV4 = "deepseek_v4";

// Fields that the oracle does not read may stand in a case.
Result<Layer> layer_field(const Json& config) {
  for (const std::string_view key : kRequired)
    if (!config.contains(key)) return malformed(key, "the field", "none");
  Json read = Json::object();
  read["parallel"] = config.at("parallel");
  for (const oracle::LayerField& field : oracle::layer_fields())
    if (config.contains(field.key))
      read[std::string(field.key)] = config.at(std::string(field.key));
  if (!config.contains("router_logits_dtype")) read["router_logits_dtype"] = config.at("in_dtype");
  Layer layer;
  if (const Result<Done> set = oracle::set_fields(layer, read); !set)
    return malformed(set.why().tensor, set.why().expected, set.why().found);
  return layer;
}

Result<platform::Environment> environment_field(const Json& item) {
  const Result<const Json*> object = object_field(item, "env");
  if (!object) return object.why();
  platform::Environment environment;
  for (const auto& [key, value] : (*object)->items()) {
    const platform::VariableRow* row = platform::find_variable(key);
    if (row == nullptr) return malformed("env", "a variable that a policy reads", key);
    if (!value.is_string()) return malformed(key, "a string", value.type_name());
    environment.set(row->variable, value.string());
  }
  return environment;
}

Result<Request> request_field(const Json& item) {
  const Result<const Json*> platform = object_field(item, "platform");
  if (!platform) return platform.why();
  const Result<platform::Device> device = device_field(**platform);
  if (!device) return device.why();
  const Result<platform::Environment> environment = environment_field(item);
  if (!environment) return environment.why();
  const Result<const Json*> config = object_field(item, "config");
  if (!config) return config.why();
  const Result<Layer> layer = layer_field(**config);
  if (!layer) return layer.why();
  return Request{*device, *environment, *layer};
}

Result<const Policy*> policy_field(const Json& item) {
  const Result<std::string> format = string_field(item, "format");
  if (!format) return format.why();
  const auto weights = formats::weight_format_from_name(*format);
  if (!weights) return malformed("format", "mxfp4 or nvfp4", "\"" + *format + "\"");
  const Result<std::string> version = string_field(item, "version");
  if (!version) return version.why();
  const Result<std::optional<std::string>> entry = optional_string_field(item, "entry");
  if (!entry) return entry.why();
  if (*entry && **entry != kDeepseekV4)
    return malformed("entry", kDeepseekV4, "\"" + **entry + "\"");
  const Policy* policy = backends::find_policy(*version + (*entry ? "-deepseek-v4" : ""), *weights);
  if (policy == nullptr)
    return malformed("version", "a policy for " + *format, "\"" + *version + "\"");
  return policy;
}

// What was decided, in the words of the case files.
Json result_of(const Selection& selection) {
  Json created;
  if (selection.outcome == oracle::Outcome::error) {
    created["outcome"] = "error";
    created["error_type"] = oracle::name(selection.error);
    created["message"] = selection.message;
    return created;
  }
  created["outcome"] = selection.outcome == oracle::Outcome::none ? "none" : "selected";
  created["backend"] = selection.backend == nullptr ? "None" : selection.backend->name;
  const oracle::ExpertsClass* experts = selection.experts;
  const bool is_class = experts != nullptr && !experts->name.empty();
  created["experts"] = is_class ? Json(experts->name) : Json();
  created["monolithic"] = is_class ? Json(experts->kind == oracle::Kind::monolithic) : Json();
  created["activation_format"] = is_class ? Json(oracle::name(experts->format)) : Json();
  return created;
}

Json trace_of(const Policy& policy, const Request& request, const Selection& selection) {
  Json created = Json::array();
  for (const Verdict& verdict : selection.evaluated) {
    const bool is_class = !verdict.experts->name.empty();
    created.push_back(
        {{"backend", verdict.backend->name},
         {"experts", is_class ? Json(verdict.experts->name) : Json()},
         {"reason",
          verdict.accepted() ? Json() : Json(oracle::reference_reason(policy, request, verdict))}});
  }
  return created;
}

// The first key of `expected` that `found` does not have with the same value.
std::optional<Mismatch> compare(std::string_view where, const Json& expected, const Json& found) {
  for (const auto& [key, value] : expected.items()) {
    const auto ours = found.find(key);
    if (ours != found.end() && *ours == value) continue;
    return Mismatch{std::string(where) + "." + key + " differs", value.dump(),
                    ours == found.end() ? "nothing" : ours->dump()};
  }
  return std::nullopt;
}

std::optional<Mismatch> compare_lists(std::string_view where, const Json& expected,
                                      const Json& found) {
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const Json theirs = i < expected.size() ? expected[i] : Json("nothing");
    const Json ours = i < found.size() ? found[i] : Json("nothing");
    if (theirs != ours)
      return Mismatch{std::string(where) + "[" + std::to_string(i) + "] differs", theirs.dump(),
                      ours.dump()};
  }
  return std::nullopt;
}

const oracle::ExpertsClass* find_experts(const oracle::Backend& backend, std::string_view name) {
  for (const auto list : {backend.experts, backend.lora_experts})
    for (const oracle::ExpertsClass* experts : list)
      if (experts->name == name) return experts;
  return nullptr;
}

Json validity(const std::string& refusal) {
  if (refusal.empty()) return {{"outcome", "accepted"}};
  return {{"outcome", "error"}, {"error_type", "ValueError"}, {"message", refusal}};
}

}  // namespace

golden::Outcome check_select(const Json& item) {
  const Result<const Policy*> policy = policy_field(item);
  if (!policy) return policy.why();
  const Result<Request> request = request_field(item);
  if (!request) return request.why();
  const Result<const Json*> expect = object_field(item, "expect");
  if (!expect) return expect.why();

  Json result = **expect;
  const Json trace = result.contains("evaluated") ? result["evaluated"] : Json();
  const Json log = result.contains("log_info") ? result["log_info"] : Json();
  // A case without warnings says nothing about them, in files that know the word.
  const Json warned = result.contains("log_warning") ? result["log_warning"] : Json::array();
  result.erase("evaluated");
  result.erase("log_info");
  result.erase("log_warning");

  const Selection compat = oracle::select(**policy, Mode::compat, *request);
  if (auto differs = compare("compat", result, result_of(compat))) return differs;
  if (trace.is_array())
    if (auto differs =
            compare_lists("compat.evaluated", trace, trace_of(**policy, *request, compat)))
      return differs;
  if (log.is_array())
    if (auto differs = compare_lists("compat.log_info", log, Json(compat.log))) return differs;
  if (auto differs = compare_lists("compat.log_warning", warned, Json(compat.warned)))
    return differs;

  const Selection strict = oracle::select(**policy, Mode::strict, *request);
  const auto repaired = item.find("expect_strict");
  return compare("strict", repaired == item.end() ? result : *repaired, result_of(strict));
}

golden::Outcome check_validate(const Json& item) {
  const Result<const Policy*> policy = policy_field(item);
  if (!policy) return policy.why();
  const Result<Request> request = request_field(item);
  if (!request) return request.why();
  const Result<const Json*> expect = object_field(item, "expect");
  if (!expect) return expect.why();
  const Result<std::string> backend_name = string_field(item, "backend");
  if (!backend_name) return backend_name.why();
  const Result<std::string> class_name = string_field(item, "experts");
  if (!class_name) return class_name.why();
  const oracle::Backend* backend = oracle::find_backend(**policy, *backend_name);
  if (backend == nullptr)
    return malformed("backend", "a backend of the policy", "\"" + *backend_name + "\"");
  const oracle::ExpertsClass* experts = find_experts(*backend, *class_name);
  if (experts == nullptr)
    return malformed("experts", "a class of " + *backend_name, "\"" + *class_name + "\"");

  const auto found = [&](Mode mode) {
    return validity(oracle::validate(**policy, mode, *request, *backend, *experts));
  };
  if (auto differs = compare("compat", **expect, found(Mode::compat))) return differs;
  const auto repaired = item.find("expect_strict");
  return repaired == item.end() ? kAgrees : compare("strict", *repaired, found(Mode::strict));
}

}  // namespace fp4moe::golden
