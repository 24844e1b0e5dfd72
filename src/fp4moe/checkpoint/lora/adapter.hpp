// A LoRA adapter as PEFT saves it (adapter_config.json and adapter_model.safetensors), opened for
// the experts of a model: which of its numbers belong to which expert's matrix. Nothing is read yet
// but headers.
//
// Every form of storage ends as the same two views: A [rank, inputs] and B [outputs, rank], each a
// start and two distances in a tensor.
//
//   form                     A                   B
//   a module per expert      [r, in]             [out, r]
//   one tensor, 3-D          [E or 1, r, in]     [E or 1, out, r]      1: common to all experts
//   wrapped parameter        [E * r, in]         [out, r * E]          expert e, rank k:
//                            row e * r + k       column k * E + e
//   the same, older PEFT     [E * r, out]        [in, r * E]           the factors change places
//
// gate_up holds gate and up in one: rows of B are interleaved in gpt-oss, elsewhere gate comes
// first.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/lora/adapter_config.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// A layer an adapter may change.
struct AdapterTarget {
  std::uint64_t index = 0;  // the layer's number in its name
  std::string prefix{};     // "model.layers.3.mlp."
  MoeShape shape{};
  bool is_gpt_oss = false;  // interleaved gate and up in fused factors; tensor parallelism cuts so
};
std::vector<AdapterTarget> adapter_targets(const Checkpoint& checkpoint);

// A matrix inside a tensor: element (row, column) is number first + row * row_step + column *
// column_step of it.
struct FactorPlace {
  const tensor::StoredTensor* tensor = nullptr;
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t first = 0, row_step = 0, column_step = 0;

  friend bool operator==(const FactorPlace&, const FactorPlace&) = default;
};

struct LowRankPlace {
  FactorPlace a{}, b{};
  float scale = 0;  // of B, not yet applied
  std::uint64_t rank() const { return a.rows; }
  bool empty() const { return a.tensor == nullptr; }
};

class Adapter {
 public:
  // Errors: adapter.missing, adapter.config, adapter.type, adapter.unsupported, adapter.pattern,
  // adapter.name, adapter.pair, adapter.layer, adapter.expert, adapter.no_gate, adapter.dtype,
  // adapter.rank, adapter.shape, adapter.duplicate, and those of the files.
  static Result<Adapter> open(const std::string& folder, std::vector<AdapterTarget> targets);

  const std::string& folder() const { return folder_; }
  const AdapterConfig& config() const { return config_; }
  const tensor::Store& store() const { return *store_; }
  std::span<const AdapterTarget> targets() const { return targets_; }
  // Modules outside the experts that the adapter changes too, by name.
  std::span<const std::string> other_modules() const { return other_modules_; }

  // `layer` is a position in targets(). Empty where the adapter changes nothing.
  const LowRankPlace& place(std::size_t layer, Projection which, std::uint64_t expert) const;
  bool touches(std::size_t layer) const { return !places_[layer].empty(); }
  bool touches(std::size_t layer, std::uint64_t expert) const;

 private:
  friend class AdapterBuilder;
  using Triple = std::array<LowRankPlace, 3>;  // by Projection

  std::string folder_{};
  AdapterConfig config_{};
  std::unique_ptr<tensor::Store> store_{};
  std::vector<AdapterTarget> targets_{};
  std::vector<std::vector<Triple>> places_{};  // [layer][expert]; empty: untouched
  std::vector<std::string> other_modules_{};
};

// A part of a factor as numbers, dense: rows x columns of `out`, each times `scale`. Refuses what
// is not finite (adapter.not_finite).
struct FactorPart {
  Range rows{}, columns{};
  float scale = 1;
};
Result<Done> read_factor(const Adapter& adapter, const FactorPlace& place, const FactorPart& part,
                         std::span<float> out);
// The same from a tensor's memory, of bf16, f16 or f32: the first element that is not finite, or
// none.
std::optional<std::uint64_t> decode_factor(const std::byte* bytes, tensor::DType dtype,
                                           const FactorPlace& place, const FactorPart& part,
                                           std::span<float> out);

}  // namespace fp4moe::checkpoint
