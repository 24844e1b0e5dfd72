// How long work tells how far it is.
#pragma once
#include <cstdint>
#include <functional>

namespace fp4moe::checkpoint {

// Called with bytes that are done, from any thread.
using ProgressFunction = std::function<void(std::uint64_t)>;

}  // namespace fp4moe::checkpoint
