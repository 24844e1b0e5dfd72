#include "fp4moe/convert/pack/pack_layer.hpp"

#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"

namespace fp4moe::convert {
namespace {

using checkpoint::Projection;

class LanePool {
 public:
  explicit LanePool(const LayerJob& job) : job_(job) {}

  std::unique_ptr<Lane> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Lane>(Lane{.reader = job_.source->reader()});
    std::unique_ptr<Lane> lane = std::move(idle_.back());
    idle_.pop_back();
    return lane;
  }
  void give_back(std::unique_ptr<Lane> lane) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(lane));
  }

 private:
  const LayerJob& job_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<Lane>> idle_{};
};

// Input scales of the whole layer: a layout may share one among the experts of all ranks.
InputScales all_input_scales(const LayerJob& job) {
  const checkpoint::LayerSource& source = *job.source;
  const bool gated = job.problem.order != checkpoint::RowOrder::single;
  const auto read = [&](Projection which) {
    std::vector<float> scales(source.known_experts(), std::numeric_limits<float>::quiet_NaN());
    if (which == Projection::gate && !gated) return scales;
    for (std::uint64_t expert = 0; expert < scales.size(); ++expert) {
      const std::optional<float> scale = source.input_scale(which, expert);
      if (!scale) continue;
      scales[expert] = *scale;
      // The numbers lie scattered, and each brings its page along.
      if (expert % 64 == 63) source.drop_pages();
    }
    return scales;
  };
  InputScales scales{read(Projection::gate), read(Projection::up), read(Projection::down)};
  source.drop_pages();
  return scales;
}

Result<Done> check_targets(const LayerPacker& packer,
                           std::span<const std::span<std::byte>> targets) {
  if (targets.size() != packer.tensors().size())
    return usage("convert.targets", "memory is given for another number of tensors")
        .expects(std::to_string(packer.tensors().size()), std::to_string(targets.size()));
  for (std::size_t t = 0; t < targets.size(); ++t)
    if (targets[t].size() != packer.tensors()[t].bytes)
      return usage("convert.targets", "the memory given for a tensor is of another size")
          .at(packer.tensors()[t].name)
          .expects(fmt::format("{} bytes", packer.tensors()[t].bytes),
                   fmt::format("{} bytes", targets[t].size()));
  return Done{};
}

using Spans = std::vector<std::span<std::byte>>;

// The part of every tensor that holds one expert; empty for the small ones.
Spans expert_targets(const LayerPacker& packer, std::span<const std::span<std::byte>> targets,
                     std::size_t position) {
  Spans parts(targets.size());
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const std::uint64_t bytes = packer.tensors()[t].expert_bytes;
    if (bytes != 0) parts[t] = targets[t].subspan(position * bytes, bytes);
  }
  return parts;
}

Spans scalar_targets(const LayerPacker& packer, std::span<const std::span<std::byte>> targets) {
  Spans parts(targets.size());
  for (std::size_t t = 0; t < targets.size(); ++t)
    if (packer.tensors()[t].expert_bytes == 0) parts[t] = targets[t];
  return parts;
}

}  // namespace

Result<Done> for_each_expert(const LayerJob& job, std::size_t threads, const ExpertWork& work) {
  LanePool pool(job);
  return parallel_for(threads, job.experts.size(), [&](std::size_t position) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    std::unique_ptr<Lane> lane = pool.take();
    const Result<checkpoint::ExpertView> view = lane->reader->read(job.experts[position]);
    if (!view) return view.why();
    if (Result<Done> done = work(position, *view, *lane); !done)
      return job.source->at_expert(done.why(), job.experts[position]);
    lane->reader->release();
    pool.give_back(std::move(lane));
    // Small tensors lie scattered, and their pages stay: sweep now and then.
    if (position % 32 == 31) job.source->drop_pages();
    return Done{};
  });
}

Result<Done> prepare(const LayerJob& job, LayerPacker& packer, std::size_t threads) {
  if (job.source->has_input_scale()) packer.set_all_input_scales(all_input_scales(job));
  if (!packer.needs_all_experts()) return Done{};
  return for_each_expert(job, threads,
                         [&](std::size_t position, const checkpoint::ExpertView& view, Lane&) {
                           return packer.note(position, view);
                         });
}

Result<Done> pack_layer(const LayerJob& job, LayerPacker& packer,
                        std::span<const std::span<std::byte>> targets, const PackOptions& options) {
  if (Result<Done> fine = check_targets(packer, targets); !fine) return fine;
  if (Result<Done> done = prepare(job, packer, options.threads); !done) return done;
  const auto pack = [&](std::size_t position, const checkpoint::ExpertView& view,
                        Lane&) -> Result<Done> {
    const Spans parts = expert_targets(packer, targets, position);
    if (Result<Done> done = packer.pack(position, view, parts, options.path); !done) return done;
    if (options.progress) options.progress(packer.expert_bytes());
    return Done{};
  };
  if (Result<Done> done = for_each_expert(job, options.threads, pack); !done) return done;
  return packer.pack_scalars(scalar_targets(packer, targets));
}

Result<Done> pack_expert(const LayerJob& job, LayerPacker& packer, std::size_t position,
                         std::span<const std::span<std::byte>> targets) {
  if (Result<Done> fine = check_targets(packer, targets); !fine) return fine;
  if (position >= job.experts.size())
    return usage("layout.position", "there is no such expert on this rank")
        .expects(fmt::format("less than {}", job.experts.size()), std::to_string(position));
  const std::unique_ptr<checkpoint::LayerReader> reader = job.source->reader();
  const Result<checkpoint::ExpertView> view = reader->read(job.experts[position]);
  if (!view) return view.why();
  const Spans parts = expert_targets(packer, targets, position);
  if (Result<Done> done = packer.pack(position, *view, parts); !done) return done;
  reader->release();
  return packer.pack_scalars(scalar_targets(packer, targets));
}

}  // namespace fp4moe::convert
