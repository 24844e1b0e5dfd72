#include "fp4moe/convert/journal.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::convert {
namespace {

namespace fs = std::filesystem;

std::string journal_path(const std::string& staging) {
  return fmt::format("{}/{}", staging, kJournalName);
}

std::string shown(const Json& json) { return printable(json.dump()); }

// The first thing that differs, with both sides.
Result<Done> compare(const Json& found, const Json& wanted, const std::string& path) {
  const auto refuse = [&path](std::string_view what, const Json& before, const Json& now) {
    return usage("convert.resume", fmt::format("what was begun had another {}", what))
        .in(path)
        .expects(shown(before), shown(now))
        .try_this("give the same options and source, or begin anew without --resume");
  };
  if (!found.is_object()) return refuse("form", found, wanted);
  for (const auto& [key, value] : wanted.items()) {
    const auto before = found.find(key);
    if (before == found.end()) return refuse(key, nullptr, value);
    if (*before == value) continue;
    if (!value.is_array() || !before->is_array() || value.size() != before->size())
      return refuse(key, *before, value);
    for (std::size_t i = 0; i < value.size(); ++i)
      if ((*before)[i] != value[i]) return refuse(key, (*before)[i], value[i]);
  }
  return Done{};
}

}  // namespace

Json identity_of(const FolderPlan& plan, const std::vector<FileStamp>& stamps) {
  Json sizes = Json::array(), source = Json::array(), companions = Json::array();
  for (const PlannedLayer& layer : plan.layers)
    sizes.push_back({{"prefix", layer.record.prefix},
                     {"hidden", layer.record.problem.padded.hidden},
                     {"intermediate", layer.record.problem.padded.intermediate}});
  for (const FileStamp& stamp : stamps)
    source.push_back({{"name", stamp.file.name},
                      {"bytes", stamp.file.bytes},
                      {"frame", text(stamp.file.frame)},
                      {"modified_ns", stamp.modified_ns},
                      {"inode", stamp.inode}});
  const Manifest& manifest = plan.manifest;
  return {{"library", manifest.library},
          {"layout", manifest.layout},
          {"generation", manifest.generation},
          {"backend", manifest.backend},
          {"tp", text(manifest.slice.tensor_parallel)},
          {"ep", text(manifest.slice.expert_parallel)},
          {"placement", name(manifest.slice.placement)},
          {"params_dtype", tensor::name(manifest.params_type)},
          {"experts_only", manifest.experts_only},
          {"padded sizes", std::move(sizes)},
          {"other files", plan.others.size()},
          {"source path", manifest.source_path},
          {"source file", std::move(source)}};
}

Result<bool> Journal::load(const std::string& staging) {
  const std::string path = journal_path(staging);
  const Result<Json> json = read_json_file(path);
  if (!json || !json->is_object() || !json->contains("identity")) return false;
  if (Result<Done> same = compare((*json)["identity"], identity_, path); !same) return same.why();
  const auto list = [&](const char* key) {
    const auto found = json->find(key);
    return found != json->end() && found->is_array() ? *found : Json::array();
  };
  for (const Json& each : list("files")) {
    Result<FileRecord> file = file_from_json(each);
    if (!file) return Error(file.why()).in(path);
    std::error_code code;
    // Files take their names when they are whole; the size is a check against tampering.
    if (fs::file_size(fmt::format("{}/{}", staging, file->name), code) == file->bytes && !code)
      files_.push_back(*std::move(file));
  }
  for (const Json& each : list("layers")) {
    Result<LayerRecord> layer = layer_from_json(each);
    if (!layer) return Error(layer.why()).in(path);
    layers_.push_back(*std::move(layer));
  }
  return true;
}

Result<Done> Journal::add(const std::string& staging, FileRecord file, const LayerRecord* layer) {
  std::erase_if(layers_, [&](const LayerRecord& each) { return each.file == file.name; });
  files_.push_back(std::move(file));
  if (layer != nullptr) layers_.push_back(*layer);
  Json files = Json::array(), layers = Json::array();
  for (const FileRecord& each : files_) files.push_back(to_json(each));
  for (const LayerRecord& each : layers_) layers.push_back(to_json(each));
  const Json json{
      {"identity", identity_}, {"files", std::move(files)}, {"layers", std::move(layers)}};
  const std::string dumped = json.dump();
  return tensor::write_file(journal_path(staging),
                            std::as_bytes(std::span(dumped.data(), dumped.size())));
}

const FileRecord* Journal::file(std::string_view wanted) const {
  const auto found = std::ranges::find(files_, wanted, &FileRecord::name);
  return found == files_.end() ? nullptr : &*found;
}

const LayerRecord* Journal::layer(std::string_view wanted) const {
  const auto found = std::ranges::find(layers_, wanted, &LayerRecord::file);
  return found == layers_.end() ? nullptr : &*found;
}

}  // namespace fp4moe::convert
