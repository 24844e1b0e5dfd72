#include "fp4moe/platform/detect.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace detect_test {

// A driver that shows one H200 and one RTX 5090, until a test breaks one of its calls.
CudaDriver two_gpus() {
  CudaDriver driver;
  driver.init = [](unsigned) { return 0; };
  driver.version = [](int* version) { return *version = 13010, 0; };
  driver.device_count = [](int* count) { return *count = 2, 0; };
  driver.device = [](int* device, int ordinal) { return *device = 40 + ordinal, 0; };
  driver.name = [](char* name, int size, int device) {
    std::strncpy(name, device == 40 ? "NVIDIA H200" : "RTX\t5090", static_cast<std::size_t>(size));
    return 0;
  };
  driver.attribute = [](int* value, int attribute, int device) {
    *value = attribute == 75 ? (device == 40 ? 9 : 12) : 0;
    return 0;
  };
  driver.total_memory = [](std::size_t* bytes, int device) {
    return *bytes = device == 40 ? std::size_t{141} << 30 : std::size_t{32} << 30, 0;
  };
  return driver;
}

Result<CudaDriver> no_driver() {
  return error(ErrorCode::unavailable, "device.driver.missing", "libcuda.so.1 cannot be opened")
      .expects("the driver's library", "libcuda.so.1: no such file");
}

// One MI300X and one CPU, as amdkfd lists them.
void add_mi300x(const FakeRoot& root) {
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes";
  root.file(nodes + "/0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n");
  root.file(nodes + "/1/properties",
            "cpu_cores_count 0\nsimd_count 1216\ndrm_render_minor 128\ngfx_target_version 90402\n");
  root.file(nodes + "/1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\n");
  root.file(nodes + "/1/mem_banks/1/properties", "heap_type 0\nsize_in_bytes 4096\n");
  root.file("/sys/class/drm/renderD128/device/product_name", "AMD Instinct MI300X OAM\n");
  root.file("/dev/kfd");
}

void add_card(const FakeRoot& root, const std::string& card, const std::string& driver,
              const std::string& id, const std::string& slot,
              const std::string& pci_class = "30000") {
  root.file("/sys/class/drm/" + card + "/device/uevent",
            "DRIVER=" + driver + "\nPCI_CLASS=" + pci_class + "\nPCI_ID=" + id +
                "\nPCI_SLOT_NAME=" + slot + "\n");
}

TEST(Cuda, ShowsWhatTheDriverShows) {
  const Probe probe = probe_cuda(two_gpus());

  EXPECT_EQ(probe.state, ProbeState::working);
  EXPECT_EQ(probe.driver, "CUDA 13.1");
  EXPECT_EQ(probe.reason, "");
  ASSERT_EQ(probe.devices.size(), 2u);
  EXPECT_EQ(probe.devices[0].name, "NVIDIA H200");
  EXPECT_EQ(probe.devices[0].kind, PlatformKind::cuda);
  EXPECT_EQ(probe.devices[0].capability, (Capability{9, 0}));
  EXPECT_EQ(probe.devices[0].memory_bytes, std::uint64_t{141} << 30);
  EXPECT_EQ(probe.devices[1].name, "RTX\\x095090");
  EXPECT_EQ(probe.devices[1].capability, (Capability{12, 0}));
}

TEST(Cuda, IsAbsentWithoutADriver) {
  const Probe probe = probe_cuda(no_driver());

  EXPECT_EQ(probe.state, ProbeState::absent);
  EXPECT_TRUE(probe.devices.empty());
  EXPECT_EQ(probe.reason, "libcuda.so.1: no such file");
}

