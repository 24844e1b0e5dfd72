#include "fp4moe/runtime/run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/sha256.hpp"
#include "fp4moe/convert/folder/checksum.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/moe/exchange/threads.hpp"
#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using moe::exchange::Communicator;
using tensor::DType;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The tokens that one rank brings: all of them, or where an exchange carries them, its share.
struct Share {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
};
bool deals_out(const RunOptions& options, std::uint64_t ranks) {
  return ranks > 1 && moe::exchange::row(options.layer.exchange).needs_ranks;
}
Share share_of(const RunOptions& options, std::uint64_t tokens, std::uint64_t rank,
               std::uint64_t ranks) {
  if (!deals_out(options, ranks)) return {0, tokens};
  return {tokens * rank / ranks, tokens * (rank + 1) / ranks};
}

struct Routes {
  std::vector<float> logits{};
  std::string how{};
};

Tokens tokens_of(const RunInput& input, const Routes& routes, const Share& share,
                 std::uint64_t experts) {
  Tokens created{.x = input.rows().from(share.begin, share.size())};
  if (!input.adapters.empty())
    created.adapters = std::span(input.adapters).subspan(share.begin, share.size());
  if (!input.ids.empty()) {
    created.top_k = input.top_k;
    created.ids =
        std::span(input.ids).subspan(share.begin * input.top_k, share.size() * input.top_k);
    created.weights =
        std::span(input.weights).subspan(share.begin * input.top_k, share.size() * input.top_k);
    return created;
  }
  created.logits = moe::dense_rows(
      std::span(routes.logits).subspan(share.begin * experts, share.size() * experts), DType::f32,
      share.size(), experts);
  return created;
}

void describe(const MoeLayer& layer, const Routes& routes, LayerRun& run) {
  const Choice& choice = layer.choice();
  run.backend = choice.backend->name;
  run.policy = choice.policy->name;
  run.release = choice.release;
  run.why = choice.why;
  run.layout = convert::layout_text(choice.layout->id, choice.layout->generation);
  run.engine = layer.experts()->engine();
  run.kernel = layer.experts()->kernel();
  run.numerics = layer.problem().numerics.id;
  run.quantizes = oracle::name(layer.problem().quantizes);
  run.routing = routes.how;
  run.is_monolithic = layer.is_monolithic() && !routes.logits.empty();
  run.top_k = layer.router().assignments_per_token();
  run.bytes = layer.weights().bytes();
  run.experts = layer.problem().shape.experts;
  run.weights = (layer.problem().shape.w13_rows() + layer.problem().shape.intermediate) *
                layer.problem().shape.hidden;
  run.tolerance = moe::tolerance(layer.problem().numerics, layer.problem().quantizes, run.engine);
  run.warnings = layer.warnings();
  if (run.release && !run.release->note.empty()) run.warnings.push_back(run.release->note);
}

checkpoint::Slice slice_of(Split split, std::uint64_t rank, std::uint64_t ranks,
                           checkpoint::Placement placement) {
  checkpoint::Slice slice{.placement = placement};
  if (split == Split::tensor) slice.tensor_parallel = {rank, ranks};
  if (split == Split::expert) slice.expert_parallel = {rank, ranks};
  return slice;
}

struct Job {
  const Model& model;
  std::size_t number = 0;
  const RunInput& input;
  const RunOptions& options;
  const Routes& routes;
};

// Rows of all ranks, where each has its share.
Result<Done> gather_rows(Communicator& group, const Job& job, std::span<const float> mine,
                         std::vector<float>& all) {
  moe::exchange::Parcel parcel{.step = "outputs", .send_bytes = {mine.size_bytes()}};
  for (std::uint64_t rank = 0; rank < group.size(); ++rank)
    parcel.receive_bytes.push_back(
        share_of(job.options, job.input.tokens, rank, group.size()).size() * job.input.hidden *
        sizeof(float));
  if (const auto done = moe::exchange::reserve(parcel.send, mine.size_bytes()); !done)
    return done.why();
  if (!mine.empty()) std::memcpy(parcel.send.data(), mine.data(), mine.size_bytes());
  if (const auto done = group.all_gather(parcel); !done) return done.why();
  if (!all.empty()) std::memcpy(all.data(), parcel.receive.data(), all.size() * sizeof(float));
  return Done{};
}

