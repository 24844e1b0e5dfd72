#include "fp4moe/cli/command.hpp"

namespace fp4moe::cli {

Run declare_inspect(CLI::App& app);

namespace {

// In the order in which a newcomer meets them.
// clang-format off
constexpr Command kCommands[] = {
    // name       summary                                                      example
    {"inspect",   "Say what a checkpoint holds: dialect, layers, shapes",      "fp4moe inspect ./gpt-oss-20b",  declare_inspect},
};
// clang-format on

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace fp4moe::cli
