#include "fp4moe/report/scale_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/convert/folder/expert_writer.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::report {
namespace {

using checkpoint::ExpertView;
using checkpoint::Projection;
using checkpoint::WeightFormat;

constexpr std::array kProjections{Projection::gate, Projection::up, Projection::down};

std::array<std::uint64_t, 256> count_bytes(const checkpoint::RowsView& rows) {
  std::array<std::uint64_t, 256> counts{};
  for (std::uint64_t row = 0; row < rows.rows; ++row)
    for (const std::byte byte : rows.row(row)) ++counts[std::to_integer<std::size_t>(byte)];
  return counts;
}

void count_expert(const ExpertView& view, ExpertScales& into) {
  for (std::size_t i = 0; i < kProjections.size(); ++i)
    into.projections[i].add(view.shape.format, view.at(kProjections[i]));
}

std::uint64_t blocks_of(const checkpoint::MoeShape& shape) {
  return shape.hidden * (shape.w13_rows() + shape.intermediate) / block_size(shape.format);
}

struct WorkItem {
  std::size_t layer = 0, position = 0;
};

std::vector<WorkItem> items_of(const std::vector<LayerScales>& layers) {
  std::vector<WorkItem> items;
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    for (std::size_t i = 0; i < layers[layer].experts.size(); ++i) items.push_back({layer, i});
  return items;
}

// True if it ends the whole work, not only this expert's.
bool is_fatal(const Error& why) {
  return why.code == ErrorCode::interrupted || why.code == ErrorCode::exhausted;
}

template <typename Count>
Result<Done> count_all(std::vector<LayerScales>& layers, const ScaleOptions& options,
                       const Count& count) {
  const std::vector<WorkItem> items = items_of(layers);
  return parallel_for(options.threads, items.size(), [&](std::size_t i) -> Result<Done> {
    if (const auto fine = check_interrupt(); !fine) return fine.why();
    const WorkItem item = items[i];
    ExpertScales& expert = layers[item.layer].experts[item.position];
    const Result<Done> done = count(item, expert);
    if (!done && is_fatal(done.why())) return done;
    if (!done) expert.why = done.why();
    return Done{};
  });
}

Result<std::vector<LayerScales>> of_checkpoint(const checkpoint::Checkpoint& model,
                                               const ScaleOptions& options) {
  std::vector<LayerScales> layers;
  for (const checkpoint::LayerTensors& tensors : model.layers()) {
    LayerScales& layer = layers.emplace_back(LayerScales{.index = tensors.index});
    for (std::uint64_t expert = 0; expert < tensors.shape.experts; ++expert)
      layer.experts.push_back({.expert = expert});
  }
  const Result<Done> done =
      count_all(layers, options, [&](WorkItem item, ExpertScales& into) -> Result<Done> {
        checkpoint::ExpertReader reader(model, {});
        const Result<ExpertView> view = reader.read(item.layer, into.expert);
        if (!view) return view.why();
        count_expert(*view, into);
        reader.release();
        if (options.progress) options.progress(blocks_of(view->shape));
        return Done{};
      });
  if (!done) return done.why();
  return layers;
}

// Memory for one expert of a converted layer, as canonical matrices without biases.
Result<convert::ExpertMemory> unpacked_memory(const convert::LayerPacker& packer) {
  const convert::Problem& problem = packer.problem();
  const checkpoint::LayerTensors layer{.row = &checkpoint::dialects().front(),
                                       .shape = {.format = packer.layout().format,
                                                 .experts = problem.experts,
                                                 .hidden = problem.real.hidden,
                                                 .intermediate = problem.real.intermediate,
                                                 .order = problem.order}};
  return convert::ExpertMemory::make(layer, {0, problem.real.intermediate}, problem.bias_type);
}

Result<Done> count_packed(const convert::ConvertedFolder& folder,
                          const convert::LayerPacker& packer, WorkItem item, ExpertScales& into) {
  const Result<convert::ExpertMemory> memory = unpacked_memory(packer);
  if (!memory) return memory.why();
  const std::size_t file = folder.file_of_layer(item.layer);
  std::vector<std::span<const std::byte>> sources(packer.tensors().size());
  for (std::size_t t = 0; t < sources.size(); ++t) {
    const std::uint64_t bytes = packer.tensors()[t].expert_bytes;
    if (bytes != 0) sources[t] = folder.bytes(file, t).subspan(item.position * bytes, bytes);
  }
  if (const Result<Done> done = packer.unpack(item.position, sources, memory->target()); !done)
    return done.why();
  const convert::ExpertScalars& scalars = packer.scalars(item.position);
  ExpertView view = memory->view(false);
  view.gate.global_scale = scalars.gate_global;
  view.up.global_scale = scalars.up_global;
  view.down.global_scale = scalars.down_global;
  count_expert(view, into);
  for (const auto& source : sources) folder.mapped(file).drop(source);
  return Done{};
}

Result<std::vector<LayerScales>> of_folder(const convert::ConvertedFolder& folder,
                                           const ScaleOptions& options) {
  std::vector<LayerScales> layers;
  std::vector<convert::LayerPacker> packers;
  for (std::size_t number = 0; number < folder.manifest().layers.size(); ++number) {
    const convert::LayerRecord& record = folder.manifest().layers[number];
    Result<convert::LayerPacker> packer = folder.packer(number);
    if (!packer) return packer.why();
    const checkpoint::Slice& slice = folder.manifest().slice;
    const std::uint64_t all = record.problem.global_experts;
    const auto local = checkpoint::local_experts(all == 0 ? record.problem.experts : all,
                                                 slice.expert_parallel, slice.placement);
    if (!local) return local.why();
    LayerScales& layer = layers.emplace_back(LayerScales{.index = record.index});
    for (const std::uint64_t expert : *local) layer.experts.push_back({.expert = expert});
    packers.push_back(*std::move(packer));
  }
  const Result<Done> done =
      count_all(layers, options, [&](WorkItem item, ExpertScales& into) -> Result<Done> {
        const convert::LayerPacker& packer = packers[item.layer];
        const Result<Done> counted = count_packed(folder, packer, item, into);
        if (options.progress) options.progress(packer.expert_bytes());
        return counted;
      });
  if (!done) return done.why();
  return layers;
}

Json to_json(const ScaleHistogram& histogram) {
  Json json{{"blocks", histogram.blocks()},
            {"zeros", histogram.zeros()},
            {"negative", histogram.negative()}};
  if (!histogram.has_scales()) return json;
  json.update({{"least", histogram.min()},
               {"largest", histogram.largest()},
               {"mean_log2", histogram.mean_log2()},
               {"first_bin", histogram.first_bin()},
               {"counts", histogram.counts()}});
  return json;
}

using Histograms = std::array<ScaleHistogram, kProjectionNames.size()>;

// A projection without blocks is left out: a gate, if there is none.
Json to_json(const Histograms& histograms) {
  Json json = Json::object();
  for (std::size_t i = 0; i < histograms.size(); ++i)
    if (histograms[i].blocks() > 0) json[kProjectionNames[i]] = to_json(histograms[i]);
  return json;
}

void add(const Histograms& from, Histograms& into) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i].add(from[i]);
}

