// config.json and hf_quant_config.json as documents.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/config.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// A configuration file. Python's Infinity and NaN, which JSON has not, become null.
struct ConfigDocument {
  Json json{};
  bool had_python_numbers = false;  // written back, it would lose them
};
// A file that the user named. Nothing when it is not there.
Result<std::optional<ConfigDocument>> read_config_document(const std::string& path);
// A file of a folder, which links may not leave (tensor::file_inside). Errors: store.link.
Result<std::optional<ConfigDocument>> read_config_document(const std::string& folder,
                                                           const std::string& name);
// The same beside a store's tensors, in its folder or in memory.
Result<std::optional<ConfigDocument>> read_config_document(const tensor::Store& store,
                                                           std::string_view name);
// Checks that the document can be written again with everything in it: config.python_numbers.
Result<Done> require_json(const ConfigDocument& document, const std::string& path);

// Both from untrusted documents. Wrong types give config.type, never an exception.
Result<ModelFacts> parse_config(const Json& config);
Result<QuantClaim> parse_hf_quant_config(const Json& config);

}  // namespace fp4moe::checkpoint
