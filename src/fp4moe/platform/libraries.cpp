#include "fp4moe/platform/libraries.hpp"

#include <algorithm>
#include <filesystem>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::size_t kMaxFolders = 256;  // .pth files may name any number

std::string parent(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// Collects folders that exist, each once.
class Folders {
 public:
  explicit Folders(const LibrariesFrom& from) : from_(from) {}

  std::string variable(std::string_view name) const { return from_.lookup(name).value_or(""); }
  std::string at(const std::string& path) const { return from_.root + path; }

  void add(const std::string& folder) {
    if (list_.size() >= kMaxFolders || !is_folder(folder)) return;
    if (std::ranges::find(list_, folder) == list_.end()) list_.push_back(folder);
  }

  // A folder of packages, and the folders its .pth files name: how editable installations and
  // some distributions put packages elsewhere.
  void add_site(const std::string& folder) {
    add(folder);
    for (const std::string& entry : entry_names(folder)) {
      if (!entry.ends_with(".pth")) continue;
      const std::string lines = read_start(inside(folder, entry));
      for (const std::string_view whole : split(lines, '\n')) {
        const std::string line(trimmed(whole));
        const bool is_path = !line.empty() && !line.starts_with('#') &&
                             !line.starts_with("import ") && !line.starts_with("import\t");
        if (is_path) add(line.starts_with('/') ? at(line) : inside(folder, line));
      }
    }
  }

  void add_prefix(const std::string& prefix) {
    for (const std::string_view lib : {"lib", "lib64"}) {
      const std::string versions = inside(prefix, lib);
      for (const std::string& version : entry_names(versions)) {
        if (!version.starts_with("python3")) continue;
        for (const std::string_view kind : {"site-packages", "dist-packages"})
          add_site(inside(inside(versions, version), kind));
      }
    }
  }

  std::vector<std::string> take() { return std::move(list_); }

 private:
  const LibrariesFrom& from_;
  std::vector<std::string> list_;
};

// The first program of this name on PATH, the root included; empty when there is none.
std::string on_path(const LibrariesFrom& from, std::string_view program) {
  const std::string path = from.lookup("PATH").value_or("");
  for (const std::string_view folder : split(path, ':')) {
    if (!folder.starts_with('/')) continue;
    std::string candidate = from.root + std::string(folder) + "/" + std::string(program);
    if (is_program(candidate)) return candidate;
  }
  return {};
}

// pyenv puts a script before every version; a file beside it says which one it runs.
std::string pyenv_prefix(const Folders& folders, const std::string& shims) {
  const std::string home = parent(shims);
  std::string version = folders.variable("PYENV_VERSION");
  if (version.empty()) version = trimmed(read_start(home + "/version"));
  version = version.substr(0, version.find_first_of(":\n"));
  return version.empty() || version == "system" ? "" : home + "/versions/" + version;
}

// The installation that a python3 belongs to. Links lead to it, except in a virtual environment.
std::string prefix_of(const Folders& folders, const std::string& python) {
  if (python.empty()) return {};
  const std::string folder = parent(python);
  if (folder.ends_with("/shims")) return pyenv_prefix(folders, folder);
  if (is_file(parent(folder) + "/pyvenv.cfg")) return parent(folder);
  std::error_code failed;
  const auto real = std::filesystem::canonical(python, failed);
  return failed ? parent(folder) : parent(parent(real.string()));
}

// A virtual environment may hide what is installed outside it.
bool sees_outside(const std::string& prefix) {
  const std::string settings = read_start(prefix + "/pyvenv.cfg");
  return settings.empty() || value_of(settings, "include-system-site-packages", '=') == "true";
}

// A namespace package without an __init__.py would be importable too, but so is the empty folder
// that an uninstalled package leaves behind.
bool is_package(const std::string& folder) { return is_file(folder + "/__init__.py"); }

std::string find_package(std::span<const std::string> folders, const std::string& name) {
  for (const std::string& folder : folders)
    if (std::string path = inside(folder, name); is_package(path)) return path;
  return {};
}

// As the newest vLLM looks for it.
std::string find_nvcc(const LibrariesFrom& from) {
  std::vector<std::string> roots;
  for (const std::string_view variable : {"CUDA_HOME", "CUDA_PATH"})
    roots.push_back(from.lookup(variable).value_or(""));
  for (const std::string& root : roots)
    if (root.starts_with('/'))
      if (std::string path = from.root + root + "/bin/nvcc"; is_program(path)) return path;
  if (std::string path = on_path(from, "nvcc"); !path.empty()) return path;
  std::string usual = from.root + "/usr/local/cuda/bin/nvcc";
  return is_program(usual) ? usual : "";
}

// It needs its kernels, or a compiler for CUDA and ninja.
void judge_flashinfer(FoundLibrary& found, std::span<const std::string> folders,
                      const LibrariesFrom& from) {
  const std::string said = from.lookup("VLLM_HAS_FLASHINFER_CUBIN").value_or("");
  const std::string compiler = find_nvcc(from), ninja = on_path(from, "ninja");
  if (const std::string cubins = find_package(folders, "flashinfer_cubin"); !cubins.empty())
    found.note = "with its kernels in " + cubins;
  else if (!said.empty() && said != "0")
    found.note = "with its kernels, says VLLM_HAS_FLASHINFER_CUBIN";
  else if (!compiler.empty() && !ninja.empty())
    found.note = "compiled on demand by " + compiler + " and " + ninja;
  else {
    found.usable = false;
    found.note =
        "does not count without the package flashinfer_cubin, or nvcc (CUDA_HOME, CUDA_PATH, PATH "
        "or /usr/local/cuda) and ninja (PATH)";
  }
}

}  // namespace

