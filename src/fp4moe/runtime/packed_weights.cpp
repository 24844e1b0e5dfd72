#include "fp4moe/runtime/packed_weights.hpp"

#include <utility>

#include <fmt/format.h>

#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/convert/pack/pack_layer.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/platform/memory_nodes.hpp"

namespace fp4moe::runtime {
namespace {

using checkpoint::ExpertView;
using checkpoint::ProjectionBuffers;
using checkpoint::ProjectionView;
using checkpoint::RowOrder;
using convert::LayerPacker;
using convert::PackedTensorSpec;
using convert::Problem;

// Canonical rows of one expert in one piece of memory.
class OwnedExpertBuffers {
 public:
  static Result<OwnedExpertBuffers> make(const LayerPacker& packer) {
    const Problem& problem = packer.problem();
    const bool gated = problem.order != RowOrder::single;
    const std::uint64_t block = formats::block_size(packer.layout().format);
    const std::uint64_t hidden = problem.real.hidden, rows = problem.real.intermediate;
    const std::uint64_t rows13 = gated ? 2 * rows : rows;
    const std::uint64_t bias_bytes = problem.has_bias ? moe::element_bytes(problem.bias_type) : 0;
    const std::uint64_t w13 = rows13 * (hidden / 2 + hidden / block);
    const std::uint64_t w2 = hidden * (rows / 2 + rows / block);
    OwnedExpertBuffers result;
    Result<tensor::Buffer> memory =
        tensor::Buffer::allocate(w13 + w2 + (rows13 + hidden) * bias_bytes);
    if (!memory) return memory.why();
    result.memory_ = std::move(*memory);
    std::byte* next = result.memory_.data();
    const auto take = [&](std::uint64_t count) { return std::exchange(next, next + count); };
    const auto buffers = [&](std::uint64_t count, std::uint64_t k) {
      return ProjectionBuffers{.codes = {take(count * k / 2), k / 2},
                               .scales = {take(count * k / block), k / block}};
    };
    if (gated) result.target_.buffers.gate = buffers(rows, hidden);
    result.target_.buffers.up = buffers(rows, hidden);
    result.target_.buffers.down = buffers(hidden, rows);
    result.target_.bias13 = {take(rows13 * bias_bytes), rows13 * bias_bytes};
    result.target_.bias2 = {take(hidden * bias_bytes), hidden * bias_bytes};
    return result;
  }

  const LayerPacker::ExpertTarget& target() const { return target_; }

  ExpertView view(const LayerPacker& packer, std::size_t position) const {
    const Problem& problem = packer.problem();
    const convert::ExpertScalars& scalars = packer.scalars(position);
    const std::uint64_t hidden = problem.real.hidden, rows = problem.real.intermediate;
    ExpertView view{.shape = {.format = packer.layout().format,
                              .experts = problem.experts,
                              .hidden = hidden,
                              .intermediate = rows,
                              .order = problem.order,
                              .has_bias = problem.has_bias}};
    const bool gated = view.shape.gated();
    const auto fill = [&](ProjectionView& to, const ProjectionBuffers& from, std::uint64_t count) {
      to.codes = {from.codes.data, count, from.codes.stride, from.codes.stride};
      to.scales = {from.scales.data, count, from.scales.stride, from.scales.stride};
    };
    if (gated) fill(view.gate, target_.buffers.gate, rows);
    fill(view.up, target_.buffers.up, rows);
    fill(view.down, target_.buffers.down, hidden);
    view.gate.global_scale = scalars.gate_global;
    view.up.global_scale = scalars.up_global;
    view.down.global_scale = scalars.down_global;
    view.gate.input_scale = scalars.gate_input;
    view.up.input_scale = scalars.up_input;
    view.down.input_scale = scalars.down_input;
    if (!problem.has_bias) return view;
    const std::uint64_t size = moe::element_bytes(problem.bias_type);
    const bool is_interleaved = problem.order == RowOrder::interleaved;
    const auto bias = [&](std::span<std::byte> from, std::uint64_t first, std::uint64_t count,
                          std::uint64_t step) {
      return checkpoint::BiasView{from.data() + first * size, count, step * size,
                                  problem.bias_type};
    };
    if (gated) view.gate.bias = bias(target_.bias13, 0, rows, is_interleaved ? 2 : 1);
    view.up.bias = bias(target_.bias13,
                        !gated           ? 0
                        : is_interleaved ? 1
                                         : rows,
                        rows, is_interleaved ? 2 : 1);
    view.down.bias = bias(target_.bias2, 0, hidden, 1);
    return view;
  }