// Assignments with an expert of this rank, and how many experts have any.
void count_assignments(const MoeLayer& layer, const Tokens& tokens, LayerRun& run) {
  std::vector<std::int32_t> ids(tokens.ids.begin(), tokens.ids.end());
  if (ids.empty() && tokens.logits.data != nullptr) {
    ids.resize(tokens.logits.rows * layer.router().assignments_per_token());
    std::vector<float> weights(ids.size());
    ThreadPool alone(1);
    const auto routed = layer.router().route(
        {.logits = {tokens.logits.data, tokens.logits.dtype, tokens.logits.rows,
                    tokens.logits.columns, tokens.logits.columns}},
        {.ids = ids, .weights = weights}, alone);
    if (!routed) return;
  }
  std::vector<bool> seen(layer.facts().model.shape.experts, false);
  for (const std::uint64_t expert : layer.local_experts())
    if (expert < seen.size()) seen[expert] = true;
  std::vector<bool> used(seen.size(), false);
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= seen.size() ||
        !seen[static_cast<std::size_t>(id)])
      continue;
    ++run.assignments;
    used[static_cast<std::size_t>(id)] = true;
  }
  run.active = static_cast<std::uint64_t>(std::ranges::count(used, true));
}

// The choices that all ranks of one layer must share.
std::string chosen_text(const MoeLayer& layer, std::uint64_t index) {
  const Choice& choice = layer.choice();
  return fmt::format("layer {}; backend {}; layout {}; numerics {}; activations {}; top_k {}",
                     index, choice.backend->name,
                     convert::layout_text(choice.layout->id, choice.layout->generation),
                     layer.problem().numerics.id, oracle::name(layer.problem().quantizes),
                     layer.router().assignments_per_token());
}

template <class T>
void add_values(Sha256& digest, const std::vector<T>& values) {
  const std::uint64_t count = values.size();
  digest.add(std::as_bytes(std::span(&count, 1)));
  digest.add(std::as_bytes(std::span(values)));
}

// Short enough to be read, long enough to be unique.
std::string short_hex(const Sha256::Digest& digest) {
  std::string created;
  for (std::size_t i = 0; i < 8; ++i) created += fmt::format("{:02x}", digest[i]);
  return created;
}

std::string digest_text(const RunInput& input) {
  Sha256 digest;
  add_values(digest, input.x);
  add_values(digest, input.logits);
  add_values(digest, input.ids);
  add_values(digest, input.weights);
  add_values(digest, input.adapters);
  return short_hex(digest.finish());
}

// An adapter's numbers, and what they are scaled by.
std::string digest_text(const checkpoint::Adapter& adapter) {
  convert::DigestStream digest;
  const auto add = [&digest](const std::string& line) {
    digest.add(std::as_bytes(std::span(line.data(), line.size())));
  };
  const checkpoint::AdapterConfig& config = adapter.config();
  add(fmt::format("{} {} {}\n", config.rank, config.alpha, config.rslora));
  for (const auto& [pattern, rank] : config.rank_pattern)
    add(fmt::format("{} {}\n", pattern, rank));
  for (const auto& [pattern, alpha] : config.alpha_pattern)
    add(fmt::format("{} {}\n", pattern, alpha));
  const tensor::Store& store = adapter.store();
  for (const tensor::StoredTensor& each : store.tensors()) {
    add(fmt::format("{} {} {}\n", each.entry.name, tensor::name(each.entry.dtype),
                    tensor::text(each.entry.shape)));
    const std::span<const std::byte> bytes = store.bytes(each);
    digest.add(bytes);
    store.drop(each, bytes);
  }
  return convert::text(digest.digest()).substr(0, 16);
}

