#include "fp4moe/platform/memory_nodes.hpp"

#include <algorithm>
#include <charconv>

#include <sys/syscall.h>
#include <unistd.h>

#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::uint32_t kMaxNodes = 1024;
constexpr int kInterleave = 3;  // the kernel's MPOL_INTERLEAVE

// The number at the start of `text`, which is shortened by it.
bool take_number(std::string_view& text, std::uint32_t& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number >= kMaxNodes) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::vector<std::uint32_t> parse_number_list(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::vector<std::uint32_t> numbers;
  do {
    std::uint32_t first = 0, last = 0;
    if (!take_number(text, first)) return {};
    last = first;
    if (take(text, '-') && (!take_number(text, last) || last < first)) return {};
    for (std::uint32_t number = first; number <= last; ++number) numbers.push_back(number);
  } while (take(text, ','));
  if (!text.empty()) return {};
  std::ranges::sort(numbers);
  // clang 14 has no std::ranges::unique with libstdc++ 12.
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::uint32_t> memory_nodes(const std::string& folder) {
  std::vector<std::uint32_t> nodes = parse_number_list(read_start(inside(folder, "has_memory")));
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

bool spread_over(std::span<const std::uint32_t> nodes, std::span<std::byte> memory) {
  if (nodes.size() < 2 || memory.empty()) return false;
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNodes / kBits] = {};
  for (const std::uint32_t node : nodes)
    if (node < kMaxNodes) mask[node / kBits] |= 1ul << (node % kBits);
  // Whole pages only: what shares one with others stays as it is.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(memory.data() + memory.size()) / page * page;
  if (end <= begin) return false;
  return syscall(SYS_mbind, begin, end - begin, kInterleave, mask, kMaxNodes + 1, 0) == 0;
}

}  // namespace fp4moe::platform
