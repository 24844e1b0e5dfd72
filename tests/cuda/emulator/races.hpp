// Races in the shared memory of an emulated block: two accesses of the same byte, one of them a write,
// that nothing orders. What happens before what is followed exactly, with vector clocks, so a race is
// found in whatever order the threads ran.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fp4moe::emulator {

// Component a: how much of actor a happened before. Actors are the threads of a block, then the
// asynchronous copies of each mbarrier.
using VectorClock = std::vector<std::uint32_t>;

enum class Access : std::uint8_t { read, write, atomic };

class Races {
 public:
  static constexpr unsigned kCopyActors = 64;
  using Report = std::function<void(const std::string& sentence)>;

  // `memory`: what the threads share; other memory is not looked at.
  Races(std::span<const std::byte> memory, unsigned threads, Report report);

  void access(unsigned thread, Access kind, const void* at, std::size_t bytes);
  // An asynchronous copy of `thread` writes. `issued`: its clock when it asked for the copy. `done` gets
  // what happens before whoever waits for the copy.
  void copy(unsigned actor, unsigned thread, const VectorClock& issued, const void* to,
            std::size_t bytes, VectorClock& done);

  // What `thread` did so far happens before whatever acquires `to`.
  void release(unsigned thread, VectorClock& to);
  void acquire(unsigned thread, const VectorClock& from);
  // Of a warp: all that a lane did until its tick happens before whoever joins the ticks.
  std::uint32_t tick(unsigned thread) { return clocks_[thread][thread]++; }
  void join_ticks(unsigned thread, std::span<const std::uint32_t, 32> of_lanes);
  VectorClock begin() const { return VectorClock(threads_ + kCopyActors); }

 private:
  // The `count`th part of an actor's time; 0: none.
  struct Epoch {
    Epoch() = default;
    Epoch(unsigned by, std::uint32_t nth, bool atomic = false)
        : actor(by & 2047), count(nth & 0xFFFFF), is_atomic(atomic ? 1 : 0) {}
    std::uint32_t actor : 11 = 0, count : 20 = 0, is_atomic : 1 = 0;
  };
  static constexpr std::uint32_t kMany =
      2047;  // as the actor of reads: `count` says which of readers_
  struct Cell {
    Epoch write{}, read{};
  };
  // Bytes that are mostly accessed together.
  static constexpr std::size_t kLine = 16;
  struct Line {
    Cell all{};
    std::uint32_t bytes = kWhole;  // index of their own cells in split_
  };
  static constexpr std::uint32_t kWhole = ~0u;
  using Bytes = std::array<Cell, kLine>;
  struct Actor {
    const VectorClock& clock;
    Epoch now;
    bool is_after(Epoch e) const { return e.count <= clock[e.actor]; }
  };

  std::span<const std::byte> touched(const void* at, std::size_t bytes) const;
  void access(const Actor& actor, Access kind, std::span<const std::byte> bytes);
  void read(const Actor& actor, Cell& cell, std::size_t byte);
  void write(const Actor& actor, Access kind, Cell& cell, std::size_t byte);
  Bytes& split(Line& line);
  std::uint32_t new_readers();
  void forget_readers(Cell& cell);
  void found(const Actor& actor, const char* does, Epoch other, const char* did, std::size_t byte);
  std::string name(Epoch of) const;

  std::span<const std::byte> memory_;
  unsigned threads_;
  Report report_;
  std::vector<VectorClock> clocks_;            // of threads
  std::vector<std::vector<unsigned>> copies_;  // of an actor: the threads that asked for them
  std::vector<Line> lines_;
  std::vector<Bytes> split_{};
  std::vector<std::uint32_t> free_split_{};
  std::vector<VectorClock> readers_{};  // of cells with many: the last read of each actor
  std::vector<std::uint32_t> free_readers_{};
  bool is_reported_ = false;  // a race of this access
};

}  // namespace fp4moe::emulator
