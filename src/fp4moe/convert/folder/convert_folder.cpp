#include "fp4moe/convert/folder/convert_folder.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/convert/folder/folder_writer.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::convert {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A full disk is noticed before the work, not after half of it.
Result<Done> check_space(const FolderPlan& plan, const Journal& journal,
                         const tensor::AtomicFolder& folder, bool has_sibling) {
  std::uint64_t needed = plan.companion_bytes;
  if (journal.file(kSourceName) == nullptr) needed += plan.kept_bytes;
  for (const PlannedLayer& layer : plan.layers)
    if (journal.file(layer.record.file) == nullptr) needed += layer.bytes;
  for (const PlannedOthers& others : plan.others)
    if (journal.file(others.file) == nullptr)
      for (const tensor::StoredTensor* tensor : others.tensors)
        needed += has_sibling ? 0 : tensor->entry.bytes;
  std::error_code code;
  const fs::space_info space = fs::space(folder.staging(), code);
  if (code || space.available >= needed) return Done{};
  return error(ErrorCode::exhausted, "file.disk_full", "the disk cannot hold the converted folder")
      .in(tensor::parent_folder(folder.staging_name()))
      .expects(fmt::format("{} free", human_bytes(needed)),
               fmt::format("{} free", human_bytes(space.available)))
      .try_this("free space there or choose another place; nothing was written");
}

// Removes leftovers once the manifest is written: the journal, and files of hidden names that
// killed runs could not take away.
Result<Done> sweep(const Manifest& manifest, tensor::AtomicFolder& folder) {
  std::set<std::string> wanted{std::string(kManifestName)};
  for (const FileRecord& file : manifest.files) wanted.insert(file.name);
  for (const CompanionRecord& file : manifest.companions) wanted.insert(file.name);
  return folder.clear(wanted);
}

Result<Done> write_all(const checkpoint::Checkpoint& checkpoint, FolderPlan& plan,
                       FolderWriter& writer, Journal& journal,
                       const std::vector<FileStamp>& stamps) {
  if (Result<Done> done = writer.write_source(journal); !done) return done;
  for (const PlannedOthers& others : plan.others)
    if (Result<Done> done = writer.write_others(others, journal); !done) return done;
  for (PlannedLayer& layer : plan.layers)
    if (Result<Done> done = writer.write_layer(layer, journal); !done) return done;
  if (Result<Done> done = writer.copy_companions(); !done) return done;
  if (Result<Done> done = writer.make_model_files(); !done) return done;
  if (Result<Done> same = check_stamps(checkpoint, stamps); !same) return same;
  return writer.write_manifest();
}

// True if a later run may go on from here.
bool can_resume(const Error& why, const Journal& journal) {
  return !journal.empty() && why.code != ErrorCode::invalid_input && why.code != ErrorCode::usage;
}

}  // namespace

Result<ConvertReport> convert_folder(const checkpoint::Checkpoint& checkpoint, FolderPlan plan,
                                     const std::string& out, const ConvertOptions& given) {
  const Clock::time_point begin = Clock::now();
  ConvertOptions options = given;
  const auto threads = threads_within(plan, given.threads, given.max_memory);
  if (!threads) return threads.why();
  options.threads = *threads;
  const auto stamps = stamps_of(checkpoint);
  if (!stamps) return stamps.why();
  for (const FileStamp& stamp : *stamps) plan.manifest.source_files.push_back(stamp.file);
  Result<tensor::AtomicFolder> folder = tensor::AtomicFolder::create(
      out, options.resume ? tensor::Leftovers::keep : tensor::Leftovers::remove);
  if (!folder) return folder.why();
  folder->keep_staging(options.resume);  // an error of the next lines must not destroy it
  Journal journal(identity_of(plan, *stamps));
  if (options.resume) {
    const Result<bool> loaded = journal.load(folder->staging(), options.threads);
    if (!loaded) return folder->explain(loaded.why());
    if (!*loaded)
      if (Result<Done> cleared = folder->clear(); !cleared) return cleared.why();
  }
  if (Result<Done> fits = check_space(plan, journal, *folder, !options.sibling.empty()); !fits) {
    folder->keep_staging(!journal.empty());
    return fits.why();
  }
  FolderWriter writer(checkpoint, plan, folder->staging(), options);
  if (Result<Done> done = write_all(checkpoint, plan, writer, journal, *stamps); !done) {
    Error why = folder->explain(done.why());
    const bool keep = can_resume(why, journal);
    folder->keep_staging(keep);
    if (keep && why.code == ErrorCode::interrupted)
      why.remedy = "go on later with --resume, or remove " + folder->staging_name();
    return why;
  }
  if (Result<Done> done = sweep(plan.manifest, *folder); !done) return done.why();

  // The report is ready before the folder stands: a lack of memory leaves neither.
  ConvertReport report{.layers = plan.layers.size(),
                       .expert_bytes = plan.expert_bytes,
                       .other_bytes = plan.other_bytes,
                       .files = plan.manifest.files.size(),
                       .resumed_files = writer.skipped(),
                       .damaged_files = journal.damaged(),
                       .linked_files = writer.linked(),
                       .threads = options.threads};
  const auto add_once = [](std::vector<std::string>& to, const std::vector<std::string>& from) {
    for (const std::string& sentence : from)
      if (std::ranges::find(to, sentence) == to.end()) to.push_back(sentence);
  };
  for (const PlannedLayer& layer : plan.layers) {
    report.experts += layer.record.problem.experts;
    add_once(report.losses, layer.record.losses);
    Result<LayerPacker> packer = LayerPacker::make(*plan.recipe.layout, layer.record.problem);
    if (packer && packer->restore(layer.record.record))
      add_once(report.warnings, packer->warnings());
  }
  if (Result<Done> done = folder->commit(); !done) return done.why();
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::convert
