// A configuration's quantization in the words of each tool, as a claim.
#pragma once
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/checkpoint/config_fields.hpp"

namespace fp4moe::checkpoint {

// config.json's quantization_config, of any tool.
Result<QuantClaim> claim_from(const Json& config, std::string_view model_type,
                              std::string_view expert_dtype);

// ModelOpt's, also in hf_quant_config.json; `fact` is what names the tool there.
Result<QuantClaim> modelopt_claim(ConfigFields& fields, std::string fact);

}  // namespace fp4moe::checkpoint