TEST(Cuda, SaysWhyADriverThatIsThereDoesNotWork) {
  CudaDriver driver = two_gpus();
  driver.init = [](unsigned) { return 100; };
  Probe probe = probe_cuda(driver);
  EXPECT_EQ(probe.state, ProbeState::broken);
  EXPECT_EQ(probe.reason, "libcuda.so.1 is there but cuInit returned 100 (no device)");
  EXPECT_NE(probe.remedy.find("CUDA_VISIBLE_DEVICES"), std::string::npos);

  driver.init = [](unsigned) { return 4711; };
  EXPECT_EQ(probe_cuda(driver).reason, "libcuda.so.1 is there but cuInit returned 4711");

  driver = two_gpus();
  driver.device_count = [](int*) { return 999; };
  EXPECT_EQ(probe_cuda(driver).reason,
            "libcuda.so.1 is there but cuDeviceGetCount returned 999 (unknown error)");

  for (const int count : {0, -3}) {
    driver.device_count = [count](int* shown) { return *shown = count, 0; };
    probe = probe_cuda(driver);
    EXPECT_EQ(probe.state, ProbeState::broken);
    EXPECT_EQ(probe.reason, "the CUDA driver shows no device");
  }
}

TEST(Cuda, LeavesOutADeviceThatDoesNotAnswerAndSaysSo) {
  CudaDriver driver = two_gpus();
  driver.device = [](int* device, int ordinal) {
    *device = 40 + ordinal;
    return ordinal == 1 ? 101 : 0;
  };
  Probe probe = probe_cuda(driver);
  EXPECT_EQ(probe.state, ProbeState::working);
  EXPECT_EQ(probe.devices.size(), 1u);
  EXPECT_NE(probe.reason.find("device 1 returned 101"), std::string::npos);

  driver = two_gpus();
  driver.attribute = [](int*, int, int) { return 1; };
  probe = probe_cuda(driver);
  EXPECT_EQ(probe.state, ProbeState::broken);
  EXPECT_TRUE(probe.devices.empty());
}

TEST(Cuda, ADeviceWithoutANameOrASizeIsStillADevice) {
  CudaDriver driver = two_gpus();
  driver.name = [](char*, int, int) { return 1; };
  driver.total_memory = [](std::size_t* bytes, int) { return *bytes = 7, 1; };
  driver.version = [](int*) { return 1; };
  const Probe probe = probe_cuda(driver);
  ASSERT_EQ(probe.devices.size(), 2u);
  EXPECT_EQ(probe.devices[0].name, "CUDA device");
  EXPECT_EQ(probe.devices[0].memory_bytes, 0u);
  EXPECT_EQ(probe.driver, "");
}

TEST(Cuda, ALibraryThatIsMissingOrIsNotTheDriverIsRefused) {
  const Result<CudaDriver> missing = load_cuda_driver("libfp4moe_no_such_library.so.1");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.why().id, "device.driver.missing");
  EXPECT_EQ(missing.why().code, ErrorCode::unavailable);

  const Result<CudaDriver> other = load_cuda_driver("libc.so.6");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.why().id, "device.driver.symbol");
  EXPECT_EQ(probe_cuda(other).state, ProbeState::broken);
}

TEST(Rocm, IsAbsentWithoutTheKernelDriver) {
  const FakeRoot root;
  const Probe probe = probe_rocm(root.path(), with({}));
  EXPECT_EQ(probe.state, ProbeState::absent);
  EXPECT_NE(probe.reason.find("amdkfd"), std::string::npos);
}

TEST(Rocm, ReadsTheTopology) {
  const FakeRoot root;
  add_mi300x(root);
  const Probe probe = probe_rocm(root.path(), with({}));

  EXPECT_EQ(probe.state, ProbeState::working);
  ASSERT_EQ(probe.devices.size(), 1u);
  EXPECT_EQ(probe.devices[0].name, "AMD Instinct MI300X OAM");
  EXPECT_EQ(probe.devices[0].kind, PlatformKind::rocm);
  EXPECT_EQ(probe.devices[0].gfx, "gfx942");
  EXPECT_EQ(probe.devices[0].capability, (Capability{9, 4}));
  EXPECT_EQ(probe.devices[0].memory_bytes, 206141652992u);
}

