// Machines whose memory hangs on several nodes (NUMA). Weights are sharded over all of them, so
// that every routing keeps every node's memory busy, whichever experts it picks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::platform {

// The numbers in a list such as "0-3,8", ascending; empty when it is none.
std::vector<std::uint32_t> parse_number_list(std::string_view text);

// Nodes with memory, from the system's files; at least one.
std::vector<std::uint32_t> memory_nodes(const std::string& folder = "/sys/devices/system/node");

// Asks that pages of `memory` that were not touched yet come from `nodes` in turn. Nothing is asked
// with fewer than two. True if the system accepted it; only speed depends on it.
bool spread_over(std::span<const std::uint32_t> nodes, std::span<std::byte> memory);

}  // namespace fp4moe::platform
