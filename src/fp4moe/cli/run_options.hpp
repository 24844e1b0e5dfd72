// How a layer is to be run, in words: options of `run`, and the specifications of `diff`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/runtime/run.hpp"

namespace fp4moe::cli {

constexpr std::uint64_t kMaxTokens = 1 << 20;  // that are made from a seed

struct RunArgs {
  std::string backend = "auto", policy = "native", vllm{}, device = "auto", engine = "auto",
              numerics{}, activations{}, weights = "auto";
  std::string tp = "1", ep = "1", exchange{}, placement = "linear";
  std::string input_scale{};  // "X,H"
  std::vector<std::string> adapters{};
  std::uint64_t threads = 0, batch = 0;
};

// "mpi" as a number of ranks is the caller's business: the split is set, ranks stay 1.
// Errors: run.option, naming the option, what it takes and what was given.
Result<runtime::RunOptions> run_options(const RunArgs& words, std::size_t threads);

// "MARLIN", "backend=MARLIN,tp=2", "numerics=exact,batch=1": the first word without "=" is a
// backend, or "exact".
Result<RunArgs> parse_specification(std::string_view text);

// The layers of a model by their block's number; empty: the first. "all": every one.
Result<std::vector<std::size_t>> choose_layers(const runtime::Model& model,
                                               const std::string& which);

// The type that the GEMMs read activations as: bf16 if they are not quantized.
std::string activations_of(const runtime::LayerRun& run);

Json to_json(const runtime::LayerRun& run);
Json to_json(const runtime::Comparison& comparison, std::uint64_t columns);

}  // namespace fp4moe::cli