// One rank's part of the work. `group` is null when there is only one.
Result<LayerRun> run_rank(const Job& job, Communicator* group) {
  const std::uint64_t rank = group == nullptr ? 0 : group->rank();
  const std::uint64_t ranks = group == nullptr ? 1 : group->size();
  LayerOptions options = job.options.layer;
  options.slice = slice_of(job.options.split, rank, ranks, options.slice.placement);
  options.ranks = group;
  LayerRun run{.index = job.model.layer_index(job.number),
               .tokens = job.input.tokens,
               .hidden = job.input.hidden};
  const Clock::time_point start = Clock::now();
  Result<MoeLayer> layer = job.model.layer(job.number, std::move(options));
  if (!layer) return layer.why();
  if (job.options.group != nullptr)
    if (const auto same = group->agree(chosen_text(*layer, run.index)); !same) return same.why();
  if (const auto done = layer->load(); !done) return done.why();
  if (const auto done = layer->process(); !done) return done.why();
  const Result<moe::LoraSet> lora =
      job.model.adapters(job.number, job.options.adapters, layer->slice());
  if (!lora) return lora.why();
  run.load_seconds = since(start);
  describe(*layer, job.routes, run);
  if (job.options.trace != nullptr)
    if (auto* watched = dynamic_cast<moe::reference::ReferenceExperts*>(layer->experts()))
      watched->watch(job.options.trace);
  const Share share = share_of(job.options, job.input.tokens, rank, ranks);
  const Tokens tokens = tokens_of(job.input, job.routes, share, layer->facts().model.shape.experts);
  count_assignments(*layer, tokens, run);
  // Outputs leave in bf16, as a model's layers do; exact ones as they are.
  const bool is_exact = layer->problem().numerics.id == "exact";
  std::vector<float> mine(share.size() * run.hidden);
  const Clock::time_point begin = Clock::now();
  const auto done = layer->run(
      tokens, moe::dense_rows(std::span(mine), DType::f32, share.size(), run.hidden), lora->view());
  run.seconds = since(begin);
  if (!done) return done.why();
  if (!is_exact)
    for (float& value : mine) value = static_cast<float>(moe::rounded_to_bf16(double{value}));
  if (!deals_out(job.options, ranks)) {
    run.out = std::move(mine);
    return run;
  }
  run.out.resize(run.tokens * run.hidden);
  if (const auto gathered = gather_rows(*group, job, mine, run.out); !gathered)
    return gathered.why();
  return run;
}

Result<LayerRun> run_threads(const Job& job) {
  auto groups = moe::exchange::make_threads(job.options.ranks, job.options.threads);
  std::vector<std::optional<Result<LayerRun>>> results(groups.size());
  const auto started = run_together(groups.size(), [&](std::size_t rank) {
    const auto group = std::move(groups[rank]);  // whatever happens, the others see it leave
    results[rank] = run_rank(job, group.get());
    if (!*results[rank]) group->abort((*results[rank]).why());
  });
  if (!started) return started.why();
  // The first cause, not what the others heard of it.
  for (const auto& result : results)
    if (!*result && result->why().id != "comm.aborted" && result->why().id != "comm.left")
      return result->why();
  for (const auto& result : results)
    if (!*result) return result->why();
  return std::move(*results[0]);
}

Result<std::vector<double>> exact_result(const Job& job) {
  LayerOptions options{.engine = EngineKind::reference,
                       .threads = job.options.layer.threads,
                       .pool = job.options.layer.pool,
                       .numerics = moe::NumericsKind::exact};
  Result<MoeLayer> layer = job.model.layer(job.number, std::move(options));
  if (!layer) return layer.why();
  if (const auto done = layer->load(); !done) return done.why();
  if (const auto done = layer->process(); !done) return done.why();
  const Tokens tokens =
      tokens_of(job.input, job.routes, {0, job.input.tokens}, layer->facts().model.shape.experts);
  const Result<moe::LoraSet> lora = job.model.adapters(job.number, job.options.adapters, {});
  if (!lora) return lora.why();
  std::vector<double> out(job.input.tokens * job.input.hidden);
  const auto done = layer->run(
      tokens, moe::dense_rows(std::span(out), DType::f64, job.input.tokens, job.input.hidden),
      lora->view());
  if (!done) return done.why();
  return out;
}