std::vector<std::string> package_folders(const LibrariesFrom& from) {
  Folders folders(from);
  const std::string extra = folders.variable("PYTHONPATH");
  for (const std::string_view entry : split(extra, ':'))
    if (entry.starts_with('/')) folders.add(folders.at(std::string(entry)));
  for (const std::string_view variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string prefix = folders.variable(variable); prefix.starts_with('/'))
      folders.add_prefix(folders.at(prefix));
  const std::string prefix = prefix_of(folders, on_path(from, "python3"));
  if (!prefix.empty()) folders.add_prefix(prefix);
  if (!prefix.empty() && !sees_outside(prefix)) return folders.take();

  if (const std::string home = folders.variable("HOME"); home.starts_with('/'))
    folders.add_prefix(folders.at(home + "/.local"));
  folders.add_prefix(folders.at("/usr/local"));
  folders.add_site(folders.at("/usr/lib/python3/dist-packages"));
  return folders.take();
}

std::optional<FoundPackage> find_installed_package(std::string_view name,
                                                   const LibrariesFrom& from) {
  const std::string prefix = std::string(name) + "-";
  for (const std::string& folder : package_folders(from))
    for (const std::string& entry : entry_names(folder))
      for (const std::string_view suffix : {".dist-info", ".egg-info"}) {
        const bool fits = entry.starts_with(prefix) && entry.ends_with(suffix) &&
                          entry.size() > prefix.size() + suffix.size();
        if (!fits) continue;
        std::string version = entry.substr(prefix.size());
        version.resize(version.size() - suffix.size());
        return FoundPackage{.version = version.substr(0, version.find("-py")),
                            .path = inside(folder, entry)};
      }
  return std::nullopt;
}

std::vector<FoundLibrary> find_libraries(const LibrariesFrom& from) {
  const std::vector<std::string> folders = package_folders(from);
  std::vector<FoundLibrary> all;
  for (std::size_t i = 0; i < kLibraryNames.size(); ++i) {
    FoundLibrary found{.library = static_cast<Library>(i)};
    found.path = find_package(folders, std::string(kLibraryNames[i]));
    if (found.path.empty() && found.library == Library::triton_kernels) {
      found.path = find_package(folders, "vllm/third_party/triton_kernels");
      found.note = "the copy that comes with vLLM";
    }
    if (found.path.empty()) continue;
    if (found.library == Library::flashinfer) judge_flashinfer(found, folders, from);
    all.push_back(std::move(found));
  }
  return all;
}

EnumSet<Library> usable_libraries(std::span<const FoundLibrary> found) {
  EnumSet<Library> usable;
  for (const FoundLibrary& library : found)
    if (library.usable) usable.insert(library.library);
  return usable;
}

}  // namespace fp4moe::platform
