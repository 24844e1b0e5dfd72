// The finished work of a conversion, in a small file of the staging folder that is replaced as a
// whole. A killed run leaves it behind; the next one goes on from there if it would do the same
// work on the same source.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder/folder_plan.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/convert/folder/source_parts.hpp"

namespace fp4moe::convert {

inline constexpr std::string_view kJournalName = "fp4moe-journal.json";

// The records in a journal's text. Errors: those of parse_json, converted.manifest.
struct JournalRecords {
  Json identity{};
  std::vector<FileRecord> files{};
  std::vector<LayerRecord> layers{};
};
std::string to_text(const JournalRecords& records);
Result<JournalRecords> journal_from_text(std::string_view text);

// Everything that the bytes of the folder depend on.
Json identity_of(const FolderPlan& plan, const std::vector<FileStamp>& stamps);

class Journal {
 public:
  explicit Journal(Json identity) : identity_(std::move(identity)) {}

  // Takes over what is in `staging`; false when nothing usable is there. Finished files are read
  // once, on so many threads; those that are not what the journal says are not taken. Errors:
  // convert.resume (it was left by another conversion), naming what differs; converted.manifest (a
  // damaged journal); interrupted; no memory.
  Result<bool> load(const std::string& staging, std::size_t threads);
  Result<Done> add(const std::string& staging, FileRecord file, const LayerRecord* layer = nullptr);

  const FileRecord* file(std::string_view name) const;
  const LayerRecord* layer(std::string_view file) const;
  bool empty() const { return files_.empty(); }
  std::size_t damaged() const { return damaged_; }  // files that load() did not take

 private:
  Json identity_;
  std::vector<FileRecord> files_{};
  std::vector<LayerRecord> layers_{};
  std::size_t damaged_ = 0;
};

}  // namespace fp4moe::convert
