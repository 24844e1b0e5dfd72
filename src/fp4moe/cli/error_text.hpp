// An error as people read it: what, found, do.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::cli {

//   fp4moe explain: no device of this name is described [device.unknown]
//     found: xeon; expected: one of h100, b200
//     do:    did you mean cpu-xeon?
// `command` is empty where none was understood. Lines are fitted to `columns`; 0: they are as long as they are.
std::string error_text(const Error& why, std::string_view command, std::size_t columns);

}  // namespace fp4moe::cli
