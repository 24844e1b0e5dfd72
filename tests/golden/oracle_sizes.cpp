// The oracle's cases about what follows from a choice: rounded sizes, parallel layouts, and the
// class that carries tokens between ranks.
#include <limits>
#include <string>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/oracle/vllm/assembly.hpp"
#include "golden/fields.hpp"
#include "golden/oracle_cases.hpp"
#include "golden/oracle_fields.hpp"

namespace fp4moe::golden {
namespace {

Outcome differs(std::string_view what, std::string_view expected, std::string_view found) {
  return std::optional<Mismatch>({std::string(what), std::string(expected), std::string(found)});
}

// The reference's error against ours: exception and text, byte for byte.
Outcome check_error(const Json& expect, const Error& why) {
  const auto type = optional_string_field(expect, "error_type");
  if (!type) return type.why();
  if (!*type) return differs("an error came instead of a result", expect.dump(), text(why));
  const std::string_view found = oracle::reference_error(why);
  if (**type != found) return differs("the kind of error differs", **type, found);
  const auto message = optional_string_field(expect, "message");
  if (!message) return message.why();
  if (*message && **message != why.message)
    return differs("the error's text differs", **message, why.message);
  return kAgrees;
}

Result<const oracle::Backend*> backend_field(const Json& item) {
  const auto version = string_field(item, "version");
  if (!version) return version.why();
  const auto name = string_field(item, "backend");
  if (!name) return name.why();
  const auto format = optional_string_field(item, "format");
  if (!format) return format.why();
  const auto asked = formats::weight_format_from_name(format->value_or("mxfp4"));
  if (!asked) return malformed("format", "mxfp4 or nvfp4", "\"" + printable(**format) + "\"");
  const oracle::Policy* policy = backends::find_policy(*version, *asked);
  if (policy == nullptr)
    return malformed("version", fmt::format("a policy for {}", formats::name(*asked)),
                     "\"" + printable(*version) + "\"");
  // The reference prints its "no backend" in two ways.
  const oracle::Backend* backend =
      oracle::find_backend(*policy, *name == "NONE" ? "None" : std::string_view(*name));
  if (backend == nullptr)
    return malformed("backend", fmt::format("a backend of {}", policy->name),
                     "\"" + printable(*name) + "\"");
  return backend;
}

struct SizeCase {
  const oracle::Backend* backend = nullptr;
  platform::Device device{};
  std::optional<oracle::Activation> activation{};
  oracle::Sizes sizes{};
  const Json* expect = nullptr;
};

Result<SizeCase> size_case(const Json& item) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const auto backend = backend_field(item);
  if (!backend) return backend.why();
  const auto platform = object_field(item, "platform");
  if (!platform) return platform.why();
  const auto device = device_field(**platform);
  if (!device) return device.why();
  const auto hidden = number_field(item, "hidden", kMax);
  if (!hidden) return hidden.why();
  const auto intermediate = number_field(item, "intermediate", kMax);
  if (!intermediate) return intermediate.why();
  const auto expect = object_field(item, "expect");
  if (!expect) return expect.why();
  const auto activation = optional_string_field(item, "activation");
  if (!activation) return activation.why();
  SizeCase result{*backend, *device, {}, {*hidden, *intermediate}, *expect};
  if (*activation) {
    result.activation = oracle::activation_from_name(**activation);
    if (!result.activation)
      return malformed("activation", "a known activation", "\"" + printable(**activation) + "\"");
  }
  return result;
}

Outcome compare(const Json& expect, const Result<oracle::Sizes>& sizes) {
  if (!sizes) return check_error(expect, sizes.why());
  if (expect.contains("error_type"))
    return differs("no error came", expect.dump(),
                   fmt::format("hidden {}, intermediate {}", sizes->hidden, sizes->intermediate));
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const auto hidden = number_field(expect, "hidden", kMax);
  if (!hidden) return hidden.why();
  const auto intermediate = number_field(expect, "intermediate", kMax);
  if (!intermediate) return intermediate.why();
  if (*hidden != sizes->hidden)
    return differs("the hidden size differs", std::to_string(*hidden),
                   std::to_string(sizes->hidden));
  if (*intermediate != sizes->intermediate)
    return differs("the intermediate size differs", std::to_string(*intermediate),
                   std::to_string(sizes->intermediate));
  return kAgrees;
}

// Every stored field and derived property by the reference's name.
Json described(const oracle::Parallel& parallel, oracle::PolicyDate policy_date) {
  Json result{{"tp_size", parallel.tp_size},
              {"tp_rank", parallel.tp_rank},
              {"pcp_size", parallel.pcp_size},
              {"pcp_rank", parallel.pcp_rank},
              {"dp_size", parallel.dp_size},
              {"dp_rank", parallel.dp_rank},
              {"ep_size", parallel.ep_size},
              {"ep_rank", parallel.ep_rank},
              {"sp_size", parallel.sp_size},
              {"use_ep", parallel.use_ep},
              {"all2all_backend", parallel.all2all_backend},
              {"enable_eplb", parallel.enable_eplb}};
  for (const oracle::Property& property : oracle::derived_properties(parallel, policy_date))
    result[std::string(property.name)] = property.value;
  result["repr"] = oracle::printed(parallel, policy_date);
  return result;
}

}  // namespace

