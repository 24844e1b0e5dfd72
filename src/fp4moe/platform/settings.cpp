#include "fp4moe/platform/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace {

std::optional<std::string> non_empty(const Lookup& lookup, std::string_view name) {
  std::optional<std::string> value = lookup(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

std::optional<std::size_t> parse_threads(std::string_view digits) {
  std::size_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = code == std::errc{} && end == digits.data() + digits.size();
  if (!whole || value < 1 || value > kMaxThreads) return std::nullopt;
  return value;
}

bool is_name(std::string_view word) {
  return word.size() <= 32 && std::ranges::all_of(word, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

std::optional<std::string> environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<Settings> read_settings(const Lookup& lookup) {
  Settings settings;
  if (const auto value = non_empty(lookup, "FP4MOE_THREADS")) {
    settings.threads = parse_threads(*value);
    if (!settings.threads)
      return usage("settings.threads", "FP4MOE_THREADS is not a number of threads")
          .expects("a whole number from 1 to " + std::to_string(kMaxThreads), printable(*value))
          .try_this("unset FP4MOE_THREADS to use every available core");
  }
  if (const auto value = non_empty(lookup, "FP4MOE_CPU_ISA")) {
    if (!is_name(*value))
      return usage("settings.cpu_isa", "FP4MOE_CPU_ISA is not the name of an instruction set")
          .expects("a lower-case name such as portable, neon or avx2", printable(*value))
          .try_this("unset FP4MOE_CPU_ISA to use the best kernels this machine can run");
    settings.cpu_isa = *value;
  }
  return settings;
}

std::size_t choose_threads(std::optional<std::size_t> asked, const Settings& settings) {
  if (asked) return *asked;
  if (settings.threads) return *settings.threads;
  return available_threads();
}

}  // namespace fp4moe::platform
