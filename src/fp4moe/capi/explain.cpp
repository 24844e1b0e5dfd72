// fp4moe_explain: the request as a JSON object, its answer as another.
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::capi {
namespace {

using runtime::SelectionOptions;
using runtime::SelectionRequest;

constexpr std::uint64_t kLargestSplit = 1u << 16;

// A key of the request: one of the members is set.
struct RequestKey {
  std::string_view name;
  std::string SelectionOptions::*text = nullptr;
  std::uint64_t SelectionOptions::*count = nullptr;
  bool SelectionOptions::*flag = nullptr;
};
constexpr RequestKey kRequestKeys[] = {
    {.name = "device", .text = &SelectionOptions::device},
    {.name = "platform", .text = &SelectionOptions::platform},
    {.name = "capability", .text = &SelectionOptions::capability},
    {.name = "gfx", .text = &SelectionOptions::gfx},
    {.name = "policy", .text = &SelectionOptions::policy},
    {.name = "vllm", .text = &SelectionOptions::vllm},
    {.name = "mode", .text = &SelectionOptions::mode},
    {.name = "format", .text = &SelectionOptions::format},
    {.name = "model", .text = &SelectionOptions::model},
    {.name = "config", .text = &SelectionOptions::config},
    {.name = "all2all", .text = &SelectionOptions::all2all},
    {.name = "tp", .count = &SelectionOptions::tp},
    {.name = "pcp", .count = &SelectionOptions::pcp},
    {.name = "dp", .count = &SelectionOptions::dp},
    {.name = "sp", .count = &SelectionOptions::sp},
    {.name = "ep", .flag = &SelectionOptions::expert_parallel},
    {.name = "eplb", .flag = &SelectionOptions::eplb},
    {.name = "lib"},
    {.name = "env"},
    {.name = "layer"},
};

Error wrong_value(std::string_view key, std::string_view expected, const Json& value) {
  return usage("request.value", fmt::format("invalid value of \"{}\" in the request", key))
      .expects(expected, printable(value.dump()));
}

Result<Done> set_scalar(const RequestKey& key, const Json& value, SelectionOptions& options) {
  if (key.text != nullptr) {
    if (!value.is_string()) return wrong_value(key.name, "a text", value);
    options.*key.text = value.string();
  } else if (key.count != nullptr) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() == 0 ||
        value.get<std::uint64_t>() > kLargestSplit)
      return wrong_value(key.name, fmt::format("a whole number, 1 to {}", kLargestSplit), value);
    options.*key.count = value.get<std::uint64_t>();
  } else {
    if (!value.is_boolean()) return wrong_value(key.name, "true or false", value);
    options.*key.flag = value.get<bool>();
  }
  return Done{};
}

Result<Done> set_libraries(const Json& value, SelectionOptions& options) {
  if (!value.is_array()) return wrong_value("lib", "an array of names", value);
  for (const Json& name : value) {
    if (!name.is_string()) return wrong_value("lib", "an array of names", value);
    options.libraries.push_back(name.string());
  }
  return Done{};
}

Result<Done> set_variables(const Json& value, SelectionOptions& options) {
  if (!value.is_object()) return wrong_value("env", "an object of texts", value);
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) return wrong_value("env", "an object of texts", value);
    options.variables.push_back(fmt::format("{}={}", name, text.string()));
  }
  return Done{};
}

Result<Done> set_key(std::string_view name, const Json& value, SelectionOptions& options) {
  if (value.is_null()) return Done{};
  if (name == "lib") return set_libraries(value, options);
  if (name == "env") return set_variables(value, options);
  if (name == "layer") {
    options.layer = value;
    return Done{};
  }
  std::vector<std::string_view> names;
  for (const RequestKey& key : kRequestKeys) {
    if (key.name == name) return set_scalar(key, value, options);
    names.push_back(key.name);
  }
  const std::string_view near = nearest(name, names);
  return usage("request.key", fmt::format("a request has no \"{}\"", printable(name)))
      .expects(fmt::format("{}", fmt::join(names, ", ")), printable(name))
      .try_this(near.empty() ? "" : fmt::format("did you mean {}?", near));
}

Result<SelectionOptions> parse_request(const char* request) {
  SelectionOptions options{.policy = ""};
  if (request == nullptr) return options;
  const Result<Json> parsed = parse_json(request);
  if (!parsed)
    return usage(parsed.why().id, parsed.why().message)
        .expects("a JSON object", parsed.why().found);
  if (!parsed->is_object())
    return usage("request.object", "a request is a JSON object")
        .expects("an object", parsed->type_name());
  for (const auto& [name, value] : parsed->items())
    if (const auto set = set_key(name, value, options); !set) return set.why();
  return options;
}

Result<Done> explain(const char* request, char** record) {
  if (const auto fine = clear(record, "the place for the record"); !fine) return fine.why();
  const Result<SelectionOptions> options = parse_request(request);
  if (!options) return options.why();
  Result<SelectionRequest> resolved = runtime::resolve(*options);
  if (!resolved) return resolved.why();
  const runtime::Answer result = runtime::answer(*std::move(resolved));
  log_all(FP4MOE_LOG_WARNING, result.record.warnings);
  log_all(FP4MOE_LOG_NOTE, result.request.notes);
  Json whole{{"schema_version", 1}};
  whole.update(runtime::to_json(result));
  if (const auto given = give(whole, record); !given) return given.why();
  if (result.is_served()) return Done{};
  const std::string& words = result.record.selection.message;
  return error(ErrorCode::no_backend, "choice.backend", words.empty() ? refusal(result) : words);
}

}  // namespace
}  // namespace fp4moe::capi

extern "C" fp4moe_status fp4moe_explain(const char* request, char** record) {
  return fp4moe::capi::guarded([&] { return fp4moe::capi::explain(request, record); });
}
