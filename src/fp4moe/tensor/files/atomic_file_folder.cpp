// The staging folder is `.NAME.partial` beside the target. Its owner holds a lock on the folder
// itself, which the system gives back when the owner dies: a staging folder without a living owner
// is rubbish and is removed, unless the new owner asks for what is left in it. The lock lives on
// the folder and not in a file inside, so that it holds until after the renaming.
//
// Anybody may have made a folder of that name in a shared folder like /tmp. So it is opened without
// following links, its owner and mode are read from the descriptor, and from then on the descriptor
// alone is used.
#include <cerrno>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/folder_tree.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

constexpr mode_t kPrivate = 0700;
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
constexpr const char* kProbe = ".fp4moe-probe";

Error busy(const std::string& path, const std::string& staging) {
  return error(ErrorCode::failed, "folder.busy", "another process is writing this folder")
      .in(path)
      .expects("no other writer", "one at work in " + staging)
      .try_this("wait for it; if there is none, remove that folder");
}

Error foreign(const std::string& path, const std::string& staging, std::string_view fact) {
  return error(ErrorCode::failed, "folder.foreign",
               "the staging folder belongs to another user or program")
      .in(path)
      .expects(staging + " of this user, closed to all others", fact)
      .try_this("remove that folder, or choose a place where only you can write");
}

enum class Lock : std::uint8_t { held, taken, unknown };

Lock try_lock(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Lock::taken : Lock::unknown;
  }
  return Lock::held;
}