// Tokens without a word on it take the first adapter.
Result<std::vector<std::int32_t>> mapping_of(const RunInput& input, std::size_t adapters) {
  if (adapters == 0) return std::vector<std::int32_t>{};
  if (input.adapters.empty()) return std::vector<std::int32_t>(input.tokens, 0);
  for (const std::int32_t adapter : input.adapters)
    if (adapter < -1 || adapter >= static_cast<std::int32_t>(adapters))
      return invalid("run.input", "a token asks for an adapter that was not given")
          .in(input.origin)
          .at("token_lora_mapping")
          .expects(fmt::format("-1 to {}", adapters - 1), fmt::format("{}", adapter));
  return input.adapters;
}

}  // namespace

Result<Model> Model::open(const std::string& path) {
  Model created;
  created.path_ = path;
  std::error_code code;
  if (std::filesystem::exists(fmt::format("{}/{}", path, convert::kManifestName), code)) {
    Result<convert::ConvertedFolder> folder = convert::ConvertedFolder::open(path);
    if (!folder) return folder.why();
    created.folder_ = std::make_shared<const convert::ConvertedFolder>(std::move(*folder));
    return created;
  }
  if (std::filesystem::exists(fmt::format("{}/rank-0/{}", path, convert::kManifestName), code))
    return invalid("converted.shard", "the folder holds a folder for each rank")
        .in(path)
        .expects("the folder of one rank", "all of them")
        .try_this(fmt::format("name one of them: {}/rank-0", path));
  Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(path);
  if (!checkpoint) return checkpoint.why();
  Result<Model> of_checkpoint = of(*std::move(checkpoint));
  if (of_checkpoint) of_checkpoint->path_ = path;
  return of_checkpoint;
}

Result<Model> Model::of(checkpoint::Checkpoint checkpoint) {
  Model created;
  created.path_ = checkpoint.store().folder();
  created.checkpoint_ = std::make_shared<const checkpoint::Checkpoint>(std::move(checkpoint));
  if (created.layers() == 0)
    return invalid("run.layers", "the checkpoint has no MoE layer in FP4").in(created.path_);
  return created;
}

std::size_t Model::layers() const {
  return folder_ ? folder_->manifest().layers.size() : checkpoint_->layers().size();
}

std::uint64_t Model::layer_index(std::size_t number) const {
  return folder_ ? folder_->manifest().layers[number].index : checkpoint_->layers()[number].index;
}

std::uint64_t Model::hidden(std::size_t number) const {
  return folder_ ? folder_->manifest().layers[number].problem.real.hidden
                 : checkpoint_->layers()[number].shape.hidden;
}

Result<LayerFacts> Model::facts(std::size_t number) const {
  return folder_ ? layer_facts(*folder_, number) : layer_facts(*checkpoint_, number);
}

FindTensor Model::finder() const {
  return folder_ ? runtime::finder(*folder_) : runtime::finder(*checkpoint_);
}

std::string Model::fingerprint(std::span<const std::size_t> layers) const {
  constexpr std::size_t kSampled = 64, kSampleBytes = 64;
  std::size_t count = 0, number = 0;
  if (folder_)
    for (const convert::FileRecord& file : folder_->manifest().files) count += file.tensors.size();
  else
    count = checkpoint_->store().tensors().size();
  const std::size_t step = (count + kSampled - 1) / kSampled;
  Sha256 digest;
  const auto add = [&](const std::string& name, DType type, const tensor::Shape& shape,
                       std::span<const std::byte> bytes) {
    const std::string line =
        fmt::format("{} {} {}\n", name, tensor::name(type), tensor::text(shape));
    digest.add(std::as_bytes(std::span(line.data(), line.size())));
    if (number++ % step == 0) digest.add(bytes.first(std::min(bytes.size(), kSampleBytes)));
  };
  if (folder_) {
    const std::vector<convert::FileRecord>& files = folder_->manifest().files;
    for (std::size_t f = 0; f < files.size(); ++f)
      for (std::size_t t = 0; t < files[f].tensors.size(); ++t) {
        const convert::TensorRecord& each = files[f].tensors[t];
        add(each.name, each.dtype, each.shape, folder_->bytes(f, t));
      }
  } else {
    const tensor::Store& store = checkpoint_->store();
    for (const tensor::StoredTensor& each : store.tensors())
      add(each.entry.name, each.entry.dtype, each.entry.shape, store.bytes(each));
  }
  const FindTensor find = finder();
  for (const std::size_t layer : layers)
    if (const Result<LayerFacts> known = facts(layer))  // why not, the layer itself will say
      for (const std::string& name : known->router_tensors) digest.add(find(name)->bytes);
  return short_hex(digest.finish());
}

