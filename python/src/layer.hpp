// A layer that is loaded and processed. Calls wait for each other; one that is closed meanwhile
// lives until its last call returns.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "fp4moe/moe/cuda/device_session.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/runtime/pool.hpp"
#include "model.hpp"

namespace fp4moe::python {

struct OpenLayer {
  OpenLayer(Model source, std::uint64_t place, runtime::MoeLayer result)
      : model(std::move(source)), number(place), layer(std::move(result)) {}

  Model model;           // empty: of Layer.from_weights, whose arrays are gone
  std::uint64_t number;  // among the model's layers
  runtime::MoeLayer layer;
  std::optional<moe::cuda::DeviceSession> session{};  // from the first call with arrays on a GPU
  std::mutex mutex{};                                 // taken without the GIL
};

// The request for a layer, in the words of the command line.
struct LayerWords {
  std::string engine, backend, policy, device, numerics, activations, weights;
  std::int64_t threads = 0;
  std::pair<std::int64_t, std::int64_t> tp{0, 1}, ep{0, 1};  // rank, size
};

// All layers and kernels of the process that have as many threads have the same ones, whatever model
// they are of. Where torch is loaded they are torch's, and as many as it has unless a number was
// asked for; FP4MOE_OPENMP=0 turns that off.
std::shared_ptr<ThreadPool> shared_pool(std::size_t threads, bool is_asked_for);
// The same for a layer's options; `asked` is the caller's number, 0 where there is none.
void take_threads(std::int64_t asked, runtime::LayerOptions& options);

// Errors: options.negative, choice.*, those of the ranks.
Result<runtime::LayerOptions> options_of(const LayerWords& words);

class Layer {
 public:
  static Layer of(std::shared_ptr<OpenLayer> open) { return Layer(std::move(open)); }
  static Layer open(const Model& model, std::int64_t number, const LayerWords& words);
  ~Layer();
  Layer(Layer&&) = default;
  Layer& operator=(Layer&&) = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Errors: layer.closed; layer.forked in a child process, which has none of the layer's threads.
  std::shared_ptr<OpenLayer> get() const;
  void close();
  bool is_closed() const { return open_ == nullptr; }

 private:
  explicit Layer(std::shared_ptr<OpenLayer> open);
  bool is_of_another_process() const;

  std::shared_ptr<OpenLayer> open_{};
  std::uint64_t process_ = 0;  // the one that opened it
};

}  // namespace fp4moe::python
