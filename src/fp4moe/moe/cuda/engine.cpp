#include "fp4moe/moe/cuda/engine.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/device_session.hpp"
#include "fp4moe/moe/cuda/handles.hpp"
#include "fp4moe/moe/cuda/host_rows.hpp"
#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::moe::cuda {
namespace {

using kernels::cuda::Device;
using kernels::cuda::Memory;

// A pass: tokens [begin, begin + count), or those rows of every expert's batch.
struct HostPass {
  std::uint64_t begin = 0, count = 0;
};

class Computation final : public Experts {
 public:
  Computation(DeviceLayer layer, std::shared_ptr<const Device> device, OwnStream stream,
              std::uint64_t max_bytes)
      : layer_(std::move(layer)),
        device_(std::move(device)),
        stream_(std::move(stream)),
        max_bytes_(max_bytes) {}

  const DeviceLayer& layer() const { return layer_; }
  const ExpertsProblem& problem() const override { return layer_.problem(); }
  std::string_view engine() const override { return "cuda"; }
  std::string kernel() const override { return layer_.kernel(); }

  Result<Done> compute(const ExpertsCall& call, OutputForm form, const MutableRows& out) override {
    if (const auto fine = check(problem(), call, form, out); !fine) return fine.why();
    const bool is_batched = form == OutputForm::batches;
    const std::uint64_t all = is_batched ? call.in.capacity : call.in.x.rows;
    if (all == 0 || (is_batched && problem().shape.experts == 0)) return Done{};
    const Result<std::uint64_t> step = reserve_for(call, form);
    if (!step) return step.why();
    if (const auto done = upload_constants(call); !done) return done.why();
    for (std::uint64_t begin = 0; begin < all; begin += *step) {
      if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
      const HostPass pass{begin, std::min(*step, all - begin)};
      const auto done = is_batched ? run_batches(call, pass, out) : run_rows(call, form, pass, out);
      if (!done) return done.why();
    }
    return Done{};
  }

 private:
  static bool has_adapters(const ExpertsCall& call) {
    return !call.lora.empty() && !call.in.adapters.empty();
  }

  // Tokens of a pass whose workspace stays within bounds, and that workspace.
  Result<std::uint64_t> reserve_for(const ExpertsCall& call, OutputForm form) {
    const bool is_batched = form == OutputForm::batches;
    std::uint64_t rank = 0;
    if (has_adapters(call))
      for (const LoraExpert& pair : call.lora.pairs)
        for (const LowRank* part : {&pair.gate, &pair.up, &pair.down})
          rank = std::max(rank, part->a.rows);
    WorkspaceLimits limits{.top_k = is_batched ? 1 : call.in.top_k, .max_rank = rank};
    std::uint64_t& count = is_batched ? limits.capacity : limits.tokens;
    for (count = is_batched ? call.in.capacity : call.in.x.rows; count > 1;
         count = ceil_div(count, 2)) {
      const auto bytes = layer_.workspace_bytes(limits);
      if (bytes && *bytes <= max_bytes_) break;
    }
    if (space_ && holds(space_->limits(), limits)) return count;
    space_.reset();  // before there are two
    Result<Workspace> result = layer_.reserve(limits);
    if (!result) return result.why();
    space_ = std::move(*result);
    return count;
  }
  static bool holds(const WorkspaceLimits& has, const WorkspaceLimits& wanted) {
    return has.tokens >= wanted.tokens && has.top_k >= wanted.top_k &&
           has.capacity >= wanted.capacity && has.max_rank >= wanted.max_rank;
  }

  // Copies bytes of the host to the device; the memory is reused until it is too small.
  Result<std::byte*> put(Memory& memory, std::span<const std::byte> bytes) {
    if (memory.size() < bytes.size()) {
      Result<Memory> result = device_->allocate(bytes.size());
      if (!result) return result.why();
      memory = std::move(*result);
    }
    const auto sent = device_->upload(memory.data(), bytes, stream_.get());
    if (!sent) return sent.why();
    return memory.data();
  }
  template <class T>
  Result<std::span<const T>> put(Memory& memory, std::span<const T> values) {
    const auto at = put(memory, std::as_bytes(values));
    if (!at) return at.why();
    return std::span(reinterpret_cast<const T*>(*at), values.size());
  }

  // Inputs that all passes share: the map of experts, and adapters.
  Result<Done> upload_constants(const ExpertsCall& call) {
    map_on_device_ = {};
    adapters_ = {};
    if (!call.expert_map.empty()) {
      const auto at = put(map_, call.expert_map);
      if (!at) return at.why();
      map_on_device_ = *at;
    }
    return has_adapters(call) ? upload_adapters(call.lora) : Result<Done>(Done{});
  }

