// The environment, read once and handed on as a value: no other code calls getenv for these.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::platform {

// Every member is empty when its variable is unset (or set to nothing).
struct Settings {
  std::optional<std::string> cpu_isa{};  // FP4MOE_CPU_ISA: run only kernels of this ISA and below
  std::optional<std::size_t> threads{};  // FP4MOE_THREADS: 1 ... kMaxThreads
  std::optional<bool> pins{};            // FP4MOE_PIN: workers stay on CPUs of their own
  std::optional<bool> openmp{};  // FP4MOE_OPENMP: layers of Python compute on torch's threads
  std::optional<std::string> cuda_kernels{};  // FP4MOE_CUDA_KERNELS: sm90 or sm80
};

inline constexpr std::size_t kMaxThreads = 4096;

// Every FP4MOE_* variable there is.
struct SettingRow {
  std::string_view name;
  std::string_view accepted;
  std::string_view effect;  // one line, for doctor and the documentation
  Result<Done> (*read)(const std::string& value, Settings& into);
};
std::span<const SettingRow> setting_rows();

using Lookup = std::function<std::optional<std::string>(std::string_view name)>;

// The process's own environment.
std::optional<std::string> environment(std::string_view name);

// Errors have the id "settings.threads" or "settings.cpu_isa" and name the variable. Whether an ISA
// of that name exists is for kernels/cpu/isa.hpp to say.
Result<Settings> read_settings(const Lookup& lookup = environment);

// The thread count to use: asked for on the command line, else set, else what the machine has.
std::size_t choose_threads(std::optional<std::size_t> asked, const Settings& settings);

}  // namespace fp4moe::platform