Result<MoeLayer> Model::layer(std::size_t number, LayerOptions options) const {
  return folder_ ? MoeLayer::open(folder_, number, std::move(options))
                 : MoeLayer::create(*checkpoint_, number, std::move(options));
}

Result<std::vector<checkpoint::Adapter>> Model::open_adapters(
    std::span<const std::string> folders) const {
  std::vector<checkpoint::Adapter> opened;
  if (folders.empty()) return opened;
  if (folder_)
    return usage("run.converted", "adapters are added to a checkpoint's layers")
        .in(path_)
        .expects("a checkpoint", "a converted folder");
  for (const std::string& folder : folders) {
    Result<checkpoint::Adapter> adapter =
        checkpoint::Adapter::open(folder, checkpoint::adapter_targets(*checkpoint_));
    if (!adapter) return adapter.why();
    opened.push_back(std::move(*adapter));
  }
  return opened;
}

Result<moe::LoraSet> Model::adapters(std::size_t number, std::span<const std::string> folders,
                                     const checkpoint::Slice& slice) const {
  const Result<std::vector<checkpoint::Adapter>> opened = open_adapters(folders);
  if (!opened) return opened.why();
  if (opened->empty()) return moe::LoraSet();
  std::vector<const checkpoint::Adapter*> all;
  for (const checkpoint::Adapter& adapter : *opened) all.push_back(&adapter);
  return moe::LoraSet::load(all, number, {.slice = slice});
}

Result<std::string> Model::adapters_fingerprint(std::span<const std::string> folders) const {
  const Result<std::vector<checkpoint::Adapter>> opened = open_adapters(folders);
  if (!opened) return opened.why();
  std::vector<std::string> digests;
  for (const checkpoint::Adapter& adapter : *opened) digests.push_back(digest_text(adapter));
  return digests.empty() ? "none" : fmt::format("{}", fmt::join(digests, ", "));
}

Result<Done> agree_on_request(Communicator& group, const Model& model,
                              std::span<const std::size_t> layers, const RunInput& input,
                              const RunOptions& options) {
  constexpr std::string_view kSplits[] = {"none", "tensor", "expert"};
  const LayerOptions& layer = options.layer;
  std::vector<std::uint64_t> indexes;
  for (const std::size_t number : layers) indexes.push_back(model.layer_index(number));
  const InputScale scale = layer.input_scale.value_or(InputScale{});
  const Result<std::string> adapters = model.adapters_fingerprint(options.adapters);
  if (!adapters) return adapters.why();
  return group.agree(fmt::format(
      "layers {}; tensors {}; split {}; placement {}; exchange {}; backend {}; policy {}; engine "
      "{}; "
      "weights {}; numerics {}; activations {}; input scale {}; batch {}; adapters {}; seed {}; "
      "{} tokens of {} values; input {}",
      fmt::join(indexes, ", "), model.fingerprint(layers),
      kSplits[static_cast<std::size_t>(options.split)], convert::name(layer.slice.placement),
      moe::exchange::row(layer.exchange).name, layer.backend_request.backend,
      layer.backend_request.policy, name(layer.engine),
      layer.weights == moe::WeightsHome::mapped ? "mapped" : "packed",
      layer.numerics ? moe::row(*layer.numerics).id : "the backend's",
      layer.quantizes ? oracle::name(*layer.quantizes) : "the scheme's",
      layer.input_scale ? fmt::format("{},{}", scale.input, scale.hidden) : "the checkpoint's",
      layer.chunk, *adapters, options.seed, input.tokens, input.hidden, digest_text(input)));
}

