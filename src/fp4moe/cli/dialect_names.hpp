// The dialects by name, for options and refusals.
#pragma once
#include <string>

namespace fp4moe::cli {

// "gpt-oss, openai, modelopt, ...", from the table of dialects.
std::string dialect_names();

}  // namespace fp4moe::cli
