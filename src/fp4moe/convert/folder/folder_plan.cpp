#include "fp4moe/convert/folder/folder_plan.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/checkpoint/write/copy_checkpoint.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/convert/folder/model_files.hpp"
#include "fp4moe/tensor/files/store_files.hpp"

namespace fp4moe::convert {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kProgram = 48 * kMiB;  // code, headers, manifest
// Bytes of each tensor of the source beyond those that the program's share covers: name, shape,
// records.
constexpr std::uint64_t kTensor = 1024, kFreeTensors = 32768;
constexpr std::string_view kQuantConfigName = "hf_quant_config.json";
constexpr std::uint64_t kAround = 6 * kMiB;  // pages beside an expert's, and a piece being copied

// Usual sizes, which these shares cover, of all headers and documents and of each tensor's entry,
// line of the index and name; and how often a larger one lies in memory at once.
constexpr std::uint64_t kUsualHeaders = 8 * kMiB, kUsualDocuments = kMiB / 2;
constexpr std::uint64_t kUsualEntry = 256, kUsualName = 128;
constexpr std::uint64_t kNameCopies = 8;      // in records, their JSON and its text
constexpr std::uint64_t kDocumentTimes = 24;  // "[0,0,0" as values, in a list that grows
constexpr std::uint64_t kOther = 1024;  // of each tensor beside the experts, which has a record

std::uint64_t excess(std::uint64_t bytes, std::uint64_t usual) {
  return std::max(bytes, usual) - usual;
}

bool needs_input_scales(const layout::Layout& layout) {
  return layout.scalars != nullptr && layout.scalars->inputs != layout::InputUse::none;
}

// The source is found again from any working directory.
std::string absolute_path(const std::string& path) {
  std::error_code code;
  const std::filesystem::path whole = std::filesystem::absolute(path, code);
  return path.empty() || code ? path : whole.lexically_normal().string();
}

Result<PlannedLayer> plan_layer(const checkpoint::Checkpoint& checkpoint, std::size_t number,
                                const Recipe& recipe) {
  const checkpoint::LayerTensors& layer = checkpoint.layers()[number];
  if (layer.shape.format != recipe.layout->format)
    return usage("layout.format", "the layout is for weights of another format")
        .in(checkpoint.store().folder())
        .at(layer.prefix)
        .expects(fmt::format("{} ({})", formats::name(recipe.layout->format), recipe.layout->id),
                 formats::name(layer.shape.format))
        .try_this("Choose a layout or backend of the checkpoint's format");
  if (needs_input_scales(*recipe.layout) && !layer.shape.has_input_scale)
    return invalid("scale.input", "the kernel quantizes activations by scales of the checkpoint")
        .in(checkpoint.store().folder())
        .at(layer.prefix)
        .expects("an input scale for every expert", "none")
        .try_this("choose a backend with 16-bit activations");
  Result<LayerJob> job = layer_job(checkpoint, number, recipe);
  if (!job) return job.why();
  const Result<LayerPacker> packer = LayerPacker::make(*recipe.layout, job->problem);
  if (!packer) return Error(packer.why()).at(layer.prefix);
  PlannedLayer planned{.tensors{packer->tensors().begin(), packer->tensors().end()}};
  planned.record = {.index = layer.index, .prefix = layer.prefix, .problem = job->problem};
  planned.job = *std::move(job);
  planned.expert_bytes = packer->expert_bytes();
  planned.source_expert_bytes =
      checkpoint::expert_layout(*layer.row, layer.shape, tensor::DType::f32).bytes();
  for (const PackedTensorSpec& tensor : planned.tensors) planned.bytes += tensor.bytes;
  return planned;
}

// By the layer's number; a second layer of that number (a draft model's) gets a suffix.
std::string layer_file(std::uint64_t index, std::set<std::string>& taken) {
  std::string name = fmt::format("experts-{:05}.safetensors", index);
  for (int again = 2; !taken.insert(name).second; ++again)
    name = fmt::format("experts-{:05}-{}.safetensors", index, again);
  return name;
}

std::vector<PlannedOthers> plan_others(const SourceParts& parts, std::uint64_t max_bytes) {
  std::vector<PlannedOthers> files;
  std::uint64_t bytes = 0;
  for (const tensor::StoredTensor* tensor : parts.others) {
    if (files.empty() ||
        (bytes != 0 && tensor->entry.bytes > max_bytes - std::min(bytes, max_bytes))) {
      files.push_back({.file = fmt::format("others-{:05}.safetensors", files.size() + 1)});
      bytes = 0;
    }
    files.back().tensors.push_back(tensor);
    bytes += tensor->entry.bytes;
  }
  return files;
}

Result<std::vector<checkpoint::FileCopy>> plan_companions(const tensor::Store& store) {
  Result<std::vector<checkpoint::FileCopy>> files =
      checkpoint::companion_files(store, {std::string(kManifestName)});
  if (!files) return files;
  for (const checkpoint::FileCopy& file : *files)
    if (!is_utf8(file.name))
      return invalid("convert.name", "a file beside the checkpoint has a name that is no text")
          .in(store.folder())
          .expects("UTF-8", printable(file.name))
          .try_this("rename it");
  return files;
}

std::string_view text_of(const tensor::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Files that are made here are not copied, but kept.
Result<Done> plan_generated(FolderPlan& plan) {
  const auto is_copied = [](const checkpoint::FileCopy& file) { return !is_generated(file.name); };
  // clang 14 has no std::ranges::stable_partition with libstdc++ 12.
  const auto kept =
      std::stable_partition(plan.companions.begin(), plan.companions.end(), is_copied);
  plan.kept.assign(kept, plan.companions.end());
  plan.companions.erase(kept, plan.companions.end());
  const auto config = std::ranges::find(plan.kept, kConfigName, &checkpoint::FileCopy::name);
  if (config == plan.kept.end()) return Done{};
  const Result<tensor::MappedFile> file = tensor::MappedFile::open(config->from);
  if (!file) return file.why();
  const auto beside =
      std::ranges::find(plan.companions, kQuantConfigName, &checkpoint::FileCopy::name);
  Result<tensor::MappedFile> quantization = tensor::MappedFile();
  if (beside != plan.companions.end()) quantization = tensor::MappedFile::open(beside->from);
  if (!quantization) return quantization.why();
  auto result = config_for_fp4moe(text_of(*file), text_of(*quantization));
  if (!result) return invalid("config.type", "the configuration is not an object").in(config->from);
  plan.config = *std::move(result);
  return Done{};
}

std::uint64_t size_of(const std::string& path) {
  std::error_code code;
  const std::uintmax_t size = std::filesystem::file_size(path, code);
  return code ? 0 : size;
}

Result<Done> measure_kept(const tensor::Store& store, FolderPlan& plan) {
  const Result<std::uint64_t> frames = frame_bytes(store);
  if (!frames) return frames.why();
  plan.kept_bytes = *frames + (plan.index.empty() ? 0 : size_of(plan.index));
  for (const checkpoint::FileCopy& file : plan.kept) plan.kept_bytes += size_of(file.from);
  for (const auto& scalars : plan.parts.scalars)
    for (const tensor::StoredTensor* tensor : scalars) plan.kept_bytes += tensor->entry.bytes;
  return Done{};
}

std::uint64_t header_bytes(const tensor::Store& store, const FolderPlan& plan) {
  const std::uint64_t tensors = store.tensors().size();
  std::uint64_t names = 0;
  for (const tensor::StoredTensor& tensor : store.tensors()) names += tensor.entry.name.size();
  std::uint64_t documents =
      plan.index.empty() ? 0 : excess(size_of(plan.index), kUsualEntry * tensors);
  for (const std::string_view name : {kConfigName, kQuantConfigName})
    documents += size_of(store.path_of(name));
  return excess(store.header_bytes(), kUsualHeaders + kUsualEntry * tensors) +
         kNameCopies * excess(names, kUsualName * tensors) +
         kOther * excess(plan.parts.others.size(), kFreeTensors) +
         kDocumentTimes * excess(documents, kUsualDocuments);
}

std::uint64_t lane_bytes(const FolderPlan& plan) {
  std::uint64_t max = 0;
  for (const PlannedLayer& layer : plan.layers)
    max = std::max(max,
                   layer.expert_bytes + (plan.unpacks_source ? 2 : 1) * layer.source_expert_bytes);
  return max + kAround;
}

std::uint64_t base_bytes(const FolderPlan& plan) {
  return kProgram + kTensor * excess(plan.source_tensors, kFreeTensors) + plan.header_bytes;
}

}  // namespace

Result<FolderPlan> plan_folder(const checkpoint::Checkpoint& checkpoint, const std::string& path,
                               const Recipe& recipe, const FolderOptions& options) {
  const tensor::Store& store = checkpoint.store();
  if (const auto files = store.require_files(); !files) return files.why();
  FolderPlan plan{.recipe = recipe};
  plan.unpacks_source = checkpoint.dialect().needs_unpacking();
  if (checkpoint.layers().empty())
    return invalid("convert.nothing", "the checkpoint has no MoE layer to convert").in(path);
  std::set<std::string> taken;
  for (std::size_t number = 0; number < checkpoint.layers().size(); ++number) {
    Result<PlannedLayer> layer = plan_layer(checkpoint, number, recipe);
    if (!layer) return layer.why();
    layer->record.file = layer_file(layer->record.index, taken);
    plan.expert_bytes += layer->bytes;
    plan.layers.push_back(*std::move(layer));
  }
  plan.parts = parts_of(checkpoint);
  plan.source_tensors = store.tensors().size();
  if (!options.experts_only) plan.others = plan_others(plan.parts, options.max_shard_bytes);
  for (const PlannedOthers& file : plan.others)
    for (const tensor::StoredTensor* tensor : file.tensors) plan.other_bytes += tensor->entry.bytes;
  const Result<tensor::StoreFiles> files = tensor::find_store_files(path);
  if (!files) return files.why();
  plan.index = files->index_path;
  Result<std::vector<checkpoint::FileCopy>> companions = plan_companions(store);
  if (!companions) return companions.why();
  plan.companions = *std::move(companions);
  if (Result<Done> done = plan_generated(plan); !done) return done.why();
  for (const checkpoint::FileCopy& file : plan.companions)
    plan.companion_bytes += size_of(file.from);
  plan.companion_bytes += plan.config.size();
  plan.header_bytes = header_bytes(store, plan);
  if (Result<Done> done = measure_kept(store, plan); !done) return done.why();
  plan.manifest = {
      .layout = std::string(recipe.layout->id),
      .generation = std::string(recipe.layout->generation),
      .backend = std::string(recipe.sizing.backend == nullptr ? "" : recipe.sizing.backend->name),
      .library = std::string(kVersion),
      .slice = recipe.slice,
      .params_type = recipe.params_type,
      .experts_only = options.experts_only,
      .source_path = absolute_path(path),
      .dialect = std::string(checkpoint.dialect().name)};
  return plan;
}

std::uint64_t memory_of(const FolderPlan& plan, std::size_t threads) {
  return base_bytes(plan) + threads * lane_bytes(plan);
}

Result<std::size_t> threads_within(const FolderPlan& plan, std::size_t threads,
                                   std::uint64_t max_memory) {
  threads = std::max<std::size_t>(threads, 1);
  if (max_memory == 0) return threads;
  if (const std::uint64_t min = memory_of(plan, 1); min > max_memory)
    return error(ErrorCode::exhausted, "convert.memory",
                 "even one expert at a time needs more memory")
        .at("--max-memory")
        .expects(fmt::format("at least {} bytes ({})", min, human_bytes(min)),
                 fmt::format("{} bytes", max_memory))
        .try_this("Allow more, or convert on a machine that has it");
  return std::min<std::size_t>(threads, (max_memory - base_bytes(plan)) / lane_bytes(plan));
}

}  // namespace fp4moe::convert
