#include "fp4moe/tensor/files/store_files.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kIndex = ".safetensors.index.json";
constexpr std::string_view kGguf = ".gguf";
constexpr std::string_view kUsualIndex = "model.safetensors.index.json";
constexpr std::size_t kMaxIndex = 100'000'000;

// The path without links, or empty with errno set.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         std::free);
  return real ? std::string(real.get()) : std::string();
}

// The folder that links out of `folder` may lead to: in the Hugging Face cache files are links
// .../snapshots/<revision>/file -> ../../blobs/<hash>. Empty when this is no such cache.
std::string blobs_beside(const std::string& folder) {
  constexpr std::string_view kSnapshots = "/snapshots/";
  const std::size_t at = folder.rfind(kSnapshots);
  return at == std::string::npos ? std::string() : folder.substr(0, at) + "/blobs/";
}

// Paths of the files of one folder, which links may not leave.
class Folder {
 public:
  static Result<Folder> open(const std::string& path) {
    Folder folder;
    folder.path_ = path;
    folder.real_ = resolved(path);
    if (folder.real_.empty()) return system_error("store.open", "cannot open", errno).in(path);
    return folder;
  }

  const std::string& path() const { return path_; }

  // `name` is a plain relative path; what it leads to must be ours.
  Result<std::string> file(const std::string& name) const {
    std::string path = path_ + "/" + name;
    const std::string real = resolved(path);
    if (real.empty()) return system_error("store.open", "cannot open", errno).in(path);
    const std::string inside = real_ == "/" ? real_ : real_ + "/";
    const std::string blobs = blobs_beside(inside);
    if (real.starts_with(inside) || (!blobs.empty() && real.starts_with(blobs))) return path;
    return invalid("store.link", "a link leads out of the folder")
        .in(path)
        .expects("a file inside " + path_, real)
        .try_this("put the file itself there");
  }

 private:
  std::string path_{};
  std::string real_{};
};

struct Listing {
  std::vector<std::string> safetensors{}, indexes{}, ggufs{};  // names, sorted
};

Result<Listing> list(const std::string& folder) {
  Listing found;
  std::vector<std::string> names;
  if (const int why = add_names_in(folder, names); why != 0)
    return system_error("store.open", "cannot list", why).in(folder);
  for (std::string& name : names) {
    std::error_code ignored;  // a broken link is an error only when the file is needed
    if (name.starts_with('.') || fs::is_directory(folder + "/" + name, ignored)) continue;
    if (name.ends_with(kIndex)) {
      found.indexes.push_back(std::move(name));
    } else if (name.ends_with(kSafetensors)) {
      found.safetensors.push_back(std::move(name));
    } else if (name.ends_with(kGguf)) {
      found.ggufs.push_back(std::move(name));
    }
  }
  return found;
}

// Numbered files must be there in full: "a-00001-of-00003" without "a-00002-of-00003" is a broken
// download.
Result<Done> check_parts(const std::string& folder, const std::vector<std::string>& names,
                         std::string_view extension) {
  for (const std::string& name : names) {
    const std::optional<PartName> part = part_name(name, extension);
    if (!part) continue;
    const bool is_last = part->number == part->count;
    const auto sibling = [&](std::uint32_t number) {
      std::array<char, 32> tail{};
      std::snprintf(tail.data(), tail.size(), "-%05u-of-%05u", number, part->count);
      return std::string(part->stem) + tail.data() + std::string(extension);
    };
    const auto is_there = [&names](const std::string& wanted) {
      return std::binary_search(names.begin(), names.end(), wanted);
    };
    const std::string before = sibling(part->number - 1);
    const std::string after = sibling(part->number + 1);
    const std::string* missing = part->number > 1 && !is_there(before) ? &before
                                 : !is_last && !is_there(after)        ? &after
                                                                       : nullptr;
    if (missing != nullptr)
      return invalid("store.missing_shard", "a numbered part is missing")
          .in(folder + "/" + *missing)
          .expects(std::to_string(part->count) + " parts", "none of this name")
          .try_this("fetch the missing file");
  }
  return Done{};
}