// An expert without its counts, which are many.
Json expert_json(const ExpertScales& expert) {
  Json json{{"expert", expert.expert}};
  if (expert.why) json["error"] = fp4moe::to_json(*expert.why);
  for (std::size_t i = 0; i < kProjectionNames.size() && !expert.why; ++i) {
    const ScaleHistogram& histogram = expert.projections[i];
    if (histogram.blocks() == 0) continue;
    Json row = to_json(histogram);
    row.erase("first_bin");
    row.erase("counts");
    json[kProjectionNames[i]] = std::move(row);
  }
  return json;
}

}  // namespace

// One that is not there yet is made, with those between.
std::uint64_t& ScaleHistogram::bin(int log2) {
  if (bins_.empty()) first_bin_ = log2;
  if (log2 < first_bin_) {
    bins_.insert(bins_.begin(), static_cast<std::size_t>(first_bin_ - log2), 0);
    first_bin_ = log2;
  }
  const auto at = static_cast<std::size_t>(log2 - first_bin_);
  if (at >= bins_.size()) bins_.resize(at + 1);
  return bins_[at];
}

void ScaleHistogram::add_scale(double magnitude, std::uint64_t count) {
  const double log2 = std::log2(magnitude);
  bin(static_cast<int>(std::floor(log2))) += count;
  const bool is_first = blocks_ == zeros_;
  min_ = is_first ? magnitude : std::min(min_, magnitude);
  largest_ = is_first ? magnitude : std::max(largest_, magnitude);
  sum_log2_ += log2 * static_cast<double>(count);
  blocks_ += count;
}

