// What a conversion has finished, in a small file of the staging folder that is replaced as a
// whole. A killed run leaves it behind; the next one goes on from there if it would do the same
// work on the same source.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder_plan.hpp"
#include "fp4moe/convert/manifest.hpp"
#include "fp4moe/convert/source_parts.hpp"

namespace fp4moe::convert {

inline constexpr std::string_view kJournalName = "fp4moe-journal.json";

// Everything that the bytes of the folder depend on.
Json identity_of(const FolderPlan& plan, const std::vector<FileStamp>& stamps);

class Journal {
 public:
  explicit Journal(Json identity) : identity_(std::move(identity)) {}

  // Takes over what is in `staging`; false when nothing usable is there. Errors: convert.resume
  // (it was left by another conversion), naming what differs.
  Result<bool> load(const std::string& staging);
  Result<Done> add(const std::string& staging, FileRecord file, const LayerRecord* layer = nullptr);

  const FileRecord* file(std::string_view name) const;
  const LayerRecord* layer(std::string_view file) const;
  bool empty() const { return files_.empty(); }

 private:
  Json identity_;
  std::vector<FileRecord> files_{};
  std::vector<LayerRecord> layers_{};
};

}  // namespace fp4moe::convert
