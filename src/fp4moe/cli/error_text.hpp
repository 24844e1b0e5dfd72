// An error as users read it: what, found, do.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::cli {

//   fp4moe explain: no device of this name is described [device.unknown]
//     found: xeon; expected: one of h100, b200
//     do:    did you mean cpu-xeon?
// `command` is empty where none was understood. Lines are fitted to `columns`; 0: they are as long
// as they are. An error without a remedy gets that of its id's row in docs/errors.toml.
std::string error_text(const Error& why, std::string_view command, std::size_t columns);

// The same for one finding of several, without the program's name in front. `indent` columns are
// left free on the left, except on the first line.
std::string finding_text(const Error& why, std::size_t columns, std::size_t indent = 0);

// "fp4moe: PATH: SENTENCE [ID]" where no memory is left for more. `path` may be empty; a '?' stands
// for each control character.
void print_plain_error(std::ostream& err, std::string_view path,
                       std::initializer_list<std::string_view> sentence, std::string_view id);

// The error with something to do, where its id's row knows it.
Error with_usual_remedy(Error why);

}  // namespace fp4moe::cli
