// One layer on some tokens, alone or on several ranks, from a checkpoint or a converted folder:
// what the commands run and diff do.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/lora_load.hpp"
#include "fp4moe/moe/reference/engine.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/runtime/run_input.hpp"

namespace fp4moe::runtime {

// A model opened for running, whichever of the two it is.
class Model {
 public:
  static Result<Model> open(const std::string& path);
  // A checkpoint that is open already; its path() is the folder, "" for tensors in memory.
  static Result<Model> of(checkpoint::Checkpoint checkpoint);

  std::size_t layers() const;
  std::uint64_t layer_index(std::size_t number) const;  // the block's number in the model
  std::uint64_t hidden(std::size_t number) const;
  bool is_converted() const { return folder_ != nullptr; }
  // The manifest of a converted folder; null for a checkpoint.
  const convert::Manifest* manifest() const {
    return folder_ == nullptr ? nullptr : &folder_->manifest();
  }
  const std::string& path() const { return path_; }
  Result<LayerFacts> facts(std::size_t number) const;
  FindTensor finder() const;
  // A digest of the tensors' names, types and shapes, of the first bytes of some of them and of the
  // routers of these layers, in hexadecimal digits.
  std::string fingerprint(std::span<const std::size_t> layers) const;
  // The same of all that these adapters hold, one for each; "none". Errors: those of adapters().
  Result<std::string> adapters_fingerprint(std::span<const std::string> folders) const;
  Result<MoeLayer> layer(std::size_t number, LayerOptions options) const;
  // The adapters in these folders for one rank's share of a layer. Errors: adapter.*, lora.*,
  // run.converted (adapters name a checkpoint's layers).
  Result<moe::LoraSet> adapters(std::size_t number, std::span<const std::string> folders,
                                const checkpoint::Slice& slice) const;

 private:
  Result<std::vector<checkpoint::Adapter>> open_adapters(
      std::span<const std::string> folders) const;

  std::string path_{};
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_{};
  std::shared_ptr<const convert::ConvertedFolder> folder_{};
};

enum class Split : std::uint8_t { none, tensor, expert };

struct RunOptions {
  LayerOptions layer{};  // slice and ranks are filled in here
  Split split = Split::none;
  std::uint64_t ranks = 1;                       // threads of this process, unless `group` is given
  moe::exchange::Communicator* group = nullptr;  // MPI: this process is one of its ranks
  moe::exchange::CommunicatorOptions threads{};  // of ranks that are threads
  std::vector<std::string> adapters{};           // folders; tokens name them by their order
  bool checks = false;                           // compute the exact result, too; on every rank
  std::uint64_t seed = 1;                        // of logits, if none are given
  moe::reference::Trace* trace = nullptr;        // reference engine, one rank
};

struct LayerRun {
  std::uint64_t index = 0;
  std::string backend{}, policy{}, why{}, layout{}, engine{}, kernel{}, numerics{}, routing{};
  std::optional<oracle::ReleaseChoice> release{};  // of vLLM, where one was asked for
  std::string quantizes{};
  bool is_monolithic = false;
  std::uint64_t tokens = 0, hidden = 0, top_k = 0;
  std::uint64_t bytes = 0, experts = 0;  // packed weights of one rank, its experts
  std::uint64_t assignments = 0, active = 0,
                weights = 0;             // in use: assignments, experts; elements of an expert
  double load_seconds = 0, seconds = 0;  // all that comes before the call; the call
  moe::Tolerance tolerance{};
  std::vector<float> out{};     // [tokens, hidden]; with MPI on every rank
  std::vector<double> exact{};  // where it was asked for
  std::vector<std::string> warnings{};

  // The least time of the call at these rates: its experts' weights are read once, and two
  // operations are done for each weight and assignment.
  double floor_seconds(double read_gb_per_s, double gflop_per_s) const;
};

// Errors: run.converted (a converted folder is one rank's), run.input (a token asks for an adapter
// that was not given), those of the layer, the exchange and the ranks.
Result<LayerRun> run_layer(const Model& model, std::size_t number, const RunInput& input,
                           const RunOptions& options);

// The whole layer's result in float64, computed by this process alone, for `checks`.
Result<std::vector<double>> run_exact(const Model& model, std::size_t number, const RunInput& input,
                                      const RunOptions& options);

// Fails on all ranks with comm.disagree unless each was asked for the same: these layers of a model
// of the same tensors with the same adapters, on the same tokens, with the same options. Of the
// model's numbers a sample is compared. Before anything else is done; what follows from it (the
// backend that was chosen) is compared by run_layer.
Result<Done> agree_on_request(moe::exchange::Communicator& group, const Model& model,
                              std::span<const std::size_t> layers, const RunInput& input,
                              const RunOptions& options);

// How far two results are apart.
struct Comparison {
  std::size_t elements = 0, unequal = 0;
  double largest = 0;     // magnitude in `a`
  double difference = 0;  // the largest
  double rms = 0;         // of the difference, over that of `a`
  double cosine = 1;
  bool has_nan = false;  // in one of them only
  std::optional<std::size_t> first{}, farthest{};

  double of_largest() const { return largest == 0 ? difference : difference / largest; }
  bool is_within(const moe::Tolerance& allowed) const;
};
Comparison compare(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace fp4moe::runtime
