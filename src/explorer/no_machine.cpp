// Stand-ins for the machine in a page: no devices, no tensors, no engines, no folders to write to.
#include <cstdlib>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/cli/layout_pages.hpp"
#include "fp4moe/cli/list.hpp"
#include "fp4moe/cli/rank_folders.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/libraries.hpp"
#include "fp4moe/tensor/files/store_files.hpp"

namespace fp4moe {
namespace {

Error needs_machine(std::string_view message, std::string_view expected) {
  return error(ErrorCode::unavailable, "explorer.machine", message)
      .expects(expected, "a page in a browser")
      .try_this("Run the program: fp4moe does it");
}

}  // namespace

// A page has no files that could shrink.
WatchedMapping::WatchedMapping(const void* /*begin*/, std::size_t /*bytes*/,
                               const std::string& /*path*/) {}
WatchedMapping::WatchedMapping(WatchedMapping&& /*other*/) noexcept {}
WatchedMapping& WatchedMapping::operator=(WatchedMapping&& /*other*/) noexcept { return *this; }
WatchedMapping::~WatchedMapping() = default;

namespace platform {

Result<CudaDriver> load_cuda_driver(const std::string& /*library*/) {
  return needs_machine("the page sees no devices", "a machine");
}
std::optional<FoundPackage> find_installed_package(std::string_view /*name*/,
                                                   const LibrariesFrom& /*from*/) {
  return std::nullopt;
}
Device detect_device(const DetectFrom& /*from*/) {
  Device device;
  device.name = "cpu";
  return device;
}

}  // namespace platform

namespace tensor {

// A page has no links.
Result<std::string> file_inside(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

}  // namespace tensor

namespace plan {

Result<Model> model_from_checkpoint(const std::string& path) {
  return needs_machine("the page reads no tensors", "a config.json, or a model's name").in(path);
}

}  // namespace plan

namespace cli {

std::vector<ListRow> list_engines() { return {}; }
std::vector<std::string> rank_folders(const std::string& path) { return {path}; }
std::string layout_page(std::string_view /*id*/) { return {}; }
Result<std::size_t> write_layout_pages(const std::string& folder) {
  return needs_machine("the page writes no files", "a folder").in(folder);
}

}  // namespace cli
}  // namespace fp4moe

// The library throws where its caller is wrong, or memory ends: the page then says that it failed.
extern "C" {
void* __cxa_allocate_exception(std::size_t bytes) noexcept;  // NOLINT
void* __cxa_allocate_exception(std::size_t /*bytes*/) noexcept { std::abort(); }
void __cxa_throw(void* thrown, void* type, void (*destroy)(void*));  // NOLINT
void __cxa_throw(void* /*thrown*/, void* /*type*/, void (* /*destroy*/)(void*)) { std::abort(); }
}
