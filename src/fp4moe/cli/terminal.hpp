// Who reads what the program prints.
#pragma once
#include <cstddef>

namespace fp4moe::cli {

// Of the terminal behind a file descriptor; 0 where there is none.
std::size_t terminal_columns(int descriptor);

// Whether a terminal is there that can erase a line (TERM is not "dumb").
bool is_live_terminal(int descriptor);

// Whether the descriptor is a pipe that nobody reads any more.
bool is_reader_gone(int descriptor);

}  // namespace fp4moe::cli
