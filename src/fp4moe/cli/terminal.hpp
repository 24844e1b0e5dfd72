// Who reads what the program prints.
#pragma once
#include <cstddef>

namespace fp4moe::cli {

// Columns of the terminal behind a file descriptor; 0 if there is none.
std::size_t terminal_columns(int descriptor);

// True if a terminal is there that can erase a line (TERM is not "dumb").
bool is_live_terminal(int descriptor);

// True if the descriptor is a pipe whose reader has gone.
bool is_reader_gone(int descriptor);

}  // namespace fp4moe::cli
