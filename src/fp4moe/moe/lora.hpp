// Low-rank additions to experts. For a token with adapter a and an assignment to expert e, with
// router weight r, input x and activation output h (before its quantization):
//
//   gate += B_gate (A_gate x)     up += B_up (A_up x)     y += r * B_down (A_down h)
//
// B already holds alpha / rank. A fused adapter (gpt-oss) has one A for gate and up and interleaves
// the rows of B: two views with a stride. All values are float32; adapters are stored in 16 bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace fp4moe::moe {

struct FloatMatrix {
  const float* data = nullptr;
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t stride = 0;  // elements from row to row

  std::span<const float> row(std::uint64_t index) const { return {data + index * stride, columns}; }
};

struct LowRank {
  FloatMatrix a{};  // [rank, inputs]
  FloatMatrix b{};  // [outputs, rank]
  bool empty() const { return a.rows == 0; }
};

struct LoraExpert {
  LowRank gate{}, up{}, down{};
};

// The adapters of one rank: in the order of their numbers, each for all local experts.
struct LoraView {
  std::span<const LoraExpert> pairs{};  // [adapters, experts]
  std::size_t experts = 0;

  bool empty() const { return pairs.empty(); }
  std::size_t adapters() const { return experts == 0 ? 0 : pairs.size() / experts; }
  const LoraExpert& at(std::size_t adapter, std::size_t expert) const {
    return pairs[adapter * experts + expert];
  }
};

}  // namespace fp4moe::moe