void ScaleHistogram::add(WeightFormat format, const checkpoint::ProjectionView& projection) {
  const std::array<std::uint64_t, 256> counts = count_bytes(projection.scales);
  for (std::size_t byte = 0; byte < counts.size(); ++byte) {
    if (counts[byte] == 0) continue;
    const auto code = static_cast<std::uint8_t>(byte);
    const double scale =
        static_cast<double>(format == WeightFormat::mxfp4 ? formats::E8m0::decode(code)
                                                          : formats::E4m3fn::decode(code)) *
        static_cast<double>(projection.global_scale);
    if (scale < 0) negative_ += counts[byte];
    if (scale == 0 || !std::isfinite(scale))
      blocks_ += counts[byte], zeros_ += counts[byte];
    else
      add_scale(std::abs(scale), counts[byte]);
  }
}

void ScaleHistogram::add(const ScaleHistogram& other) {
  if (other.has_scales()) {
    const bool is_first = !has_scales();
    min_ = is_first ? other.min_ : std::min(min_, other.min_);
    largest_ = is_first ? other.largest_ : std::max(largest_, other.largest_);
    for (std::size_t i = 0; i < other.bins_.size(); ++i)
      bin(other.first_bin_ + static_cast<int>(i)) += other.bins_[i];
  }
  blocks_ += other.blocks_;
  zeros_ += other.zeros_;
  negative_ += other.negative_;
  sum_log2_ += other.sum_log2_;
}

double ScaleHistogram::mean_log2() const {
  return sum_log2_ / static_cast<double>(blocks_ - zeros_);
}

Result<std::vector<LayerScales>> scale_statistics(const std::string& path,
                                                  const ScaleOptions& options) {
  const Result<checkpoint::Checkpoint> model = checkpoint::Checkpoint::open(path);
  if (model) return of_checkpoint(*model, options);
  if (model.why().id != "dialect.converted") return model.why();
  const Result<convert::ConvertedFolder> folder = convert::ConvertedFolder::open(path);
  if (!folder) return folder.why();
  return of_folder(*folder, options);
}

Result<std::uint64_t> scale_bytes(const std::string& path) {
  const Result<checkpoint::Checkpoint> model = checkpoint::Checkpoint::open(path);
  std::uint64_t bytes = 0;
  if (model) {
    for (const checkpoint::LayerTensors& layer : model->layers())
      bytes += layer.shape.experts * blocks_of(layer.shape);
    return bytes;
  }
  if (model.why().id != "dialect.converted") return model.why();
  const Result<convert::ConvertedFolder> folder = convert::ConvertedFolder::open(path);
  if (!folder) return folder.why();
  for (std::size_t number = 0; number < folder->manifest().layers.size(); ++number) {
    const Result<convert::LayerPacker> packer = folder->packer(number);
    if (!packer) return packer.why();
    bytes += packer->problem().experts * packer->expert_bytes();
  }
  return bytes;
}

Json to_json(const std::vector<LayerScales>& layers) {
  Histograms whole;
  Json rows = Json::array();
  for (const LayerScales& layer : layers) {
    Histograms of_layer;
    Json experts = Json::array();
    for (const ExpertScales& expert : layer.experts) {
      if (!expert.why) add(expert.projections, of_layer);
      experts.push_back(expert_json(expert));
    }
    add(of_layer, whole);
    rows.push_back({{"layer", layer.index},
                    {"projections", to_json(of_layer)},
                    {"experts", std::move(experts)}});
  }
  return {{"projections", to_json(whole)}, {"layers", std::move(rows)}};
}

}  // namespace fp4moe::report
