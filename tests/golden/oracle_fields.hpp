// Devices and parallel configurations as golden cases of the oracle write them. Nothing is
// guessed: a missing field, an unknown one or a value of another kind is an error that names it.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/parallel.hpp"
#include "fp4moe/oracle/words.hpp"
#include "fp4moe/platform/device.hpp"
#include "golden/fields.hpp"

namespace fp4moe::golden {

// null or missing: nothing.
Result<std::optional<std::string>> optional_string_field(const Json& object, std::string_view key);
// Whatever stands at a key must be one of these, so that a misspelled key does not pass unseen.
Result<Done> refuse_other_keys(const Json& object, std::string_view what,
                               std::span<const std::string_view> known);

// "version": the name of a policy.
Result<oracle::PolicyDate> policy_date_field(const Json& item);

// {name, type, capability: [major, minor] or null, gfx or null, libs: {name: bool}, amx?: bool}
Result<platform::Device> device_field(const Json& platform);

// {tp_size, pcp_size, dp_size, ep_size, tp_rank, ..., sp_size, use_ep, all2all_backend,
//  enable_eplb}
Result<oracle::Parallel> parallel_field(const Json& parallel);

// {tp_size, pcp_size, dp_size, tp_rank, ..., sp_size, enable_expert_parallel, all2all_backend,
//  enable_eplb}
Result<oracle::Deployment> deployment_field(const Json& input);

}  // namespace fp4moe::golden
