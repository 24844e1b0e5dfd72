#include "cuda/emulator/races.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace fp4moe::emulator {
namespace {

void join(VectorClock& to, const VectorClock& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

Races::Races(std::span<const std::byte> memory, unsigned threads, Report report)
    : memory_(memory),
      threads_(threads),
      report_(std::move(report)),
      clocks_(threads, begin()),
      copies_(kCopyActors),
      lines_((memory.size() + kLine - 1) / kLine) {
  for (unsigned t = 0; t < threads; ++t) clocks_[t][t] = 1;
}

void Races::release(unsigned thread, VectorClock& to) {
  join(to, clocks_[thread]);
  ++clocks_[thread][thread];
}
void Races::acquire(unsigned thread, const VectorClock& from) { join(clocks_[thread], from); }

void Races::join_ticks(unsigned thread, std::span<const std::uint32_t, 32> of_lanes) {
  const unsigned first = thread / 32 * 32, count = std::min(32u, threads_ - first);
  for (unsigned lane = 0; lane < count; ++lane)
    clocks_[thread][first + lane] = std::max(clocks_[thread][first + lane], of_lanes[lane]);
}

std::span<const std::byte> Races::touched(const void* at, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(at);
  const std::byte* const begin = std::max(first, memory_.data());
  const std::byte* const end = std::min(first + bytes, memory_.data() + memory_.size());
  return begin < end ? std::span(begin, end) : std::span<const std::byte>();
}

void Races::access(unsigned thread, Access kind, const void* at, std::size_t bytes) {
  const std::span<const std::byte> all = touched(at, bytes);
  if (all.empty()) return;
  const VectorClock& clock = clocks_[thread];
  access({clock, Epoch(thread, clock[thread], kind == Access::atomic)}, kind, all);
}

void Races::copy(unsigned actor, unsigned thread, const VectorClock& issued, const void* to,
                 std::size_t bytes, VectorClock& done) {
  copies_[actor].push_back(thread);
  const auto count = static_cast<std::uint32_t>(copies_[actor].size());
  access({issued, Epoch(threads_ + actor, count)}, Access::write, touched(to, bytes));
  join(done, issued);
  done[threads_ + actor] = std::max(done[threads_ + actor], count);
}

void Races::access(const Actor& actor, Access kind, std::span<const std::byte> bytes) {
  is_reported_ = false;
  const auto act = [&](Cell& cell, std::size_t byte) {
    if (kind == Access::read)
      read(actor, cell, byte);
    else
      write(actor, kind, cell, byte);
  };
  const auto begin = static_cast<std::size_t>(bytes.data() - memory_.data());
  for (std::size_t byte = begin, end = begin + bytes.size(); byte < end;) {
    Line& line = lines_[byte / kLine];
    const std::size_t last = std::min(end, byte / kLine * kLine + kLine);
    const bool is_whole = last - byte == kLine;
    if (is_whole && line.bytes == kWhole) {
      act(line.all, byte);
    } else {
      Bytes& cells = split(line);
      for (std::size_t i = byte; i < last; ++i) act(cells[i % kLine], i);
      if (is_whole && kind != Access::read) {  // its bytes are alike again
        line.all = cells[0];
        free_split_.push_back(std::exchange(line.bytes, kWhole));
      }
    }
    byte = last;
  }
}

Races::Bytes& Races::split(Line& line) {
  if (line.bytes != kWhole) return split_[line.bytes];
  if (free_split_.empty()) {
    free_split_.push_back(static_cast<std::uint32_t>(split_.size()));
    split_.emplace_back();
  }
  line.bytes = free_split_.back();
  free_split_.pop_back();
  Bytes& cells = split_[line.bytes];
  cells.fill(line.all);
  if (line.all.read.actor == kMany)
    for (std::size_t i = 1; i < kLine; ++i) {
      const std::uint32_t own = new_readers();
      readers_[own] = readers_[line.all.read.count];
      cells[i].read = Epoch(kMany, own);
    }
  return cells;
}

std::uint32_t Races::new_readers() {
  if (free_readers_.empty()) {
    free_readers_.push_back(static_cast<std::uint32_t>(readers_.size()));
    readers_.push_back(begin());
  }
  const std::uint32_t result = free_readers_.back();
  free_readers_.pop_back();
  return result;
}

void Races::forget_readers(Cell& cell) {
  if (cell.read.actor == kMany) {
    std::ranges::fill(readers_[cell.read.count], 0u);
    free_readers_.push_back(cell.read.count);
  }
  cell.read = {};
}

void Races::read(const Actor& actor, Cell& cell, std::size_t byte) {
  if (!actor.is_after(cell.write)) found(actor, "reads", cell.write, "wrote", byte);
  if (cell.read.actor != kMany) {
    if (cell.read.count == 0 || actor.is_after(cell.read)) {
      cell.read = actor.now;
      return;
    }
    const std::uint32_t many = new_readers();
    readers_[many][cell.read.actor] = cell.read.count;
    cell.read = Epoch(kMany, many);
  }
  readers_[cell.read.count][actor.now.actor] = actor.now.count;
}

void Races::write(const Actor& actor, Access kind, Cell& cell, std::size_t byte) {
  const char* const does = kind == Access::atomic ? "updates" : "writes";
  const bool are_atomic = kind == Access::atomic && cell.write.is_atomic != 0;
  if (!are_atomic && !actor.is_after(cell.write)) found(actor, does, cell.write, "wrote", byte);
  if (cell.read.actor == kMany) {
    const VectorClock& all = readers_[cell.read.count];
    const auto [last, now] = std::ranges::mismatch(all, actor.clock, std::less_equal());
    if (last != all.end())
      found(actor, does, Epoch(static_cast<unsigned>(last - all.begin()), *last), "read", byte);
  } else if (!actor.is_after(cell.read)) {
    found(actor, does, cell.read, "read", byte);
  }
  forget_readers(cell);
  cell.write = actor.now;
}

void Races::found(const Actor& actor, const char* does, Epoch other, const char* did,
                  std::size_t byte) {
  if (std::exchange(is_reported_, true)) return;
  report_(fmt::format("byte {} of shared memory: {} {} what {} {}, and nothing orders them", byte,
                      name(actor.now), does, name(other), did));
}

std::string Races::name(Epoch of) const {
  const auto thread_name = [](unsigned thread) {
    return fmt::format("thread {} (warp {})", thread, thread / 32);
  };
  if (of.actor < threads_) return thread_name(of.actor);
  const unsigned copier = of.actor - threads_;
  return fmt::format("a copy for mbarrier {}, of {},", copier,
                     thread_name(copies_[copier][of.count - 1]));
}

}  // namespace fp4moe::emulator