 private:
  tensor::Buffer memory_{};
  LayerPacker::ExpertTarget target_{};
};

}  // namespace

Result<PackedWeights> PackedWeights::create(const layout::Layout& layout, const Problem& problem) {
  Result<LayerPacker> packer = LayerPacker::make(layout, problem);
  if (!packer) return packer.why();
  PackedWeights result(std::move(*packer));
  const std::vector<std::uint32_t> nodes = platform::memory_nodes();
  for (const PackedTensorSpec& tensor : result.packer_.tensors()) {
    Result<tensor::Buffer> memory = tensor::Buffer::allocate(tensor.bytes);
    if (!memory) return memory.why();
    platform::spread_over(nodes, memory->bytes());
    result.targets_.push_back(memory->bytes());
    result.views_.emplace_back(memory->bytes());
    result.memory_.push_back(std::move(*memory));
  }
  return result;
}

Result<PackedWeights> PackedWeights::describe(const layout::Layout& layout,
                                              const Problem& problem) {
  Result<LayerPacker> packer = LayerPacker::make(layout, problem);
  if (!packer) return packer.why();
  return PackedWeights(std::move(*packer));
}

Result<PackedWeights> PackedWeights::map(std::shared_ptr<const convert::ConvertedFolder> folder,
                                         std::size_t number) {
  Result<LayerPacker> packer = folder->packer(number);
  if (!packer) return packer.why();
  PackedWeights result(std::move(*packer));
  for (const convert::NamedView& tensor : folder->layer(number))
    result.views_.push_back(tensor.view.bytes);
  result.folder_ = std::move(folder);
  return result;
}

PackedWeights PackedWeights::of(LayerPacker packer,
                                std::vector<std::span<const std::byte>> tensors) {
  PackedWeights result(std::move(packer));
  result.views_ = std::move(tensors);
  return result;
}

Result<Done> PackedWeights::check_own_memory() const {
  if (views_.size() == targets_.size()) return Done{};
  return usage("weights.mapped", "mapped weights cannot be loaded")
      .expects("memory of the layer's own", folder_ ? folder_->path() : "tensors that were given");
}

Result<Done> PackedWeights::load(const convert::LayerJob& job, std::size_t threads) {
  if (const auto fine = check_own_memory(); !fine) return fine.why();
  if (!views_.empty()) return convert::pack_layer(job, packer_, targets_, {.threads = threads});
  return convert::for_each_expert(
      job, threads, [&](std::size_t position, const ExpertView& view, convert::Lane&) {
        return packer_.note(position, view);
      });
}

Result<Done> PackedWeights::load(const moe::ExpertSource& source) {
  if (const auto fine = check_own_memory(); !fine) return fine.why();
  const std::uint64_t experts = packer_.problem().experts;
  for (std::size_t position = 0; position < experts; ++position) {
    const auto noted = source.visit(
        position, [&](const ExpertView& view) { return packer_.note(position, view); });
    if (!noted) return noted.why();
  }
  std::vector<std::span<std::byte>> parts(targets_.size()), small(targets_.size());
  for (std::size_t position = 0; position < experts; ++position) {
    for (std::size_t t = 0; t < targets_.size(); ++t) {
      const std::uint64_t bytes = packer_.tensors()[t].expert_bytes;
      parts[t] = targets_[t].subspan(position * bytes, bytes);
      if (bytes == 0) small[t] = targets_[t];
    }
    const auto packed = source.visit(
        position, [&](const ExpertView& view) { return packer_.pack(position, view, parts); });
    if (!packed) return packed.why();
  }
  return packer_.pack_scalars(small);
}

Result<Done> PackedWeights::load_expert(const convert::LayerJob& job, std::size_t position) {
  if (const auto fine = check_own_memory(); !fine) return fine.why();
  if (!views_.empty()) return convert::pack_expert(job, packer_, position, targets_);
  const std::unique_ptr<checkpoint::LayerReader> reader = job.source->reader();
  const Result<ExpertView> view = reader->read(job.experts[position]);
  if (!view) return view.why();
  return packer_.note(position, *view);
}

std::vector<float> PackedWeights::scalars(std::string_view name) const {
  for (std::size_t t = 0; t < views_.size(); ++t) {
    const PackedTensorSpec& tensor = packer_.tensors()[t];
    if (tensor.name != name || !moe::is_activation_type(tensor.dtype)) continue;
    const std::uint64_t count = views_[t].size() / moe::element_bytes(tensor.dtype);
    std::vector<float> values(count);
    read_row(moe::ConstRows{views_[t].data(), tensor.dtype, 1, count, views_[t].size()}, 0,
             std::span(values));
    return values;
  }
  return {};
}

std::uint64_t PackedWeights::bytes() const {
  std::uint64_t sum = 0;
  for (const PackedTensorSpec& tensor : packer_.tensors()) sum += tensor.bytes;
  return sum;
}

moe::ExpertSource PackedWeights::source() const {
  const Problem& problem = packer_.problem();
  moe::ExpertSource result{.shape = {.format = packer_.layout().format,
                                     .experts = problem.experts,
                                     .hidden = problem.real.hidden,
                                     .intermediate = problem.real.intermediate,
                                     .order = problem.order,
                                     .has_bias = problem.has_bias},
                           .layout = std::string(packer_.layout().id),
                           .generation = std::string(packer_.layout().generation)};
  for (std::size_t t = 0; t < views_.size(); ++t)
    result.packed.push_back({packer_.tensors()[t].name, views_[t], packer_.tensors()[t].shape});
  result.visit = [this](std::size_t position, const moe::UseExpert& use) -> Result<Done> {
    const Result<OwnedExpertBuffers> buffers = OwnedExpertBuffers::make(packer_);
    if (!buffers) return buffers.why();
    std::vector<std::span<const std::byte>> parts;
    for (std::size_t t = 0; t < views_.size(); ++t) {
      const std::uint64_t bytes = packer_.tensors()[t].expert_bytes;
      parts.push_back(views_[t].subspan(position * bytes, bytes));
    }
    if (const auto done = packer_.unpack(position, parts, buffers->target()); !done)
      return done.why();
    return use(buffers->view(packer_, position));
  };
  return result;
}

Result<moe::ExpertSource> PackedWeights::source(const convert::LayerJob& job) const {
  if (const auto stays = job.source->check_views_stay(); !stays) return stays.why();
  moe::ExpertSource result{.shape = source().shape, .views_stay = true};
  result.visit = [&job](std::size_t position, const moe::UseExpert& use) -> Result<Done> {
    const std::unique_ptr<checkpoint::LayerReader> reader = job.source->reader();
    const Result<ExpertView> view = reader->read(job.experts[position]);
    if (!view) return view.why();
    return use(*view);
  };
  return result;
}

}  // namespace fp4moe::runtime
