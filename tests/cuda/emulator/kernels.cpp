#include "cuda/emulator/kernels.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace fp4moe::emulator {
namespace {

// What kernels did wrong.
class Findings {
 public:
  void add(const std::string& what) {
    const std::scoped_lock lock(mutex_);
    if (options().found != nullptr)
      options().found->push_back(what);
    else if (count_++ < kPrinted)
      fmt::print(stderr, "{}\n", what);
  }
  bool any() const { return count_ != 0; }

 private:
  static constexpr int kPrinted = 20;
  std::mutex mutex_{};
  int count_ = 0;
};

constexpr auto kPoison = std::byte{0xFF};  // NaN, and a large number

}  // namespace

Options& options() {
  static Options only;
  return only;
}

void run(const kernels::cuda::FakeLaunch& launch, const void* params) {
  const std::string_view name =
      std::string_view(launch.kernel).substr(std::min(prefix().size(), launch.kernel.size()));
  const auto found = std::ranges::find(kernels(), name, &KernelRow::name);
  Findings findings;
  const auto fail = [&](const std::string& what) {
    findings.add(fmt::format("emulated kernel {}: {}", name, what));
  };
  if (found == kernels().end()) {
    fail("is not here");
    std::abort();
  }
  const auto memory = [&] {
    auto* const at = static_cast<std::byte*>(found->memory());
    return std::span(at, at == nullptr ? 0 : kSharedBytes);
  };
  const auto used = [&] {
    return memory().first(std::min<std::size_t>(launch.shared_bytes, memory().size()));
  };
  emulator::launch({.blocks = launch.blocks,
                    .threads = launch.threads,
                    .is_cooperative = launch.is_cooperative,
                    .copies = options().copies,
                    .seed = options().seed,
                    .report = fail},
                   {.kernel = [&] { found->call(params); },
                    .before = [&] { std::ranges::fill(memory(), kPoison); },
                    .after =
                        [&] {
                          const auto behind = memory().subspan(used().size());
                          if (std::ranges::any_of(behind, [](auto one) { return one != kPoison; }))
                            fail("wrote beyond its shared memory");
                        },
                    .memory = used});
  if (findings.any()) std::abort();  // whatever came out is wrong
}

}  // namespace fp4moe::emulator
