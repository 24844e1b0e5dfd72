// Test checkpoints: seeded, of any size, in every dialect and unquantized, whole or with a known
// defect.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

// Unquantized forms: the family's own, or transformers 5's fused [experts, 2 * intermediate,
// hidden] for families that keep their experts apart.
enum class Unquantized : std::uint8_t { own, fused };

struct SynthOptions {
  std::string model = "gpt-oss-20b";
  std::optional<Dialect> dialect{};          // absent: the model's usual one
  std::optional<WeightFormat> format{};      // absent: the dialect's, else the model's
  std::optional<Unquantized> unquantized{};  // given: bfloat16 instead of a dialect
  std::optional<Grouping> grouping{};        // for dialects that come in several
  std::uint64_t layers = 1;                  // MoE layers
  std::optional<std::uint64_t> experts{}, hidden{}, intermediate{};
  std::uint64_t seed = 1;
  std::uint64_t shards = 1;        // about so many
  bool with_other_tensors = true;  // router, attention, norms, embeddings
  bool with_input_scales = true;   // NVFP4 only
  std::string defect{};            // a name of synth_defects(); empty: none
  std::size_t threads = 1;
  ProgressFunction progress{};
};

struct SynthReport {
  std::string model{}, dialect{};
  WeightFormat format = WeightFormat::mxfp4;
  MoeShape shape{};
  std::uint64_t layers = 0, bytes = 0, shards = 0;
  double seconds = 0;
};

// Errors: models.unknown, synth.dialect, synth.layers, synth.size, synth.defect.
Result<SynthReport> synth(const SynthOptions& options, const std::string& out);

// Bytes of a checkpoint of these options, for progress.
Result<std::uint64_t> synth_bytes(const SynthOptions& options);

struct SynthDefect {
  std::string_view name;
  std::string_view what;  // human-readable
};
std::span<const SynthDefect> synth_defects();

}  // namespace fp4moe::checkpoint
