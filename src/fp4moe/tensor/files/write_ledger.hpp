// Proves that a tensor was written exactly once, whatever the order and number of writers, in two
// words per tensor and without locks.
//
// Pieces [b, e) tile [0, n) exactly when their ends, without n, are their begins, without 0: they
// then form one chain from 0 to n (a piece only leads upwards, so there are no circles). With a
// mixing function h the two multisets are compared by one sum,
//
//   sum of h(e) - h(b) over all pieces  ==  h(n) - h(0),
//
// which a gap paired with an overlap of the same size does not satisfy but by chance of 2^-64.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fp4moe/base/random.hpp"

namespace fp4moe::tensor {

class WriteLedger {
 public:
  WriteLedger() = default;
  explicit WriteLedger(std::size_t tensors) : pages_(tensors) {}

  // May be called from any number of threads.
  void record(std::size_t tensor, std::uint64_t begin, std::uint64_t end) {
    if (begin == end) return;
    Page& page = pages_[tensor];
    std::atomic_ref(page.bytes).fetch_add(end - begin, std::memory_order_relaxed);
    std::atomic_ref(page.chain).fetch_add(mix(end) - mix(begin), std::memory_order_relaxed);
  }

  // The rest is for when all writers are done.
  std::uint64_t bytes(std::size_t tensor) const { return pages_[tensor].bytes; }
  bool is_tiled(std::size_t tensor, std::uint64_t size) const {
    const Page& page = pages_[tensor];
    return page.bytes == size && page.chain == mix(size) - mix(0);
  }

 private:
  struct Page {
    std::uint64_t bytes = 0, chain = 0;
  };
  static std::uint64_t mix(std::uint64_t position) { return SplitMix64(position).next(); }

  std::vector<Page> pages_{};
};

}  // namespace fp4moe::tensor
