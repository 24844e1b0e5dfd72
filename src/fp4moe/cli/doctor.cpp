// fp4moe doctor
//
// Reports what is compiled in, what the machine has, which kernels will run and why not the others,
// and what is odd about the environment. Exit status: 0 unless the settings keep every other
// command from starting; then their error's, which is 7 for an instruction set that cannot run.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/doctor_report.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/runtime/engines.hpp"

namespace fp4moe::cli {
namespace {

void line(const Io& io, std::string_view key, std::string_view value) {
  io.out << fmt::format("  {:24} {}\n", key, value);
}

void print_build(const Io& io, const BuildFacts& build) {
  io.out << fmt::format("build: fp4moe {}, {}, {}{}\n", build.version, build.compiler,
                        build.architecture, build.optimized ? "" : ", not optimized");
  line(io, "instruction sets", join(build.instruction_sets, ", "));
  std::vector<std::string> names;
  for (const runtime::EngineRow& engine : runtime::engines())
    if (engine.is_built()) names.push_back(fmt::format("{} ({})", engine.name, engine.what));
  line(io, "engines", join(names, ", "));
  names.clear();
  for (const OptionalPart& part : optional_parts())
    names.push_back(fmt::format("{} {}", part.name, part.built ? "yes" : "no"));
  line(io, "optional parts", join(names, ", "));
}

std::string describe(const platform::Device& device) {
  std::string shown = device.name;
  if (device.capability) shown += ", " + platform::text(*device.capability);
  if (!device.gfx.empty()) shown += " (" + device.gfx + ")";
  if (device.memory_bytes != 0) shown += ", " + human_bytes(device.memory_bytes);
  return shown;
}

// Equal devices in a row as one line.
std::vector<std::string> describe(const std::vector<platform::Device>& devices) {
  std::vector<std::string> lines;
  for (auto first = devices.begin(); first != devices.end();) {
    const std::string shown = describe(*first);
    const auto next = std::find_if(
        first, devices.end(), [&shown](const auto& other) { return describe(other) != shown; });
    const auto count = next - first;
    lines.push_back(count == 1 ? shown : fmt::format("{} x {}", count, shown));
    first = next;
  }
  return lines;
}

void print_probe(const Io& io, const platform::Probe& probe) {
  std::string key(platform::name(probe.kind));
  if (!probe.driver.empty()) key += " (" + probe.driver + ")";
  for (const std::string& shown : describe(probe.devices)) {
    line(io, key, shown);
    key.clear();
  }
  if (probe.reason.empty()) return;
  const std::string_view state = probe.state == platform::ProbeState::broken ? "broken: "
                                 : probe.devices.empty()                     ? "none: "
                                                                             : "";
  const bool to_mend = probe.state != platform::ProbeState::absent && !probe.remedy.empty();
  line(io, key, fmt::format("{}{}{}", state, probe.reason, to_mend ? "; " + probe.remedy : ""));
}

void print_machine(const Io& io, const DoctorReport& report) {
  const platform::Machine& machine = report.machine;
  io.out << "machine:\n";
  line(io, "CPU",
       fmt::format("{} ({}), {} cores, {} thread{} to be used, memory {}", machine.model,
                   machine.architecture, machine.cores, report.threads,
                   report.threads == 1 ? "" : "s", human_bytes(machine.memory_bytes)));
  line(io, "features", platform::text(machine.features));
  for (const platform::Probe& probe : report.probes) print_probe(io, probe);
  line(io, "device 'auto' means",
       fmt::format("{} {}", platform::name(report.automatic.kind), report.automatic.name));
  std::vector<std::string> absent;
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i) {
    const auto library = static_cast<platform::Library>(i);
    const auto found =
        std::ranges::find(report.libraries, library, &platform::FoundLibrary::library);
    if (found == report.libraries.end())
      absent.emplace_back(platform::name(library));
    else
      line(io, fmt::format("package {}", platform::name(library)),
           fmt::format("{}{}{}", found->path, found->note.empty() ? "" : ", ", found->note));
  }
  if (!absent.empty()) line(io, "packages not found", join(absent, ", "));
  if (report.vllm)
    line(io, report.vllm->package,
         fmt::format("{}: {}", report.vllm->version, report.vllm->plugin));
}

void print_kernels(const Io& io, const DoctorReport& report) {
  std::string heading = "kernels";
  if (report.problem)
    heading += ", as they would be without the problem below";
  else if (report.forced_isa)
    heading += ", FP4MOE_CPU_ISA=" + *report.forced_isa;
  io.out << heading << ":\n";
  for (const KernelChoice& choice : report.kernels) {
    std::string used, others;
    for (const KernelChoice::Candidate& candidate : choice.candidates) {
      std::string& list = candidate.used ? used : others;
      if (!list.empty()) list += ", ";
      list += candidate.used ? candidate.name
                             : fmt::format("{} ({})", candidate.name, candidate.why_not);
    }
    if (!others.empty()) used += "; not ";
    line(io, choice.operation, used.append(others));
  }
}

void print_cuda_engine(const Io& io, const CudaEngine& engine) {
  if (engine.why_not) {
    const Error& why = *engine.why_not;
    line(io, "cuda engine",
         fmt::format("{}{}", why.message, engine.built ? "" : fmt::format("; {}", why.remedy)));
    return;
  }
  std::vector<std::string> used, others;
  for (const CudaEngine::Seen& device : engine.devices)
    if (device.why_not.empty())
      used.push_back(
          fmt::format("device {} ({}, kernels {})", device.ordinal, device.name, device.kernels));
    else
      others.push_back(
          fmt::format("device {} ({}, {})", device.ordinal, device.name, device.why_not));
  line(io, "cuda engine",
       fmt::format("{}{}{}{}", used.empty() ? "built" : "", join(used, ", "),
                   others.empty() ? "" : "; not ", join(others, ", ")));
}

// How many warnings there were.
std::size_t print_environment(const Io& io, const DoctorReport& report) {
  io.out << "environment:\n";
  std::size_t warnings = 0;
  if (report.problem) io.out << "  problem: " << finding_text(*report.problem, io.columns, 2);
  for (const platform::Finding& finding : report.findings) {
    if (finding.severity == platform::Severity::warning) ++warnings;
    io.out << fmt::format("  {}: {}\n", platform::name(finding.severity), text(finding));
  }
  if (!report.problem && report.findings.empty()) io.out << "  nothing odd\n";
  return warnings;
}

void print_text(const Io& io, const DoctorReport& report) {
  print_build(io, report.build);
  print_machine(io, report);
  print_kernels(io, report);
  print_cuda_engine(io, report.cuda);
  std::size_t warnings = print_environment(io, report);
  warnings += static_cast<std::size_t>(
      std::ranges::count(report.probes, platform::ProbeState::broken, &platform::Probe::state));
  io.out << (report.problem ? "not healthy: other commands refuse to start" : "healthy");
  if (warnings != 0) io.out << fmt::format(", {} warning{}", warnings, warnings == 1 ? "" : "s");
  io.out << "\n";
}

}  // namespace

int print(const Io& io, const DoctorReport& report) {
  if (io.json)
    io.print(to_json(report));
  else
    print_text(io, report);
  return report.problem ? static_cast<int>(report.problem->code) : kDone;
}

Run declare_doctor(OptionSet&) {
  return [](const Io& io) -> Result<int> { return print(io, examine({})); };
}

}  // namespace fp4moe::cli
