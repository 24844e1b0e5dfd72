// The parts of a report's page. Each returns markup, and the empty text where there is nothing to
// say.
#pragma once
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"

namespace fp4moe::report {

// The command line that says the same, below a heading.
std::string command_line(const Json& answer);
// The error of an answer, as a box.
std::string failure(const Json& error);
// "<h2 id=...>"
std::string heading(std::string_view id, std::string_view title);
std::string soft(std::string_view markup);

// The result of an answer; nothing where it failed.
const Json* result_of(const Json& answer);

std::string cards(const Json& facts);
std::string identity_section(const Json& facts);
std::string findings_section(const Json& facts);
std::string scales_section(const Json& facts);
std::string devices_section(const Json& facts);
std::string numerics_section(const Json& facts);
std::string bench_section(const Json& facts);

}  // namespace fp4moe::report
