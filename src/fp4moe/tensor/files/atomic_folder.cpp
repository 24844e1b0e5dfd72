// The staging folder is `.NAME.partial` beside the target. Its owner holds a lock on the folder
// itself, which the system gives back when the owner dies: a staging folder without a living owner
// is rubbish and is removed, unless the new owner asks for what is left in it. The lock lives on
// the folder and not in a file inside, so that it holds until after the renaming.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

namespace fs = std::filesystem;

Error busy(const std::string& path, const std::string& staging) {
  return error(ErrorCode::failed, "folder.busy", "another process is writing this folder")
      .in(path)
      .expects("no other writer", "one at work in " + staging)
      .try_this("wait for it; if there is none, remove that folder");
}

Result<Done> check_target(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return Done{};
    return file_error("folder.create", "cannot look at", errno).in(path);
  }
  const auto exists = [&path](std::string_view found) {
    return usage("folder.exists", "would be overwritten")
        .in(path)
        .expects("a free name or an empty folder", found)
        .try_this("choose another name, or remove it first");
  };
  if (!S_ISDIR(status.st_mode)) return exists("something that is not a folder");
  std::error_code code;
  const bool is_empty = fs::is_empty(path, code);
  if (code) return file_error("folder.create", "cannot look into", code.value()).in(path);
  if (!is_empty) return exists("a folder with files");
  return Done{};
}

enum class Lock : std::uint8_t { held, taken, unknown };

Lock try_lock(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Lock::taken : Lock::unknown;
  }
  return Lock::held;
}

bool is_same(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

std::error_code remove_inside(const std::string& folder) {
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    fs::remove_all(entry->path(), code);
    if (code) return code;
  }
  return code;
}

Result<Done> flush_tree(const std::string& folder) {
  std::error_code code;
  for (fs::recursive_directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().string();
    if (entry->is_symlink(code) || (!entry->is_regular_file(code) && !entry->is_directory(code)))
      continue;
    const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return file_error("folder.flush", "cannot open", errno).in(name);
    const bool flushed = flush(fd);
    const int why = errno;
    close(fd);
    if (!flushed) return file_error("folder.flush", "cannot flush", why).in(name);
  }
  if (code) return file_error("folder.flush", "cannot walk", code.value()).in(folder);
  if (!flush_folder(folder)) return file_error("folder.flush", "cannot flush", errno).in(folder);
  return Done{};
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Result<AtomicFolder> AtomicFolder::create(const std::string& given, Leftovers leftovers) {
  constexpr int kAttempts = 100;  // another process may take or remove the staging folder meanwhile
  AtomicFolder folder;
  folder.path_ = without_trailing_slashes(given);
  const std::string& path = folder.path_;
  if (last_component(path).empty())
    return usage("folder.name", "cannot be created").in(given).expects("a name", "none");
  const std::string staging = parent_folder(path) + "/." + last_component(path) + ".partial";
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (Result<Done> target = check_target(path); !target) return target.why();
    const bool is_new = mkdir(staging.c_str(), 0777) == 0;
    if (!is_new && errno != EEXIST)
      return file_error("folder.create", "cannot create a folder here", errno).in(path);
    const int fd = open(staging.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
      if (errno == ENOENT) continue;
      return file_error("folder.create", "cannot open the folder " + staging, errno).in(path);
    }
    const Lock lock = try_lock(fd);
    // Where folders cannot be locked, only the one who created it knows that it is theirs.
    if (lock == Lock::taken || (lock == Lock::unknown && !is_new)) {
      close(fd);
      return busy(path, staging);
    }
    if (!is_same(fd, staging)) {
      close(fd);
      continue;
    }
    folder.staging_ = staging;
    folder.lock_ = fd;
    if (leftovers == Leftovers::remove)
      if (Result<Done> cleared = folder.clear(); !cleared) return cleared.why();
    return folder;
  }
  return busy(path, staging);
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : path_(std::move(other.path_)),
      staging_(std::exchange(other.staging_, {})),
      lock_(std::exchange(other.lock_, -1)),
      keeps_(other.keeps_) {}

AtomicFolder& AtomicFolder::operator=(AtomicFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(staging_, other.staging_);
  std::swap(lock_, other.lock_);
  std::swap(keeps_, other.keeps_);
  return *this;
}

AtomicFolder::~AtomicFolder() {
  if (lock_ < 0) return;
  std::error_code ignored;  // nobody is left to tell; the next run clears it
  if (!keeps_) fs::remove_all(staging_, ignored);
  close(lock_);
}

Result<Done> AtomicFolder::clear() {
  if (const std::error_code code = remove_inside(staging_))
    return file_error("folder.create", "cannot clear " + staging_, code.value()).in(path_);
  return Done{};
}

Result<Done> AtomicFolder::commit() {
  if (lock_ < 0) return usage("folder.closed", "the folder is already whole").in(path_);
  if (Result<Done> flushed = flush_tree(staging_); !flushed) return flushed;
  if (Result<Done> target = check_target(path_); !target) return target;
  if (std::rename(staging_.c_str(), path_.c_str()) != 0)
    return file_error("folder.commit", "cannot name the folder", errno).in(path_);
  close(std::exchange(lock_, -1));
  staging_ = path_;
  if (!flush_folder(parent_folder(path_)))
    return file_error("folder.flush", "cannot flush the folder", errno).in(path_);
  return Done{};
}

}  // namespace fp4moe::tensor