namespace {

// Tokens with their experts and adapters, as an engine takes them.
struct RoutedInput {
  RunInput input{};
  Routes routes{.how = "given experts"};
};

Result<RoutedInput> routed(const Model& model, std::size_t number, const RunInput& given,
                           const RunOptions& options) {
  Result<std::vector<std::int32_t>> mapping = mapping_of(given, options.adapters.size());
  if (!mapping) return mapping.why();
  RoutedInput result{.input = given};
  RunInput& input = result.input;
  input.adapters = std::move(*mapping);
  if (input.hidden != model.hidden(number))
    return invalid("run.input", "the tokens have another width than the layer")
        .in(input.origin)
        .at("hidden_states")
        .expects(fmt::format("[tokens, {}]", model.hidden(number)),
                 fmt::format("[{}, {}]", input.tokens, input.hidden));
  if (!input.ids.empty()) return result;
  const Result<LayerFacts> facts = model.facts(number);
  if (!facts) return facts.why();
  Result<Routed> routed = route_for(input, *facts, model.finder(), options.seed);
  if (!routed) return routed.why();
  input.ids = std::move(routed->ids);
  input.weights = std::move(routed->weights);
  input.top_k = input.tokens == 0 ? 0 : input.ids.size() / input.tokens;
  result.routes = {std::move(routed->logits), std::move(routed->how)};
  return result;
}

}  // namespace

Result<LayerRun> run_layer(const Model& model, std::size_t number, const RunInput& given,
                           const RunOptions& options) {
  const std::uint64_t ranks = options.group != nullptr ? options.group->size() : options.ranks;
  if (model.is_converted() && ranks > 1)
    return usage("run.converted", "a converted folder holds one rank's share")
        .in(model.path())
        .expects("a checkpoint, which ranks cut by themselves", "a converted folder");
  const Result<RoutedInput> tokens = routed(model, number, given, options);
  if (!tokens) return tokens.why();
  const Job job{model, number, tokens->input, options, tokens->routes};
  Result<LayerRun> run = options.group != nullptr ? run_rank(job, options.group)
                         : ranks > 1              ? run_threads(job)
                                                  : run_rank(job, nullptr);
  if (!run || !options.checks) return run;
  Result<std::vector<double>> exact = exact_result(job);
  if (!exact) return exact.why();
  run->exact = std::move(*exact);
  return run;
}

Result<std::vector<double>> run_exact(const Model& model, std::size_t number, const RunInput& given,
                                      const RunOptions& options) {
  const Result<RoutedInput> tokens = routed(model, number, given, options);
  if (!tokens) return tokens.why();
  return exact_result({model, number, tokens->input, options, tokens->routes});
}

double LayerRun::floor_seconds(double read_gb_per_s, double gflop_per_s) const {
  const double read = static_cast<double>(active) * static_cast<double>(bytes) /
                      static_cast<double>(std::max<std::uint64_t>(1, experts));
  const double operations = 2.0 * static_cast<double>(assignments) * static_cast<double>(weights);
  return std::max(read / (read_gb_per_s * 1e9), operations / (gflop_per_s * 1e9));
}

bool Comparison::is_within(const moe::Tolerance& allowed) const {
  return !has_nan && of_largest() <= allowed.of_largest && cosine >= allowed.cosine;
}

Comparison compare(const std::vector<double>& a, const std::vector<double>& b) {
  Comparison created{.elements = a.size()};
  double product = 0, own = 0, other = 0, squared = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) created.has_nan = true;
    const double difference = std::fabs(a[i] - b[i]);
    created.largest = std::max(created.largest, std::fabs(a[i]));
    product += a[i] * b[i];
    own += a[i] * a[i];
    other += b[i] * b[i];
    squared += difference * difference;
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (created.unequal++ == 0) created.first = i;
    if (!created.farthest || difference > created.difference) {
      created.difference = difference;
      created.farthest = i;
    }
  }
  if (own > 0 && other > 0) created.cosine = product / std::sqrt(own * other);
  if (own > 0) created.rms = std::sqrt(squared / own);
  return created;
}

}  // namespace fp4moe::runtime
