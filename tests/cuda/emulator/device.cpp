#include "cuda/emulator/device.hpp"

#include <span>
#include <vector>

#include <fmt/format.h>

namespace fp4moe::emulator {

using kernels::cuda::Cubin;
using kernels::cuda::Device;
using kernels::cuda::FakeDriver;
using kernels::cuda::Family;

FakeDriver& driver() {
  static FakeDriver* const only = kernels::cuda::open_fake_driver(FP4MOE_FAKE_DRIVER);
  return *only;
}

void reset_driver() {
  driver() = FakeDriver{};
  driver().memory_bytes = std::size_t{1} << 30;
  driver().run = run;
  if constexpr (kFamily == Family::sm80) {
    driver().major = 8;
    driver().minor = 9;
    driver().shared_bytes = 99 * 1024;
    driver().multiprocessors = 128;
  } else {
    driver().multiprocessors = 6;
  }
  options() = {};
}

Result<std::shared_ptr<const Device>> open_device() {
  static const std::vector<std::string> codes = [] {
    std::vector<std::string> all;
    const std::span<const std::string_view> names =
        kFamily == Family::sm80 ? std::span<const std::string_view>(kernels::cuda::kSm80Kernels)
                                : kernels::cuda::kKernels;
    for (const std::string_view kernel : names)
      all.push_back(fmt::format("{}{}{}", kernels::cuda::kFakeCode, prefix(), kernel));
    return all;
  }();
  static const std::vector<Cubin> cubins = [] {
    std::vector<Cubin> all;
    for (const std::string& code : codes)
      all.push_back({"fake", std::as_bytes(std::span(code.data(), code.size() + 1)), kFamily});
    return all;
  }();
  return Device::open(0, {.library = FP4MOE_FAKE_DRIVER, .kernels = cubins, .family = kFamily});
}

std::string launched() {
  std::string names;
  for (const auto& launch : driver().launches)
    names += (names.empty() ? "" : " ") + launch.kernel.substr(prefix().size());
  driver().launches.clear();
  return names;
}

}  // namespace fp4moe::emulator