// False with errno 0: it is another folder.
bool is_same(int fd, int parent, const std::string& name) {
  errno = 0;
  struct stat opened {
  }, named{};
  return fstat(fd, &opened) == 0 &&
         fstatat(parent, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

// The reason not to write into a folder that existed before: it is another user's, or others
// may write to it. Some file systems give all files to one user or the same mode: there a file of
// our own looks the same, and it is made through the descriptor, so that no process can exchange
// it.
std::optional<std::string_view> distrust(int folder) {
  struct stat own {
  }, result{};
  if (fstat(folder, &own) != 0) return "one that cannot be looked at";
  const bool is_theirs = own.st_uid != geteuid();
  const bool is_open = (own.st_mode & kOthersWrite) != 0;
  if (!is_theirs && !is_open) return std::nullopt;
  unlinkat(folder, kProbe, 0);
  const Descriptor probe(
      openat(folder, kProbe, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const bool has_probe = probe && fstat(probe.get(), &result) == 0;
  if (probe) unlinkat(folder, kProbe, 0);
  if (is_theirs && (!has_probe || result.st_uid != own.st_uid)) return "one of another user";
  if (is_open && (!has_probe || (result.st_mode & kOthersWrite) == 0))
    return "one that others may write to";
  return std::nullopt;
}

// The mode that a folder gets here: less the umask, which cannot be read without changing it.
std::optional<mode_t> usual_mode(int folder) {
  unlinkat(folder, kProbe, AT_REMOVEDIR);
  if (mkdirat(folder, kProbe, 0777) != 0) return std::nullopt;
  struct stat result {};
  const bool is_known = fstatat(folder, kProbe, &result, AT_SYMLINK_NOFOLLOW) == 0;
  const int why = errno;
  if (unlinkat(folder, kProbe, AT_REMOVEDIR) != 0) return std::nullopt;  // no part of the output
  errno = why;
  if (!is_known) return std::nullopt;
  return result.st_mode & 07777;
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

Result<Done> AtomicFolder::check_target() const {
  const std::string name = last_component(path_);
  struct stat status {};
  if (fstatat(parent_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return Done{};
    return file_error("folder.create", "cannot stat", errno).in(path_);
  }
  const auto exists = [this](std::string_view found) {
    return usage("folder.exists", "would be overwritten")
        .in(path_)
        .expects("a free name or an empty folder", found)
        .try_this("choose another name, or remove it first");
  };
  if (!S_ISDIR(status.st_mode)) return exists("something that is not a folder");
  const Descriptor target(
      openat(parent_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!target) return file_error("folder.create", "cannot list", errno).in(path_);
  std::vector<std::string> names;
  if (const auto failure = list_names(target.get(), names))
    return file_error("folder.create", "cannot list", failure->why).in(path_);
  if (!names.empty()) return exists("a folder with files");
  return Done{};
}

bool AtomicFolder::is_at(const std::string& name) const { return is_same(lock_, parent_, name); }

// False: another process took or removed it meanwhile, so try again.
Result<bool> AtomicFolder::open_staging(Leftovers leftovers) {
  const std::string hidden = last_component(name_);
  const bool is_new = mkdirat(parent_, hidden.c_str(), kPrivate) == 0;
  if (!is_new && errno != EEXIST)
    return file_error("folder.create", "cannot create a folder here", errno).in(path_);
  Descriptor folder(
      openat(parent_, hidden.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    const int why = errno;
    struct stat status {};
    if (is_new) unlinkat(parent_, hidden.c_str(), AT_REMOVEDIR);
    if (why == ENOENT) return false;
    if (!is_new && why == EACCES &&
        fstatat(parent_, hidden.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        status.st_uid != geteuid())
      return foreign(path_, name_, "one of another user");
    return file_error("folder.create", "cannot open the folder " + name_, why).in(path_);
  }
  if (const auto fact = distrust(folder.get())) {
    if (is_new) unlinkat(parent_, hidden.c_str(), AT_REMOVEDIR);
    return foreign(path_, name_, *fact);
  }
  const Lock lock = try_lock(folder.get());
  // If folders cannot be locked, only the process that created it knows that it owns it.
  if (lock == Lock::taken || (lock == Lock::unknown && !is_new)) return busy(path_, name_);
  if (!is_same(folder.get(), parent_, hidden)) return false;
  lock_ = folder.release();  // ours: if anything fails from here on, it is removed
  is_kept_ = !is_new && leftovers == Leftovers::keep;
  fchmod(lock_, kPrivate);  // one that an older version left was open for reading
  staging_ = descriptor_link(lock_);
  if (access(staging_.c_str(), F_OK) != 0) staging_ = name_;  // a system without /proc
  if (leftovers == Leftovers::remove && !is_new)
    if (Result<Done> cleared = clear(); !cleared) return cleared.why();
  const std::optional<mode_t> mode = usual_mode(lock_);
  if (!mode) return file_error("folder.create", "cannot create a folder here", errno).in(path_);
  mode_ = *mode;
  is_kept_ = false;
  return true;
}

Result<AtomicFolder> AtomicFolder::create(const std::string& given, Leftovers leftovers) {
  constexpr int kAttempts = 100;  // another process may take or remove the staging folder meanwhile
  AtomicFolder folder;
  folder.path_ = without_trailing_slashes(given);
  const std::string& path = folder.path_;
  if (last_component(path).empty())
    return usage("folder.name", "cannot be created").in(given).expects("a name", "none");
  folder.name_ = parent_folder(path) + "/." + last_component(path) + ".partial";
  folder.parent_ = open(parent_folder(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder.parent_ < 0)
    return file_error("folder.create", "cannot create a folder here", errno).in(path);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (Result<Done> target = folder.check_target(); !target) return target.why();
    const Result<bool> opened = folder.open_staging(leftovers);
    if (!opened) return opened.why();
    if (*opened) return folder;
  }
  return busy(path, folder.name_);
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      staging_(std::move(other.staging_)),
      parent_(std::exchange(other.parent_, -1)),
      lock_(std::exchange(other.lock_, -1)),
      mode_(other.mode_),
      is_kept_(other.is_kept_),
      is_whole_(other.is_whole_) {}

AtomicFolder& AtomicFolder::operator=(AtomicFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(name_, other.name_);
  std::swap(staging_, other.staging_);
  std::swap(parent_, other.parent_);
  std::swap(lock_, other.lock_);
  std::swap(mode_, other.mode_);
  std::swap(is_kept_, other.is_kept_);
  std::swap(is_whole_, other.is_whole_);
  return *this;
}

AtomicFolder::~AtomicFolder() {
  if (lock_ >= 0 && !is_whole_ && !is_kept_) {
    // A failure here, such as no memory, cannot be reported any more; the next run clears it.
    try {
      const std::string hidden = last_component(name_);
      remove_inside(lock_);
      if (is_at(hidden)) unlinkat(parent_, hidden.c_str(), AT_REMOVEDIR);
    } catch (const std::bad_alloc&) {
    }
  }
  if (lock_ >= 0) close(lock_);
  if (parent_ >= 0) close(parent_);
}

Error AtomicFolder::explain(Error why) const {
  if (staging_.empty()) return why;
  const bool is_inside = why.path.starts_with(staging_ + "/");
  for (std::string* part : {&why.path, &why.message, &why.expected, &why.found, &why.remedy})
    replace_all(*part, staging_, name_);
  // A file of the folder has its name; the folder, which is the output, has not.
  if (is_inside && !is_whole_ && why.message.starts_with(kNamedBut)) {
    why.message.erase(0, kNamedBut.size());
    why.remedy = why.code == ErrorCode::exhausted ? kFreeSpace : "";
  }
  return why;
}

Result<Done> AtomicFolder::clear(const std::set<std::string>& but) {
  if (const auto failure = remove_inside(lock_, but))
    return file_error("folder.create", "cannot clear " + name_ + "/" + failure->name, failure->why)
        .in(path_);
  return Done{};
}

Result<Done> AtomicFolder::commit() {
  if (lock_ < 0 || is_whole_)
    return usage("folder.closed", "the folder is already whole").in(path_);
  if (Result<Done> same = check_mappings(); !same) return same;
  if (const auto failure = flush_tree(lock_))
    return file_error("folder.flush", "cannot flush", failure->why).in(name_ + "/" + failure->name);
  if (Result<Done> target = check_target(); !target) return target;
  const std::string hidden = last_component(name_), name = last_component(path_);
  const auto taken = [this](std::string_view found) {
    return error(ErrorCode::failed, "folder.commit", "the folder could not get its name")
        .in(path_)
        .expects("the prepared folder in " + name_, found)
        .try_this("choose a place where only you can write, and run again");
  };
  if (!is_at(hidden)) return taken("that another process moved or removed it");
  fchmod(lock_, mode_);
  if (renameat(parent_, hidden.c_str(), parent_, name.c_str()) != 0) {
    const int why = errno;
    fchmod(lock_, kPrivate);
    return file_error("folder.commit", "cannot name the folder", why).in(path_);
  }
  is_whole_ = true;
  if (!is_at(name)) {
    if (errno == 0 || errno == ENOENT) return taken("that another process exchanged it");
    return named_but("folder.commit", "it cannot be looked at", errno).in(path_);
  }
  if (!flush_folder_at(parent_))
    return named_but("folder.flush", "the folder around it cannot be flushed", errno).in(path_);
  return Done{};
}

// Others may not write into it, whatever the umask: they could exchange a finished folder.
Result<ParentFolder> ParentFolder::create(const std::string& path) {
  ParentFolder folder;
  folder.path_ = without_trailing_slashes(path);
  folder.is_new_ = mkdir(folder.path_.c_str(), 0755) == 0;
  if (!folder.is_new_ && errno != EEXIST)
    return file_error("folder.create", "cannot create a folder here", errno).in(path);
  const auto foreign_parent = [&](std::string_view fact) {
    return error(ErrorCode::failed, "folder.foreign", "others may change the output folder")
        .in(path)
        .expects("a folder of this user that no other may write to", fact)
        .try_this("choose another name, or take the others' rights away: chmod go-w " +
                  folder.path_);
  };
  const Descriptor opened(
      open(folder.path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened) {
    const int why = errno;
    struct stat status {};
    if (lstat(folder.path_.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
      return usage("folder.exists", "would be overwritten")
          .in(path)
          .expects("a free name or a folder", "something that is not a folder")
          .try_this("choose another name, or remove it first");
    if (why == EACCES && status.st_uid != geteuid()) return foreign_parent("one of another user");
    return file_error("folder.create", "cannot open the folder", why).in(path);
  }
  if (const auto fact = distrust(opened.get())) return foreign_parent(*fact);
  return folder;
}

ParentFolder::ParentFolder(ParentFolder&& other) noexcept
    : path_(std::move(other.path_)), is_new_(std::exchange(other.is_new_, false)) {}

ParentFolder& ParentFolder::operator=(ParentFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(is_new_, other.is_new_);
  return *this;
}

ParentFolder::~ParentFolder() {
  if (is_new_) rmdir(path_.c_str());  // fails where it holds something
}

}  // namespace fp4moe::tensor