TEST(Rocm, ATopologyOfCpusIsNoGpu) {
  const FakeRoot root;
  root.file("/sys/class/kfd/kfd/topology/nodes/0/properties", "gfx_target_version 0\n");
  root.folder("/sys/class/kfd/kfd/topology/nodes/1");  // not readable: no properties
  const Probe probe = probe_rocm(root.path(), with({}));
  EXPECT_EQ(probe.state, ProbeState::absent);
  EXPECT_EQ(probe.reason, "amdkfd lists no GPU");
}

TEST(Rocm, ArchitecturesOfNoKnownMeaningAreLeftOutAndNamed) {
  const FakeRoot root;
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes";
  root.file(nodes + "/0/properties", "gfx_target_version 80003\n");
  Probe probe = probe_rocm(root.path(), with({}));
  EXPECT_EQ(probe.state, ProbeState::absent);
  EXPECT_EQ(probe.reason, "left out architecture gfx803, which has no known meaning");

  root.file(nodes + "/0/properties", "gfx_target_version 18446744073709551615\n");
  probe = probe_rocm(root.path(), with({}));
  EXPECT_NE(probe.reason.find("18446744073709551615"), std::string::npos);
}

TEST(Rocm, GpusWithoutTheirDeviceFileCannotBeUsed) {
  const FakeRoot root;
  root.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "gfx_target_version 90500\n");
  const Probe probe = probe_rocm(root.path(), with({}));
  EXPECT_EQ(probe.state, ProbeState::broken);
  EXPECT_TRUE(probe.devices.empty());
  EXPECT_NE(probe.remedy.find("/dev/kfd"), std::string::npos);
}

TEST(Rocm, VariablesChooseAmongTheGpus) {
  const FakeRoot root;
  root.file("/dev/kfd");
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes/";
  const std::vector<std::string> versions{"90402", "90500", "110000"};
  for (std::size_t i = 0; i < versions.size(); ++i)
    root.file(nodes + std::to_string(i + 9) + "/properties",  // node 9 goes before node 10
              "gfx_target_version " + versions[i] + "\n");
  const auto left = [&root](Variables variables) {
    std::string names;
    for (const Device& device : probe_rocm(root.path(), with(std::move(variables))).devices)
      names += device.gfx + " ";
    return names;
  };

  EXPECT_EQ(left({}), "gfx942 gfx950 gfx1100 ");
  EXPECT_EQ(left({{"HIP_VISIBLE_DEVICES", "2,0"}}), "gfx1100 gfx942 ");
  EXPECT_EQ(left({{"ROCR_VISIBLE_DEVICES", "1,2"}, {"HIP_VISIBLE_DEVICES", "1"}}), "gfx1100 ");
  EXPECT_EQ(left({{"HIP_VISIBLE_DEVICES", "1,9,0"}}), "gfx950 ");
  EXPECT_EQ(left({{"ROCR_VISIBLE_DEVICES", "GPU-0123"}}), "gfx942 gfx950 gfx1100 ");
  EXPECT_EQ(left({{"HIP_VISIBLE_DEVICES", ""}}), "");
  EXPECT_EQ(left({{"HIP_VISIBLE_DEVICES", "-1"}}), "");
  const Probe hidden = probe_rocm(root.path(), with({{"HIP_VISIBLE_DEVICES", "-1"}}));
  EXPECT_EQ(hidden.state, ProbeState::broken);
  EXPECT_EQ(hidden.reason, "HIP_VISIBLE_DEVICES=-1 hides every AMD GPU");
}

TEST(Rocm, TargetVersionsBecomeNames) {
  EXPECT_EQ(gfx_from_target_version(90402), "gfx942");
  EXPECT_EQ(gfx_from_target_version(90010), "gfx90a");
  EXPECT_EQ(gfx_from_target_version(90500), "gfx950");
  EXPECT_EQ(gfx_from_target_version(110000), "gfx1100");
  EXPECT_EQ(gfx_from_target_version(120001), "gfx1201");
  for (const std::uint64_t none : {0u, 99u, 91600u, 90016u, 1000000u})
    EXPECT_EQ(gfx_from_target_version(none), "") << none;
}

