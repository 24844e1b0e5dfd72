// A word as a shell reads it, for command lines that users copy.
#pragma once
#include <string>
#include <string_view>

namespace fp4moe {

// The word itself where no shell changes it, else in quotes: 'it'\''s'.
std::string shell_word(std::string_view word);

}  // namespace fp4moe
