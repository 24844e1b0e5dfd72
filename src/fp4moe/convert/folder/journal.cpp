#include "fp4moe/convert/folder/journal.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/intact.hpp"
#include "fp4moe/convert/folder/record_fields.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::convert {
namespace {

constexpr const char* kJournalChecksum = "xxh3_128";

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
  Json sizes = Json::array(), source = Json::array();
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
          {"config.json", text(digest_of(plan.config))},
          {"source path", manifest.source_path},
          {"source file", std::move(source)}};
}

std::string to_text(const JournalRecords& records) {
  Json files = Json::array(), layers = Json::array();
  for (const FileRecord& each : records.files) files.push_back(to_json(each));
  for (const LayerRecord& each : records.layers) layers.push_back(to_json(each));
  Json json{
      {"identity", records.identity}, {"files", std::move(files)}, {"layers", std::move(layers)}};
  json[kJournalChecksum] = text(digest_of(json.dump()));
  return json.dump();
}

Result<JournalRecords> journal_from_text(std::string_view whole) {
  Result<Json> json = parse_json(whole);
  if (!json) return json.why();
  std::string wrong;
  RecordFields fields(*json, "the journal", wrong);
  JournalRecords records{.identity = fields.any("identity")};
  const std::string stated = fields.string(kJournalChecksum);
  const Json files = fields.array("files"), layers = fields.array("layers");
  if (wrong.empty()) {
    json->erase(kJournalChecksum);
    if (text(digest_of(json->dump())) != stated) wrong = "another checksum than its own";
  }
  if (!wrong.empty())
    return invalid("converted.manifest", "the journal of the conversion is damaged")
        .expects("the journal as fp4moe wrote it", wrong)
        .try_this("begin anew without --resume");
  for (const Json& each : files.elements()) {
    Result<FileRecord> file = file_from_json(each);
    if (!file) return file.why();
    records.files.push_back(*std::move(file));
  }
  for (const Json& each : layers.elements()) {
    Result<LayerRecord> layer = layer_from_json(each);
    if (!layer) return layer.why();
    records.layers.push_back(*std::move(layer));
  }
  return records;
}

Result<bool> Journal::load(const std::string& staging, std::size_t threads) {
  const std::string path = journal_path(staging);
  const Result<Json> json = read_json_file(path);
  if (!json && json.why().code == ErrorCode::exhausted) return json.why();
  if (!json || !json->is_object() || !json->contains("identity")) return false;
  if (Result<Done> same = compare((*json)["identity"], identity_, path); !same) return same.why();
  Result<JournalRecords> records = journal_from_text(json->dump());
  if (!records) return Error(records.why()).in(path);
  for (FileRecord& file : records->files) {
    const Result<bool> intact = is_intact(fmt::format("{}/{}", staging, file.name), file, threads);
    if (!intact) return intact.why();
    if (*intact)
      files_.push_back(std::move(file));
    else
      ++damaged_;
  }
  layers_ = std::move(records->layers);
  return true;
}

Result<Done> Journal::add(const std::string& staging, FileRecord file, const LayerRecord* layer) {
  std::erase_if(layers_, [&](const LayerRecord& each) { return each.file == file.name; });
  files_.push_back(std::move(file));
  if (layer != nullptr) layers_.push_back(*layer);
  const std::string dumped = to_text({.identity = identity_, .files = files_, .layers = layers_});
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