  Result<Done> upload_adapters(const LoraView& lora) {
    std::vector<float> matrices;
    const auto append = [&](const FloatMatrix& matrix) {
      const std::size_t at = matrices.size();
      for (std::uint64_t r = 0; r < matrix.rows; ++r)
        matrices.insert(matrices.end(), matrix.row(r).begin(), matrix.row(r).end());
      matrices.resize(round_up(matrices.size(), kMemoryAlignment / sizeof(float)));
      return at;
    };
    // Offsets first; they become addresses when the memory is allocated.
    std::vector<std::size_t> places;
    for (const LoraExpert& pair : lora.pairs)
      for (const LowRank* part : {&pair.gate, &pair.up, &pair.down})
        for (const FloatMatrix* matrix : {&part->a, &part->b}) places.push_back(append(*matrix));
    const auto base = put(matrices_, std::span<const float>(matrices));
    if (!base) return base.why();
    std::vector<kernels::cuda::DeviceLoraExpert> pairs;
    std::size_t next = 0;
    const auto place = [&](const LowRank& part) {
      kernels::cuda::DeviceLowRank result{.rank = static_cast<std::uint32_t>(part.a.rows),
                                          .a_stride = part.a.columns,
                                          .b_stride = part.b.columns};
      result.a = base->data() + places[next++];
      result.b = base->data() + places[next++];
      adapters_.max_rank = std::max<std::uint64_t>(adapters_.max_rank, result.rank);
      return result;
    };
    for (const LoraExpert& pair : lora.pairs) {
      kernels::cuda::DeviceLoraExpert& result = pairs.emplace_back();
      result.gate = place(pair.gate);
      result.up = place(pair.up);
      result.down = place(pair.down);
    }
    const auto at = put(pairs_, std::span<const kernels::cuda::DeviceLoraExpert>(pairs));
    if (!at) return at.why();
    adapters_.pairs = at->data();
    // Vectors of this function are read until the copies are done.
    return device_->wait(stream_.get());
  }

  // The output's memory on the device, for `rows` rows.
  Result<MutableRows> output_rows(const MutableRows& out, std::uint64_t rows) {
    const DType dtype = device_type(out.dtype);
    const std::uint64_t row = out.columns * element_bytes(dtype);
    if (out_.size() < rows * row) {
      Result<Memory> result = device_->allocate(rows * row);
      if (!result) return result.why();
      out_ = std::move(*result);
    }
    return MutableRows{out_.data(), dtype, rows, out.columns, row};
  }
  Result<ConstRows> input_rows(const ConstRows& x) {
    const DType dtype = device_type(x.dtype);
    const std::uint64_t row = x.columns * element_bytes(dtype);
    const auto at = put(x_, std::span<const std::byte>(host_));
    if (!at) return at.why();
    return ConstRows{*at, dtype, host_.size() / row, x.columns, row};
  }
  // Copies rows of the output to `host_`; complete when the stream is done.
  Result<Done> fetch(const MutableRows& rows, std::uint64_t begin, std::uint64_t count) {
    host_.resize(rows.rows * rows.stride);
    const std::uint64_t at = begin * rows.stride;
    return device_->download(std::span(host_).subspan(at, count * rows.stride), rows.data + at,
                             stream_.get());
  }

  DeviceCall start(const ExpertsCall& call, OutputForm form) const {
    return {.in = {{}, call.in.format, call.in.is_quantized, call.in.factor},
            .expert_map = map_on_device_,
            .adapters = adapters_,
            .weight_on_input = call.weight_on_input,
            .form = form};
  }

  Result<Done> run_rows(const ExpertsCall& call, OutputForm form, const HostPass& pass,
                        const MutableRows& out) {
    const Prepared& in = call.in;
    DeviceCall result = start(call, form);
    result.in.top_k = in.top_k;
    host_.clear();
    append_rows(in.x, pass.begin, pass.count, host_);
    const auto x = input_rows(in.x);
    if (!x) return x.why();
    result.in.x = *x;
    const std::uint64_t first = pass.begin * in.top_k, assignments = pass.count * in.top_k;
    if (assignments != 0) {
      const auto ids = put(ids_, in.ids.subspan(first, assignments));
      if (!ids) return ids.why();
      const auto weights = put(weights_, in.weights.subspan(first, assignments));
      if (!weights) return weights.why();
      result.in.ids = *ids;
      result.in.weights = *weights;
    } else {
      return clear_rows(out, pass);
    }
    if (result.adapters.pairs != nullptr) {
      const auto of_token = put(of_token_, in.adapters.subspan(pass.begin, pass.count));
      if (!of_token) return of_token.why();
      result.in.adapters = *of_token;
    }
    const std::uint64_t each = form == OutputForm::assignments ? in.top_k : 1;
    const auto rows = output_rows(out, pass.count * each);
    if (!rows) return rows.why();
    result.out = *rows;
    if (const auto done = layer_.apply(result, *space_, stream_.get()); !done) return done.why();
    if (const auto sent = fetch(result.out, 0, result.out.rows); !sent) return sent.why();
    if (const auto done = device_->wait(stream_.get()); !done) return done.why();
    spread_rows(host_, out, pass.begin * each, pass.count * each);
    return Done{};
  }