TEST(Xpu, CountsDiscreteIntelGpusOnly) {
  const FakeRoot root;
  add_card(root, "card0", "i915", "8086:A780", "0000:00:02.0");           // built in
  add_card(root, "card1", "xe", "8086:E20B", "0000:03:00.0");             // Arc B580
  add_card(root, "card2", "i915", "8086:0BD5", "0000:29:00.0", "38000");  // Max 1550
  add_card(root, "card3", "nvidia", "10DE:2330", "0000:41:00.0");         // another maker
  add_card(root, "card4", "vfio-pci", "8086:E20B", "0000:04:00.0");       // given to a guest
  add_card(root, "card5", "xe", "8086:1234", "0000:05:00.0", "20000");    // a network card
  add_card(root, "card1-DP-1", "xe", "8086:E20B", "0000:03:00.0");        // an output
  root.file("/sys/class/drm/card2/lmem_total_bytes", "68719476736\n");

  const Probe probe = probe_xpu(root.path());

  EXPECT_EQ(probe.state, ProbeState::working);
  ASSERT_EQ(probe.devices.size(), 2u);
  EXPECT_EQ(probe.devices[0].name, "Intel GPU 8086:E20B");
  EXPECT_EQ(probe.devices[0].memory_bytes, 0u);
  EXPECT_FALSE(probe.devices[0].capability);
  EXPECT_EQ(probe.devices[1].memory_bytes, std::uint64_t{64} << 30);
}

TEST(Xpu, SaysWhyThereIsNone) {
  const FakeRoot root;
  EXPECT_EQ(probe_xpu(root.path()).reason, "no discrete Intel GPU with the xe or i915 driver");
  add_card(root, "card0", "i915", "8086:A780", "0000:00:02.0");
  EXPECT_EQ(probe_xpu(root.path()).state, ProbeState::absent);
  EXPECT_EQ(probe_xpu(root.path()).reason, "the Intel graphics here are built into the CPU");
}

TEST(Detect, AnEmptyMachineIsItsCpu) {
  const FakeRoot root;
  const DetectFrom from{.root = root.path(), .lookup = with({}), .cuda = no_driver};

  const std::vector<Device> devices = detect_devices(from);

  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].kind, PlatformKind::cpu);
  EXPECT_FALSE(devices[0].name.empty());
  EXPECT_FALSE(devices[0].capability);
  EXPECT_GT(devices[0].memory_bytes, 0u);
  EXPECT_EQ(devices[0].cpu, detect_cpu_features());
  EXPECT_EQ(detect_device(from).kind, PlatformKind::cpu);
}

TEST(Detect, AcceleratorsComeFirstAndShareTheHostsPartAndLibraries) {
  const FakeRoot root;
  add_mi300x(root);
  root.file("/opt/packages/triton_kernels/__init__.py");
  const DetectFrom from{.root = root.path(),
                        .lookup = with({{"PYTHONPATH", "/opt/packages"}}),
                        .cuda = [] { return Result<CudaDriver>(two_gpus()); }};

  const std::vector<Device> devices = detect_devices(from);

  ASSERT_EQ(devices.size(), 4u);
  EXPECT_EQ(devices[0].name, "NVIDIA H200");
  EXPECT_EQ(devices[2].kind, PlatformKind::rocm);
  EXPECT_EQ(devices[3].kind, PlatformKind::cpu);
  for (const Device& device : devices) {
    EXPECT_EQ(device.libraries, EnumSet{Library::triton_kernels});
    EXPECT_EQ(device.cpu, detect_cpu_features());
    EXPECT_EQ(device.architecture, host_device().architecture);
  }
  EXPECT_EQ(detect_device(from).name, "NVIDIA H200");
}

TEST(Detect, ThisMachineAnswers) { EXPECT_FALSE(detect_devices().empty()); }

}  // namespace detect_test
}  // namespace fp4moe::platform
