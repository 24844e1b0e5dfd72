#include "fp4moe/platform/device.hpp"

#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace device_test {

TEST(Capability, ReadsAsMajorAndMinor) {
  EXPECT_EQ(text(Capability{9, 0}), "9.0");
  EXPECT_EQ(text(Capability{12, 1}), "12.1");
}

TEST(Capability, IsReadInEverySpellingPeopleUse) {
  for (const char* spelling :
       {"9.0", "90", "sm_90", "sm90", "sm_90a", "SM90", "compute_90", "9.0a"})
    EXPECT_EQ(capability_from_text(spelling), (Capability{9, 0})) << spelling;
  EXPECT_EQ(capability_from_text("10.3"), (Capability{10, 3}));
  EXPECT_EQ(capability_from_text("sm_120f"), (Capability{12, 0}));
  EXPECT_EQ(capability_from_text("121"), (Capability{12, 1}));
}

TEST(Capability, IsAbsentFromOtherText) {
  for (const char* bad : {"", "9", "9.", ".9", "9.00", "10.10", "0.9", "09", "1000", "sm_", "-9.0",
                          "9.0.0", "nine", "9.a", "9 0", "sm_9.0x", "99999999999999999999"})
    EXPECT_FALSE(capability_from_text(bad)) << bad;
}

TEST(Gfx, GivesTheCapabilityOfEveryKnownGeneration) {
  const auto capability = [](std::string_view gfx) { return *capability_from_gfx(gfx); };
  EXPECT_EQ(capability("gfx90a"), (Capability{9, 0}));
  EXPECT_EQ(capability("gfx906"), (Capability{9, 0}));
  EXPECT_EQ(capability("gfx942"), (Capability{9, 4}));
  EXPECT_EQ(capability("gfx950"), (Capability{9, 5}));
  EXPECT_EQ(capability("gfx1030"), (Capability{10, 3}));
  EXPECT_EQ(capability("gfx1100"), (Capability{11, 0}));
  EXPECT_EQ(capability("gfx1201"), (Capability{12, 0}));
  EXPECT_EQ(capability("gfx1250"), (Capability{12, 5}));
  EXPECT_EQ(capability("gfx942:sramecc+:xnack-"), (Capability{9, 4}));
}

TEST(Gfx, RefusesNamesWithoutAMeaning) {
  for (const char* bad : {"", "gfx", "gfx9", "gfx9-4-generic", "gfx12000", "gfx803", "gfx1300",
                          "GFX942", "sm_90", "942"}) {
    const Result<Capability> read = capability_from_gfx(bad);
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.why().id, "device.gfx");
    EXPECT_EQ(read.why().code, ErrorCode::usage);
    EXPECT_FALSE(read.why().found.empty());
  }
}

TEST(DescribedDevices, HaveUniqueNamesThatFindThem) {
  std::set<std::string> taken;
  for (const DescribedDevice& row : described_devices()) {
    const Result<Device> found = describe_device(row.name);
    ASSERT_TRUE(found) << row.name;
    EXPECT_EQ(found->name, row.name);
    EXPECT_TRUE(taken.insert(std::string(row.name)).second) << row.name;
    if (row.aliases.empty()) continue;
    for (const std::string_view alias : split(row.aliases, ' ')) {
      EXPECT_TRUE(taken.insert(std::string(alias)).second) << alias;
      ASSERT_TRUE(describe_device(alias)) << alias;
      EXPECT_EQ(describe_device(alias)->name, row.name);
    }
  }
}

TEST(DescribedDevices, AgreeWithThemselves) {
  for (const DescribedDevice& row : described_devices()) {
    const bool has_capability = row.kind == PlatformKind::cuda || row.kind == PlatformKind::rocm;
    EXPECT_EQ(row.capability.has_value(), has_capability) << row.name;
    EXPECT_EQ(row.gfx.empty(), row.kind != PlatformKind::rocm) << row.name;
    EXPECT_EQ(row.memory_gib == 0, !has_capability) << row.name;
    EXPECT_FALSE(row.title.empty()) << row.name;
    if (!row.gfx.empty()) {
      EXPECT_EQ(*capability_from_gfx(row.gfx), row.capability) << row.name;
    }
    const bool arm = row.cpu.contains(CpuFeature::neon);
    const bool x86 = row.cpu.contains(CpuFeature::avx2);
    EXPECT_EQ(arm, row.architecture == CpuArchitecture::arm) << row.name;
    EXPECT_EQ(x86, row.architecture == CpuArchitecture::x86) << row.name;
  }
}

