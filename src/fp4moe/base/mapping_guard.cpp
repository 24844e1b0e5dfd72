#include "fp4moe/base/mapping_guard.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace fp4moe {
namespace {

constexpr std::size_t kSlots = 4096;  // files mapped at once; further ones are not watched
constexpr std::size_t kLongestPath = 1024;

// Read by the handler, so without locks: `begin` is written last and taken away first.
struct Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> is_taken{false};
  std::array<char, kLongestPath> path{};
};

enum class State : int { same, noting, changed };

struct Watch {
  std::array<Slot, kSlots> slots{};
  std::atomic<std::size_t> used{0};  // slots behind this one were never taken
  std::atomic<State> state{State::same};
  std::array<char, kLongestPath> changed_path{};
  std::uintptr_t page = 0;
  std::mutex mutex{};  // of the next two
  std::size_t guards = 0;
  struct sigaction before {};
};
// Signals belong to the process, and so does this. Zeros that take no memory before they are used,
// and are never torn down: files may outlive main.
static_assert(std::is_trivially_destructible_v<Watch>);
Watch& watch() {
  static constinit Watch result;
  return result;
}

const Slot* find(const Watch& all, std::uintptr_t address) {
  const std::size_t used = all.used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    const Slot& slot = all.slots[i];
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < slot.end.load(std::memory_order_relaxed))
      return &slot;
  }
  return nullptr;
}

// From the page of `address` to the end of the mapping: zeros.
bool put_zeros(const Watch& all, const Slot& slot, std::uintptr_t address) {
  const std::uintptr_t begin = address / all.page * all.page;
  const std::uintptr_t end = slot.end.load(std::memory_order_relaxed);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that the system gave us
  return mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

extern "C" void on_bus_error(int, siginfo_t* info, void*) {
  Watch& all = watch();
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Slot* slot = find(all, address);
  if (slot == nullptr || !put_zeros(all, *slot, address)) {
    sigaction(SIGBUS, &all.before, nullptr);  // the same read again, for the host's handler
    return;
  }
  State expected = State::same;
  if (!all.state.compare_exchange_strong(expected, State::noting)) return;
  all.changed_path = slot->path;
  all.state.store(State::changed, std::memory_order_release);
}

Error changed(std::string_view path) {
  return invalid("file.changed", "the file became shorter while it was read")
      .in(path)
      .expects("a file that is not written to", "a read behind its new end")
      .try_this("run it again once nothing writes to it");
}

}  // namespace

MappingGuard::MappingGuard() {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  if (all.guards++ != 0) return;
  all.page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  all.state.store(State::same);
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &all.before);
}

MappingGuard::~MappingGuard() {
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  if (--all.guards != 0) return;
  sigaction(SIGBUS, &all.before, nullptr);
  all.state.store(State::same);
}

WatchedMapping::WatchedMapping(const void* begin, std::size_t bytes, const std::string& path) {
  Watch& all = watch();
  for (std::size_t i = 0; i < kSlots; ++i) {
    Slot& slot = all.slots[i];
    bool expected = false;
    if (!slot.is_taken.compare_exchange_strong(expected, true)) continue;
    slot.path.fill('\0');
    std::memcpy(slot.path.data(), path.data(), std::min(path.size(), kLongestPath - 1));
    slot.end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes, std::memory_order_relaxed);
    slot.begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
    std::size_t used = all.used.load();
    while (used < i + 1 && !all.used.compare_exchange_weak(used, i + 1)) {
    }
    slot_ = i;
    return;
  }
}

WatchedMapping::WatchedMapping(WatchedMapping&& other) noexcept
    : slot_(std::exchange(other.slot_, kNone)) {}

WatchedMapping& WatchedMapping::operator=(WatchedMapping&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

WatchedMapping::~WatchedMapping() {
  if (slot_ == kNone) return;
  Slot& slot = watch().slots[slot_];
  slot.begin.store(0);
  slot.is_taken.store(false);
}

Result<Done> check_mappings() {
  const Watch& all = watch();
  switch (all.state.load(std::memory_order_acquire)) {
    case State::same:
      return Done{};
    case State::noting:  // another thread is at it
      return changed({});
    case State::changed:
      break;
  }
  return changed(all.changed_path.data());
}

Error mapping_changed(const void* address) {
  const Slot* slot = find(watch(), reinterpret_cast<std::uintptr_t>(address));
  return changed(slot == nullptr ? std::string_view() : std::string_view(slot->path.data()));
}

}  // namespace fp4moe
