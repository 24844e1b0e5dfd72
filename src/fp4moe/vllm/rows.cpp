#include "fp4moe/vllm/rows.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::vllm {

Error no_such_backend(std::string_view value, std::vector<std::string_view> known,
                      std::string_view whose) {
  const std::string_view near = nearest(value, known);
  return usage("vllm.backend", fmt::format("{} has no such backend", whose))
      .expects(fmt::format("one of {}", fmt::join(known, ", ")), "'" + printable(value) + "'")
      .try_this(near.empty() ? "" : fmt::format("did you mean {}?", near));
}

Result<Row> require_row(std::string_view backend, WeightFormat format, const Context& context) {
  const auto policy = policy_of(context, format);
  if (!policy) return policy.why();
  if (const Row found = oracle::find_backend(**policy, backend)) return found;
  std::vector<std::string_view> known;
  for (const Row row : (*policy)->backends) known.push_back(row->name);
  return no_such_backend(backend, std::move(known), fmt::format("policy {}", (*policy)->name));
}

Result<oracle::Record> choose(const oracle::Policy& policy, const MoeConfig& config,
                              oracle::Record* refused) {
  oracle::Record record =
      oracle::make_record(policy, config.context.mode, request_of(config, policy));
  if (record.selection.outcome != oracle::Outcome::error) return record;
  Error why = error(ErrorCode::no_backend, "vllm.refused", record.selection.message);
  if (refused != nullptr) *refused = std::move(record);
  return why;
}

Result<std::vector<Row>> priority_rows(const MoeConfig& config, WeightFormat format) {
  const auto policy = policy_of(config.context, format);
  if (!policy) return policy.why();
  const oracle::AutomaticList* list = oracle::find_list(**policy, request_of(config, **policy));
  return list == nullptr ? std::vector<Row>{} : list->backends;
}

Result<std::vector<Row>> named_rows(std::string_view moe_backend, WeightFormat format,
                                    const Context& context) {
  const auto policy = policy_of(context, format);
  if (!policy) return policy.why();
  const auto& names = (*policy)->names;
  const auto found = std::ranges::find(names, moe_backend, &oracle::NamedChoice::name);
  if (found != names.end()) return found->backends;
  if (names.empty())
    return usage("vllm.name", fmt::format("policy {} takes no moe_backend", (*policy)->name))
        .expects("a policy since 2026-03", "'" + printable(moe_backend) + "'");
  // The walk itself says what it thinks of such a name.
  oracle::Request request;
  request.layer.backend = moe_backend;
  return usage("vllm.name", oracle::select(**policy, oracle::Mode::strict, request).message);
}

Result<std::vector<ExpertsClass>> experts_classes(Row backend) {
  std::vector<ExpertsClass> result;
  for (const ExpertsClass experts : backend->experts)
    if (!experts->name.empty()) result.push_back(experts);
  if (!result.empty()) return result;
  return usage("vllm.no_class", fmt::format("{} has no class of experts", backend->name))
      .expects("a backend with a modular or monolithic class",
               backend->experts.empty() ? "no kernel" : "a function");
}

}  // namespace fp4moe::vllm
