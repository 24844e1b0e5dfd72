#include "fp4moe/kernels/cuda/driver.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/kernels/cuda/device_state.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/open_library.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::kernels::cuda {
namespace {

constexpr int kOldestDriver = 12000;  // CUDA 12.0: launches with attributes, Hopper

struct FamilyRow {
  std::string_view name;
  std::string_view capabilities;  // that it runs on, in words
  bool (*runs_on)(const DeviceFacts& facts);
};
// In the order of Family.
constexpr FamilyRow kFamilies[] = {
    {"sm90", "compute capability 9.0",
     [](const DeviceFacts& facts) { return facts.major == 9 && facts.minor == 0; }},
    {"sm80", "compute capability 8.0 or newer",
     [](const DeviceFacts& facts) { return facts.major >= 8; }},
};
const FamilyRow& row(Family family) { return kFamilies[static_cast<std::size_t>(family)]; }

bool has(std::span<const Cubin> kernels, Family family) {
  return std::ranges::find(kernels, family, &Cubin::family) != kernels.end();
}

// The family that was asked for, if any.
Result<std::optional<Family>> wanted_family(const DriverFrom& from) {
  if (from.family) return from.family;
  const Result<platform::Settings> settings = platform::read_settings();
  if (!settings) return settings.why();
  if (!settings->cuda_kernels) return std::optional<Family>{};
  return std::optional(*settings->cuda_kernels == "sm90" ? Family::sm90 : Family::sm80);
}

std::string version_text(int version) {
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

// A driver that works, has devices and can run our kernels. If there is none, the detection of
// devices gives the reason.
struct Driver {
  std::shared_ptr<const EntryPoints> calls{};
  int version = 0, devices = 0;
};

Error not_working(const std::string& library, std::string_view id) {
  const platform::Probe probe = platform::probe_cuda(platform::load_cuda_driver(library));
  return error(ErrorCode::unavailable, id, probe.reason).try_this(probe.remedy);
}

Result<Driver> working_driver(const DriverFrom& from) {
  if (from.kernels.empty() && platform::opens_libraries())
    return error(ErrorCode::unavailable, "cuda.build", "this build has no CUDA kernels")
        .expects("a build with FP4MOE_CUDA=ON", "FP4MOE_CUDA=OFF")
        .try_this("build with `make cuda`, which needs nvcc and no GPU");
  auto calls = load_entry_points(from.library);
  if (!calls) return calls.why();
  Driver driver{.calls = *calls};
  if (const Code code = driver.calls->init(0); code != code_success)
    return not_working(from.library, code == code_no_device ? "cuda.device" : "cuda.driver");
  if (driver.calls->driver_version(&driver.version) != code_success) driver.version = 0;
  if (driver.version < kOldestDriver)
    return error(ErrorCode::unavailable, "cuda.driver", "the NVIDIA driver is too old")
        .expects(fmt::format("{} or newer", version_text(kOldestDriver)),
                 version_text(driver.version))
        .try_this("update the NVIDIA driver");
  const Code code = driver.calls->device_count(&driver.devices);
  if (code != code_success || driver.devices <= 0) return not_working(from.library, "cuda.device");
  return driver;
}

Result<DeviceFacts> facts_of(const Driver& driver, int ordinal, int& handle) {
  const EntryPoints& calls = *driver.calls;
  DeviceFacts facts{.ordinal = ordinal, .driver_version = driver.version};
  std::array<char, 256> title{};
  std::size_t memory = 0;
  int shared = 0, l2 = 0, cooperative = 0;
  Code code = calls.device(&handle, ordinal);
  const auto ask = [&](int& into, DeviceAttribute attribute) {
    if (code == code_success) code = calls.device_attribute(&into, attribute, handle);
  };
  ask(facts.major, DeviceAttribute::major);
  ask(facts.minor, DeviceAttribute::minor);
  ask(facts.multiprocessors, DeviceAttribute::multiprocessors);
  ask(shared, DeviceAttribute::shared_bytes_opt_in);
  ask(l2, DeviceAttribute::l2_bytes);
  ask(cooperative, DeviceAttribute::cooperative_launch);
  ask(facts.clock_khz, DeviceAttribute::clock_rate);
  ask(facts.pci_domain, DeviceAttribute::pci_domain);
  ask(facts.pci_bus, DeviceAttribute::pci_bus);
  ask(facts.pci_device, DeviceAttribute::pci_device);
  if (code == code_success) code = calls.device_memory(&memory, handle);
  if (code == code_success)
    code = calls.device_name(title.data(), static_cast<int>(title.size() - 1), handle);
  if (code != code_success) return failure(calls, code, fmt::format("ask device {}", ordinal));
  title.back() = '\0';
  facts.name = printable(title.data());
  facts.memory_bytes = memory;
  facts.shared_bytes = static_cast<std::uint64_t>(std::max(shared, 0));
  facts.l2_bytes = static_cast<std::uint64_t>(std::max(l2, 0));
  facts.launches_cooperatively = cooperative != 0;
  return facts;
}

Result<DeviceFacts> checked_facts(const Driver& driver, int ordinal, int& handle) {
  if (ordinal < 0 || ordinal >= driver.devices)
    return usage("cuda.ordinal", fmt::format("there is no CUDA device {}", ordinal))
        .expects(driver.devices == 1 ? "0" : fmt::format("0 to {}", driver.devices - 1),
                 std::to_string(ordinal))
        .try_this("CUDA_VISIBLE_DEVICES decides which devices are seen and how they are counted");
  return facts_of(driver, ordinal, handle);
}

// Devices in use, one object each.
struct OpenDevices {
  std::mutex mutex{};
  std::map<int, std::weak_ptr<const Device>> devices{};
};

OpenDevices& open_devices() {
  static OpenDevices all;
  return all;
}

}  // namespace

bool is_built() { return !cubins().empty(); }

// nvcc gives every kernel's instructions a section of their own, whose name ends with a zero. The
// driver is not asked: for each file without the kernel it would report an error, which tools show.
std::vector<std::string> kernel_names(const Cubin& cubin) {
  constexpr std::string_view kSection = ".text.";
  const std::string_view bytes(reinterpret_cast<const char*>(cubin.code.data()), cubin.code.size());
  std::vector<std::string> names;
  for (std::size_t at = bytes.find(kSection); at != bytes.npos; at = bytes.find(kSection, at)) {
    at += kSection.size();
    const std::size_t end = bytes.find('\0', at);
    if (end == bytes.npos) break;
    names.emplace_back(bytes.substr(at, end - at));
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<std::vector<DeviceFacts>> devices(const DriverFrom& from) {
  const auto driver = working_driver(from);
  if (!driver) return driver.why();
  std::vector<DeviceFacts> all;
  for (int ordinal = 0; ordinal < driver->devices; ++ordinal) {
    int handle = 0;
    auto facts = facts_of(*driver, ordinal, handle);
    if (!facts) return facts.why();
    all.push_back(std::move(*facts));
  }
  return all;
}

std::string_view name(Family family) { return row(family).name; }

Result<Family> choose_family(const DeviceFacts& facts, const DriverFrom& from) {
  const Result<std::optional<Family>> wanted = wanted_family(from);
  if (!wanted) return wanted.why();
  std::optional<Family> last;  // of those that the build has: the error names it
  for (const Family family : {Family::sm90, Family::sm80}) {
    const bool is_meant = !*wanted || **wanted == family;
    if (!is_meant || !has(from.kernels, family)) continue;
    if (row(family).runs_on(facts)) return family;
    last = family;
  }
  const std::string what =
      fmt::format("the kernels do not run on device {}, {}", facts.ordinal, facts.name);
  if (!last)
    return error(ErrorCode::unavailable, "cuda.architecture", what)
        .expects(fmt::format("a build with the kernels {}", name(wanted->value_or(Family::sm90))),
                 "a build without them")
        .try_this("build with `make cuda`, or take another engine");
  return error(ErrorCode::unavailable, "cuda.architecture", what)
      .expects(std::string(row(*last).capabilities), fmt::format("{}.{}", facts.major, facts.minor))
      .try_this(*wanted ? "unset FP4MOE_CUDA_KERNELS, or take another engine"
                        : "take a GPU since Ampere (A100, RTX 30 and newer), or another engine");
}

Device::Device() : state_(std::make_unique<State>()) {}
Device::~Device() = default;

Device::State::~State() {
  if (context == nullptr) return;
  in_context(*driver, context, [this](const EntryPoints& calls) {
    for (const Module module : modules) calls.unload_module(module);
    return code_success;
  });
  driver->release_context(handle);
}

Result<std::shared_ptr<const Device>> Device::open(int ordinal) {
  OpenDevices& all = open_devices();
  const std::lock_guard lock(all.mutex);
  if (auto known = all.devices[ordinal].lock()) return known;
  auto opened = open(ordinal, {});
  if (opened) all.devices[ordinal] = *opened;
  return opened;
}

Result<std::shared_ptr<const Device>> Device::open(int ordinal, const DriverFrom& from) {
  const auto driver = working_driver(from);
  if (!driver) return driver.why();
  const std::shared_ptr<Device> device(new Device);
  State& state = *device->state_;
  state.driver = driver->calls;
  const EntryPoints& calls = *state.driver;
  auto facts = checked_facts(*driver, ordinal, state.handle);
  if (!facts) return facts.why();
  const Result<Family> family = choose_family(*facts, from);
  if (!family) return family.why();
  device->family_ = *family;
  if (from.shared_bytes != 0) facts->shared_bytes = from.shared_bytes;
  if (from.multiprocessors != 0) facts->multiprocessors = from.multiprocessors;
  device->facts_ = std::move(*facts);
  Context context = nullptr;
  if (const Code code = calls.retain_context(&context, state.handle); code != code_success)
    return failure(calls, code, fmt::format("use device {}", ordinal));
  state.context = context;

  const Current current(calls, context);
  if (current.code() != code_success)
    return failure(calls, current.code(), fmt::format("use device {}", ordinal));
  for (const Cubin& cubin : from.kernels) {
    if (cubin.family != *family) continue;
    Module module = nullptr;
    const Code code = calls.load_module(&module, cubin.code.data());
    if (code == code_out_of_memory)
      return failure(calls, code, fmt::format("load the kernels '{}'", cubin.name));
    if (code != code_success)
      return error(ErrorCode::unavailable, "cuda.load",
                   fmt::format("the driver does not load the kernels '{}'", cubin.name))
          .expects("machine code that this driver accepts",
                   fmt::format("{} from a driver for {}", words_of(calls, code),
                               version_text(driver->version)))
          .try_this("update the NVIDIA driver, or build with the nvcc of its CUDA version");
    state.modules.push_back(module);
    for (std::string& name : kernel_names(cubin)) state.module_of.emplace(std::move(name), module);
  }
  return std::shared_ptr<const Device>(device);
}

Result<Function> Device::function(std::string_view name) const {
  const State& state = *state_;
  const auto holder = state.module_of.find(name);
  if (holder == state.module_of.end())
    return error(ErrorCode::unavailable, "cuda.kernel",
                 fmt::format("there is no kernel '{}'", name))
        .expects("the name of a kernel of this build", name);
  Function found = nullptr;
  const auto done = in_context(
      *state.driver, state.context, fmt::format("find the kernel {}", name),
      [&](const EntryPoints& calls) {
        const Code code = calls.module_function(&found, holder->second, holder->first.c_str());
        // By default the driver loads code at its first use. In a capture it cannot.
        const bool loads = code == code_success && calls.load_function != nullptr;
        return loads ? calls.load_function(found) : code;
      });
  if (!done) return done.why();
  return found;
}

}  // namespace fp4moe::kernels::cuda
