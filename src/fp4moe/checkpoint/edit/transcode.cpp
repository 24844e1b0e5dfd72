#include "fp4moe/checkpoint/edit/transcode.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"

namespace fp4moe::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// State of an expert in work: a reader, and the buffer that it unpacks into.
struct Lane {
  ExpertReader reader;
  tensor::Buffer buffer{};
};

class LanePool {
 public:
  explicit LanePool(const Checkpoint& source) : source_(source) {}

  std::unique_ptr<Lane> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Lane>(Lane{.reader{source_, Slice{}}});
    std::unique_ptr<Lane> lane = std::move(idle_.back());
    idle_.pop_back();
    return lane;
  }
  void give_back(std::unique_ptr<Lane> lane) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(lane));
  }

 private:
  const Checkpoint& source_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<Lane>> idle_{};
};

// GGUF blocks are unpacked to where the target wants them; they are written from there.
Result<ExpertView> read_for(const ExpertLayout& layout, Lane& lane, std::size_t layer,
                            std::uint64_t expert, bool packed) {
  if (!packed || layout.row.needs_unpacking()) return lane.reader.read(layer, expert);
  if (lane.buffer.size() < layout.bytes()) {
    Result<tensor::Buffer> buffers = tensor::Buffer::allocate(layout.bytes());
    if (!buffers) return buffers.why();
    lane.buffer = *std::move(buffers);
  }
  const ExpertBuffers buffers = buffers_in(layout, lane.buffer.bytes().first(layout.bytes()));
  return lane.reader.read(layer, expert, &buffers);
}

// How many experts may be under way at once: together with the program itself they stay within two
// experts and 64 MiB. A GGUF expert lies there twice, mapped and unpacked.
std::size_t lanes(const Checkpoint& source, std::size_t threads) {
  std::uint64_t expert = 0;
  for (const LayerTensors& layer : source.layers())
    expert = std::max(expert, expert_layout(*layer.row, layer.shape, tensor::DType::f32).bytes());
  const std::uint64_t around = 6 * kMiB;  // pages beside the expert's, and the writer's piece
  const bool unpacked = source.dialect().needs_unpacking();
  const std::uint64_t each = (unpacked ? 2 : 1) * expert + around;
  const std::uint64_t budget = 2 * expert + 36 * kMiB;  // the rest is the program and its tables
  return static_cast<std::size_t>(
      std::clamp<std::uint64_t>(budget / each, 1, std::max<std::size_t>(1, threads)));
}

struct TranscodeItem {
  std::size_t layer;
  std::uint64_t expert;
};

// GGUF's NVFP4 scales have no sign: a negative one would become another number.
Result<Done> check_signs(const ExpertView& view, const LayerTensors& layer, std::uint64_t expert) {
  for (const ProjectionView* projection : {&view.gate, &view.up, &view.down}) {
    const RowsView& scales = projection->scales;
    for (std::uint64_t row = 0; row < scales.rows; ++row) {
      if (find_negative_scale(scales.row(row)) == kNoScale) continue;
      return invalid("transcode.negative_scale", "GGUF cannot hold a negative block scale")
          .at(layer.prefix)
          .expects("positive scales", "a negative one in expert " + std::to_string(expert) +
                                          ", row " + std::to_string(row))
          .try_this("Choose another dialect, or repair it with fp4moe lint --fix");
    }
  }
  return Done{};
}

std::vector<TranscodeItem> all_experts(const Checkpoint& source) {
  std::vector<TranscodeItem> items;
  for (std::size_t layer = 0; layer < source.layers().size(); ++layer)
    for (std::uint64_t expert = 0; expert < source.layers()[layer].shape.experts; ++expert)
      items.push_back({layer, expert});
  return items;
}

}  // namespace

Result<TranscodeReport> transcode(const Checkpoint& source, Dialect target, const std::string& out,
                                  const TranscodeOptions& options) {
  Result<TranscodePlan> plan = plan_transcode(source, target, options.max_shard_bytes);
  if (!plan) return plan.why();
  return transcode(source, *std::move(plan), out, options);
}

Result<TranscodeReport> transcode(const Checkpoint& source, TranscodePlan plan,
                                  const std::string& out, const TranscodeOptions& options) {
  const Clock::time_point begin = Clock::now();
  const Dialect target = plan.checkpoint.row.dialect;
  Result<ScaleSource> scales = ScaleSource::open(source);
  if (!scales) return scales.why();
  TranscodeReport report{.from = std::string(source.dialect().name),
                         .to = std::string(name(target)),
                         .format = source.dialect().format,
                         .layers = source.layers().size(),
                         .exact_scales = plan.checkpoint.exact_scales.size(),
                         .threads = lanes(source, options.threads),
                         .notes = std::move(plan.notes)};
  for (const OtherTensor& other : plan.checkpoint.others) report.other_bytes += bytes_of(other);
  Result<CheckpointWriter> writer = CheckpointWriter::create(out, std::move(plan.checkpoint));
  if (!writer) return writer.why();

  const std::vector<TranscodeItem> items = all_experts(source);
  LanePool pool(source);
  const auto convert = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto [layer, expert] = items[i];
    std::unique_ptr<Lane> lane = pool.take();
    const Result<ExpertView> view =
        read_for(writer->layout(layer), *lane, layer, expert, source.dialect().needs_unpacking());
    if (!view) return view.why();
    if (target == Dialect::gguf && source.dialect().format == WeightFormat::nvfp4)
      if (Result<Done> fine = check_signs(*view, source.layers()[layer], expert); !fine)
        return fine;
    const Result<StoredScales> exact =
        scales->scales(source.layers()[layer], expert, writer->plan().row.global_scale);
    if (!exact) return exact.why();
    if (Result<Done> done = writer->write_expert(layer, expert, {*view, &*exact}); !done)
      return done;
    lane->reader.release();
    pool.give_back(std::move(lane));
    // Small tensors lie scattered, and their pages stay: sweep now and then.
    if (i % 32 == 31) drop_all(source.store());
    if (options.progress) options.progress(writer->layout(layer).bytes());
    return Done{};
  };
  if (Result<Done> done = parallel_for(report.threads, items.size(), convert); !done)
    return done.why();
  const std::size_t copiers = std::min<std::size_t>(report.threads, 4);
  if (Result<Done> done = writer->copy_others(copiers, options.progress); !done) return done.why();
  if (Result<Done> done = writer->finish(); !done) return done.why();

  report.experts = items.size();
  report.expert_bytes = writer->bytes() - report.other_bytes;
  report.shards = writer->shards();
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::checkpoint