Result<StoreFiles> from_index(const Folder& folder, const std::string& name) {
  Result<std::string> path = folder.file(name);
  if (!path) return path.why();
  const Result<MappedFile> file = MappedFile::open(*path);
  if (!file) return file.why();
  if (file->bytes().size() > kMaxIndex)
    return invalid("index.too_large", "the index is too large")
        .in(*path)
        .expects("at most " + std::to_string(kMaxIndex) + " bytes",
                 std::to_string(file->bytes().size()));
  Result<StoreIndex> index =
      parse_index({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (!index) return Error(index.why()).in(*path);
  StoreFiles files{.folder = folder.path(), .index_path = *path};
  for (std::uint32_t shard = 0; shard < index->shards.size(); ++shard) {
    Result<std::string> shard_path = folder.file(index->shards[shard]);
    if (!shard_path && shard_path.why().id == "store.open" &&
        shard_path.why().code != ErrorCode::exhausted) {
      const auto needed = std::count_if(index->entries.begin(), index->entries.end(),
                                        [&](const IndexEntry& e) { return e.shard == shard; });
      return invalid("store.missing_shard", "a shard of the index cannot be opened")
          .in(shard_path.why().path)
          .expects("the file with " + std::to_string(needed) + " of " +
                       std::to_string(index->entries.size()) + " tensors",
                   shard_path.why().message)
          .try_this("fetch the missing file");
    }
    if (!shard_path) return shard_path.why();
    files.paths.push_back(*std::move(shard_path));
  }
  files.index = *std::move(index);
  return files;
}

Result<StoreFiles> from_names(const Folder& folder, StoreKind kind,
                              const std::vector<std::string>& names) {
  const std::string_view extension = kind == StoreKind::gguf ? kGguf : kSafetensors;
  if (Result<Done> whole = check_parts(folder.path(), names, extension); !whole) return whole.why();
  StoreFiles files{.kind = kind, .folder = folder.path()};
  for (const std::string& name : names) {
    Result<std::string> path = folder.file(name);
    if (!path) return path.why();
    files.paths.push_back(*std::move(path));
  }
  return files;
}

Error ambiguous(const std::string& folder, std::string_view first, std::string_view second) {
  return usage("store.ambiguous", "the folder holds more than one checkpoint")
      .in(folder)
      .expects("one", std::string(first) + " and " + std::string(second))
      .try_this("name the file");
}

// GGUF files of a folder are one model only if they are the parts of one.
bool is_one_model(const std::vector<std::string>& ggufs) {
  if (ggufs.size() == 1) return true;
  const std::optional<PartName> first = part_name(ggufs.front(), kGguf);
  return first && std::all_of(ggufs.begin(), ggufs.end(), [&](const std::string& name) {
           const std::optional<PartName> part = part_name(name, kGguf);
           return part && part->stem == first->stem && part->count == first->count;
         });
}

Result<StoreFiles> from_folder(const std::string& path) {
  const Result<Folder> folder = Folder::open(path);
  if (!folder) return folder.why();
  const Result<Listing> found = list(path);
  if (!found) return found.why();
  const std::string* first = !found->indexes.empty()       ? &found->indexes.front()
                             : !found->safetensors.empty() ? &found->safetensors.front()
                                                           : nullptr;
  if (first != nullptr && !found->ggufs.empty())
    return ambiguous(path, *first, found->ggufs.front());
  if (!found->indexes.empty()) {
    const bool is_usual =
        std::binary_search(found->indexes.begin(), found->indexes.end(), kUsualIndex);
    if (!is_usual && found->indexes.size() > 1)
      return ambiguous(path, found->indexes[0], found->indexes[1]);
    return from_index(*folder, is_usual ? std::string(kUsualIndex) : found->indexes.front());
  }
  if (!found->safetensors.empty())
    return from_names(*folder, StoreKind::safetensors, found->safetensors);
  if (found->ggufs.empty())
    return invalid("store.empty", "the folder holds no checkpoint")
        .in(path)
        .expects("*.safetensors, an index of them, or *.gguf", "none of them");
  if (!is_one_model(found->ggufs)) return ambiguous(path, found->ggufs[0], found->ggufs[1]);
  return from_names(*folder, StoreKind::gguf, found->ggufs);
}

// One part of a GGUF model stands for all of them.
Result<StoreFiles> from_gguf(const std::string& path) {
  const std::string name = last_component(path);
  const std::string parent = parent_folder(path);
  const std::optional<PartName> part = part_name(name, kGguf);
  if (!part || name.starts_with('.'))
    return StoreFiles{
        .kind = StoreKind::gguf, .folder = parent, .paths = {path}, .is_one_file = true};
  const Result<Folder> folder = Folder::open(parent);
  if (!folder) return folder.why();
  Result<Listing> found = list(parent);
  if (!found) return found.why();
  std::erase_if(found->ggufs, [&](const std::string& other) {
    const std::optional<PartName> parts = part_name(other, kGguf);
    return !parts || parts->stem != part->stem || parts->count != part->count;
  });
  return from_names(*folder, StoreKind::gguf, found->ggufs);
}

}  // namespace

std::optional<PartName> part_name(std::string_view file_name, std::string_view extension) {
  constexpr std::size_t kDigits = 5;
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kTail = 1 + kDigits + kOf.size() + kDigits;  // "-00001-of-00003"
  if (!file_name.ends_with(extension)) return std::nullopt;
  file_name.remove_suffix(extension.size());
  if (file_name.size() < kTail) return std::nullopt;
  const std::string_view tail = file_name.substr(file_name.size() - kTail);
  const auto number = [](std::string_view digits) -> std::uint32_t {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : 0;
  };
  PartName part{.stem = file_name.substr(0, file_name.size() - kTail),
                .number = number(tail.substr(1, kDigits)),
                .count = number(tail.substr(kTail - kDigits))};
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || part.number == 0 ||
      part.number > part.count)
    return std::nullopt;
  return part;
}

Result<std::string> file_inside(const std::string& folder, const std::string& name) {
  const Result<Folder> opened = Folder::open(folder);
  if (!opened) return opened.why();
  return opened->file(name);
}

Result<StoreFiles> find_store_files(const std::string& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status))
    return system_error("store.open", "cannot open", code ? code.value() : ENOENT)
        .in(path)
        .try_this("name a checkpoint: its folder, its index or one of its files");
  if (fs::is_directory(status)) return from_folder(path);
  if (path.ends_with(kIndex)) {
    const Result<Folder> folder = Folder::open(parent_folder(path));
    if (!folder) return folder.why();
    return from_index(*folder, last_component(path));
  }
  if (path.ends_with(kGguf)) return from_gguf(path);
  if (path.ends_with(kSafetensors))
    return StoreFiles{.folder = parent_folder(path), .paths = {path}, .is_one_file = true};
  return usage("store.kind", "not a checkpoint file by its name")
      .in(path)
      .expects("*.safetensors, *.safetensors.index.json, *.gguf or a folder", "another name");
}

}  // namespace fp4moe::tensor
