#include "fp4moe/platform/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace {

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

Result<Done> read_threads(const std::string& value, Settings& into) {
  into.threads = parse_threads(value);
  if (into.threads) return Done{};
  return usage("settings.threads", "FP4MOE_THREADS is not a number of threads")
      .expects("a whole number from 1 to " + std::to_string(kMaxThreads), printable(value))
      .try_this("unset FP4MOE_THREADS to use every available core");
}

Result<Done> read_cpu_isa(const std::string& value, Settings& into) {
  if (!is_name(value))
    return usage("settings.cpu_isa", "FP4MOE_CPU_ISA is not the name of an instruction set")
        .expects("a lower-case name such as portable, neon or avx2", printable(value))
        .try_this("unset FP4MOE_CPU_ISA to use the best kernels this machine can run");
  into.cpu_isa = value;
  return Done{};
}

Result<Done> read_pins(const std::string& value, Settings& into) {
  if (value != "0" && value != "1")
    return usage("settings.pin", "invalid value of FP4MOE_PIN")
        .expects("0 or 1", printable(value))
        .try_this("unset FP4MOE_PIN to let the system place threads");
  into.pins = value == "1";
  return Done{};
}

Result<Done> read_openmp(const std::string& value, Settings& into) {
  if (value != "0" && value != "1")
    return usage("settings.openmp", "invalid value of FP4MOE_OPENMP")
        .expects("0 or 1", printable(value))
        .try_this("unset FP4MOE_OPENMP to compute on torch's threads where torch is loaded");
  into.openmp = value == "1";
  return Done{};
}

Result<Done> read_cuda_kernels(const std::string& value, Settings& into) {
  if (value != "sm90" && value != "sm80")
    return usage("settings.cuda_kernels", "FP4MOE_CUDA_KERNELS names no kernels")
        .expects("sm90 or sm80", printable(value))
        .try_this("unset FP4MOE_CUDA_KERNELS to run the fastest on each GPU");
  into.cuda_kernels = value;
  return Done{};
}

// The plug-in reads it, inside vLLM, which no wrong word stops.
Result<Done> leave_to_plugin(const std::string&, Settings&) { return Done{}; }

// clang-format off
constexpr SettingRow kSettingRows[] = {
    {"FP4MOE_THREADS", "a whole number from 1 to 4096",                 "threads to use where the command line names none", read_threads},
    {"FP4MOE_CPU_ISA", "an instruction set that doctor lists as built", "run only kernels of this instruction set and below", read_cpu_isa},
    {"FP4MOE_PIN",     "0 or 1",                                        "with 1, every worker thread of a layer stays on a CPU of its own", read_pins},
    {"FP4MOE_OPENMP",  "0 or 1",                                        "with 0, layers in Python have threads of their own also where torch is loaded", read_openmp},
    {"FP4MOE_VLLM",    "off, auto or always",                           "whether the plug-in of vLLM takes the experts of FP4 checkpoints", leave_to_plugin},
    {"FP4MOE_CUDA_KERNELS", "sm90 or sm80",                             "CUDA kernels to run: those for Hopper, or those for every GPU since Ampere", read_cuda_kernels},
};
// clang-format on
static_assert(kMaxThreads == 4096);

}  // namespace

std::span<const SettingRow> setting_rows() { return kSettingRows; }

std::optional<std::string> environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<Settings> read_settings(const Lookup& lookup) {
  Settings settings;
  for (const SettingRow& row : kSettingRows) {
    const std::optional<std::string> value = lookup(row.name);
    if (!value || value->empty()) continue;
    if (const Result<Done> read = row.read(*value, settings); !read) return read.why();
  }
  return settings;
}

std::size_t choose_threads(std::optional<std::size_t> asked, const Settings& settings) {
  if (asked) return *asked;
  if (settings.threads) return *settings.threads;
  return available_threads();
}

}  // namespace fp4moe::platform
