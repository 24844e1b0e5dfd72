// The dialects by name, for options and refusals.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/checkpoint/dialect.hpp"

namespace fp4moe::cli {

// "gpt-oss, openai, modelopt, ...", from the table of dialects.
std::string dialect_names(std::optional<checkpoint::Dialect> except = std::nullopt);

// "Did you mean gguf?", or nothing.
std::string meant_dialect(std::string_view word);

}  // namespace fp4moe::cli