Outcome check_round(const Json& item) {
  const auto result = size_case(item);
  if (!result) return result.why();
  return compare(*result->expect, oracle::round_sizes(*result->backend, result->device,
                                                      result->activation, result->sizes));
}

Outcome check_layer_size(const Json& item) {
  const auto result = size_case(item);
  if (!result) return result.why();
  const auto policy_date = policy_date_field(item);
  if (!policy_date) return policy_date.why();
  const auto object = object_field(item, "parallel");
  if (!object) return object.why();
  const auto parallel = parallel_field(**object);
  if (!parallel) return parallel.why();
  const auto dtype = string_field(item, "act_dtype");
  if (!dtype) return dtype.why();
  const auto type = oracle::scalar_from_name(*dtype);
  if (!type)
    return malformed("act_dtype", fmt::format("one of {}", fmt::join(oracle::kScalarNames, ", ")),
                     "\"" + printable(*dtype) + "\"");
  return compare(*result->expect,
                 oracle::layer_sizes(*result->backend, result->device, result->activation,
                                     *parallel, *policy_date, *type, result->sizes));
}

Outcome check_parallel(const Json& item) {
  const auto policy_date = policy_date_field(item);
  if (!policy_date) return policy_date.why();
  const auto input = object_field(item, "input");
  if (!input) return input.why();
  const auto deployment = deployment_field(**input);
  if (!deployment) return deployment.why();
  const auto expect = object_field(item, "expect");
  if (!expect) return expect.why();
  if ((*expect)->empty()) return malformed("expect", "at least one field", "none");
  const Json found = described(oracle::derive(*deployment), *policy_date);
  for (const auto& [key, value] : (*expect)->items()) {
    const auto ours = found.find(key);
    if (ours == found.end())
      return differs(key + " is no field of this version", value.dump(), "none");
    if (*ours != value) return differs(key + " differs", value.dump(), ours->dump());
  }
  return kAgrees;
}

Outcome check_prepare_finalize(const Json& item) {
  const auto policy_date = policy_date_field(item);
  if (!policy_date) return policy_date.why();
  const auto object = object_field(item, "parallel");
  if (!object) return object.why();
  const auto parallel = parallel_field(**object);
  if (!parallel) return parallel.why();
  const auto monolithic = bool_field(item, "monolithic");
  if (!monolithic) return monolithic.why();
  const auto quantized = optional_string_field(item, "activation_quant_dtype");
  if (!quantized) return quantized.why();
  const auto key = oracle::activation_key_from_name(quantized->value_or("none"));
  if (!key)
    return malformed("activation_quant_dtype", "null or a known form of activations",
                     "\"" + printable(**quantized) + "\"");
  const auto expect = object_field(item, "expect");
  if (!expect) return expect.why();
  oracle::PrepareRequest request{.parallel = *parallel,
                                 .policy_date = *policy_date,
                                 .monolithic = *monolithic,
                                 .activations = *key,
                                 .hidden = 2880};
  if (item.contains("hidden")) {
    const auto hidden = number_field(item, "hidden", std::numeric_limits<std::uint64_t>::max());
    if (!hidden) return hidden.why();
    request.hidden = *hidden;
  }

  const auto result = oracle::prepare_finalize(request);
  const auto name = optional_string_field(**expect, "class");
  if (!name) return name.why();
  const bool wants_nothing = (*expect)->contains("class") && !*name;
  if (!result && wants_nothing && result.why().id == "assembly.exchange") return kAgrees;
  if (!result) return check_error(**expect, result.why());
  if (!*name) return differs("a class came", (*expect)->dump(), result->name);
  if (**name != result->name) return differs("the class differs", **name, result->name);
  return kAgrees;
}

}  // namespace fp4moe::golden
