// Ranks of one process: each a thread with its own communicator, bytes copied from memory to
// memory.
#pragma once
#include <memory>
#include <vector>

#include "fp4moe/moe/exchange/communicator.hpp"

namespace fp4moe::moe::exchange {

// One communicator for each of `size` threads (at least one). A rank leaves when its communicator
// is destroyed; that is an error for whoever still waits for it.
std::vector<std::unique_ptr<Communicator>> make_threads(std::uint64_t size,
                                                        const CommunicatorOptions& options = {});

}  // namespace fp4moe::moe::exchange
