// The dialects by name, for options and refusals.
#pragma once
#include <string>
#include <string_view>

namespace fp4moe::cli {

// "gpt-oss, openai, modelopt, ...", from the table of dialects.
std::string dialect_names();

// "Did you mean gguf?", or nothing.
std::string meant_dialect(std::string_view word);

}  // namespace fp4moe::cli