  // No choices at all: nothing is summed.
  static Result<Done> clear_rows(const MutableRows& out, const HostPass& pass) {
    const std::vector<float> zeros(out.columns, 0.0f);
    for (std::uint64_t i = 0; i < pass.count && out.rows != 0; ++i)
      write_row(std::span<const float>(zeros), out, pass.begin + i);
    return Done{};
  }

  Result<Done> run_batches(const ExpertsCall& call, const HostPass& pass, const MutableRows& out) {
    const Prepared& in = call.in;
    DeviceCall result = start(call, OutputForm::batches);
    result.expert_map = {};  // batches are by position
    result.in.capacity = pass.count;
    host_.clear();
    std::vector<std::int32_t> counts, adapters;
    for (std::size_t e = 0; e < in.counts.size(); ++e) {
      const std::uint64_t first = e * in.capacity + pass.begin;
      append_rows(in.x, first, pass.count, host_);
      const auto count = static_cast<std::uint64_t>(in.counts[e]);
      counts.push_back(
          static_cast<std::int32_t>(std::min(pass.count, count - std::min(count, pass.begin))));
      if (result.adapters.pairs != nullptr)
        for (std::uint64_t i = 0; i < pass.count; ++i) adapters.push_back(in.adapters[first + i]);
    }
    const auto x = input_rows(in.x);
    if (!x) return x.why();
    result.in.x = *x;
    const auto at = put(ids_, std::span<const std::int32_t>(counts));
    if (!at) return at.why();
    result.in.counts = *at;
    if (result.adapters.pairs != nullptr) {
      const auto of_token = put(of_token_, std::span<const std::int32_t>(adapters));
      if (!of_token) return of_token.why();
      result.in.adapters = *of_token;
    }
    const auto rows = output_rows(out, result.in.x.rows);
    if (!rows) return rows.why();
    result.out = *rows;
    if (const auto done = layer_.apply(result, *space_, stream_.get()); !done) return done.why();
    // Unassigned rows were not written there and stay as they are here.
    const auto count_of = [&](std::size_t e) { return static_cast<std::uint64_t>(counts[e]); };
    for (std::size_t e = 0; e < counts.size(); ++e)
      if (const auto sent = fetch(result.out, e * pass.count, count_of(e)); !sent)
        return sent.why();
    if (const auto done = device_->wait(stream_.get()); !done) return done.why();
    const std::uint64_t row = rows->stride;
    for (std::size_t e = 0; e < counts.size(); ++e)
      spread_rows(std::span<const std::byte>(host_).subspan(e * pass.count * row), out,
                  e * in.capacity + pass.begin, count_of(e));
    return Done{};
  }

  DeviceLayer layer_;
  std::shared_ptr<const Device> device_;
  OwnStream stream_;
  std::uint64_t max_bytes_;
  std::optional<Workspace> space_{};
  Memory x_{}, out_{}, ids_{}, weights_{}, map_{}, of_token_{}, matrices_{}, pairs_{};
  std::span<const std::int32_t> map_on_device_{};
  DeviceAdapters adapters_{};
  std::vector<std::byte> host_{};
};

}  // namespace

const DeviceLayer* device_layer(const Experts* experts) {
  const auto* found = dynamic_cast<const Computation*>(experts);
  return found == nullptr ? nullptr : &found->layer();
}
std::shared_ptr<const DeviceLayer> device_layer(const std::shared_ptr<const Experts>& experts) {
  const DeviceLayer* found = device_layer(experts.get());
  return found == nullptr ? nullptr : std::shared_ptr<const DeviceLayer>(experts, found);
}

Result<std::unique_ptr<Experts>> CudaEngine::make(const ExpertsProblem& problem,
                                                  const ExpertSource& source) const {
  Result<std::shared_ptr<const Device>> device = Device::open(options_.ordinal);
  if (!device) return device.why();
  if (problem.numerics.weights_in_bf16 && problem.shape.format == checkpoint::WeightFormat::nvfp4)
    return reference::ReferenceEngine(pool_).make(problem, source);
  Result<DeviceLayer> layer = DeviceLayer::make(*device, problem, source);
  if (!layer) return layer.why();
  Result<OwnStream> stream = own_stream(*device);
  if (!stream) return stream.why();
  return std::unique_ptr<Experts>(std::make_unique<Computation>(
      std::move(*layer), *device, std::move(*stream), options_.workspace_bytes));
}

}  // namespace fp4moe::moe::cuda