TEST(DescribedDevices, HaveTheLibrariesOfAUsualInstallation) {
  const auto libraries = [](std::string_view name) { return describe_device(name)->libraries; };
  EXPECT_EQ(libraries("h100"), (EnumSet{Library::flashinfer, Library::triton_kernels}));
  EXPECT_EQ(libraries("v100"), (EnumSet{Library::triton_kernels}));
  EXPECT_EQ(libraries("mi250"), (EnumSet{Library::triton_kernels, Library::aiter}));
  EXPECT_EQ(libraries("mi355x"), (EnumSet{Library::triton_kernels, Library::aiter}));
  EXPECT_EQ(libraries("rx7900xtx"), (EnumSet{Library::triton_kernels}));
  EXPECT_TRUE(libraries("xpu").empty());
  EXPECT_TRUE(libraries("cpu").empty());
}

TEST(DescribedDevices, CarryEveryFieldIntoTheDevice) {
  const Result<Device> device = describe_device("mi300x");
  ASSERT_TRUE(device);
  EXPECT_EQ(device->kind, PlatformKind::rocm);
  EXPECT_EQ(device->capability, (Capability{9, 4}));
  EXPECT_EQ(device->gfx, "gfx942");
  EXPECT_EQ(device->architecture, CpuArchitecture::x86);
  EXPECT_EQ(device->memory_bytes, std::uint64_t{192} << 30);
  EXPECT_TRUE(describe_device("cpu-amx")->cpu.contains(CpuFeature::amx_bf16));
}

TEST(DescribedDevices, AreFoundInTheSpellingsPeopleUse) {
  for (const char* spelling : {"H100", "nvidia h100", "NVIDIA-H100", "h_100"})
    EXPECT_EQ(describe_device(spelling)->name, "h100") << spelling;
  EXPECT_EQ(describe_device("GeForce RTX 5090")->name, "rtx5090");
  EXPECT_EQ(describe_device("NVIDIA GeForce RTX 4090")->name, "rtx4090");
  EXPECT_EQ(describe_device("rtx-pro-6000")->name, "rtxpro6000");
  EXPECT_EQ(describe_device("AMD Instinct MI300X")->name, "mi300x");
  EXPECT_EQ(describe_device("mi355")->name, "mi355x");
  EXPECT_EQ(describe_device("cpu_avx512")->name, "cpu-avx512");
  EXPECT_EQ(describe_device("Intel Arc")->name, "xpu");
}

TEST(DescribedDevices, AnUnknownNameIsRefusedWithAllNamesAndTheNearest) {
  const Result<Device> device = describe_device("h1000");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.why().id, "device.unknown");
  EXPECT_EQ(device.why().code, ErrorCode::usage);
  EXPECT_EQ(device.why().found, "h1000");
  EXPECT_EQ(device.why().remedy, "did you mean h100?");
  for (const DescribedDevice& row : described_devices())
    EXPECT_NE(device.why().expected.find(row.name), std::string::npos) << row.name;
}

TEST(DescribedDevices, ACpusSeriesIsToldHowCpusAreDescribed) {
  for (const std::string_view name : {"xeon", "AMD EPYC 9654"}) {
    const Result<Device> device = describe_device(name);
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.why().remedy, "a CPU is one of cpu-avx2, cpu-avx512, cpu-amx and cpu-arm")
        << name;
  }
}

TEST(DescribedDevices, NothingIsSuggestedForAWordFarFromAllOfThem) {
  for (const std::string& name :
       {std::string("potato"), std::string(), std::string("nvidia"), std::string(100'000, 'h')}) {
    const Result<Device> device = describe_device(name);
    ASSERT_FALSE(device);
    EXPECT_EQ(device.why().remedy, "describe it by its platform and capability instead");
  }
}

// A row of the table in docs/devices.md.
std::string documented(const DescribedDevice& row) {
  std::string libraries, aliases;
  for (std::size_t i = 0; i < kLibraryNames.size(); ++i) {
    if (!row.libraries.contains(static_cast<Library>(i))) continue;
    libraries += (libraries.empty() ? "" : ", ") + std::string(kLibraryNames[i]);
  }
  if (!row.aliases.empty())
    for (const std::string_view alias : split(row.aliases, ' '))
      aliases += (aliases.empty() ? "" : ", ") + std::string(alias);
  const std::string capability = row.capability ? text(*row.capability) : "";
  return "| `" + std::string(row.name) + "` | " + std::string(row.title) + " | " +
         std::string(name(row.kind)) + " | " + capability + " | " + std::string(row.gfx) + " | " +
         (row.memory_gib == 0 ? "" : std::to_string(row.memory_gib)) + " | " + libraries + " | " +
         aliases + " |";
}

TEST(DescribedDevices, AreDocumentedAsTheyAre) {
  std::ifstream page(FP4MOE_TESTDATA "/../docs/devices.md");
  ASSERT_TRUE(page);
  std::set<std::string> lines;
  for (std::string line; std::getline(page, line);) lines.insert(line);
  for (const DescribedDevice& row : described_devices())
    EXPECT_TRUE(lines.contains(documented(row))) << documented(row);
}

}  // namespace device_test
}  // namespace fp4moe::platform
