#include "fp4moe/backends/layouts.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::backends {
namespace {

using platform::CpuArchitecture;

// Which generation of a layout was in use: the first row that matches counts. Empty columns match
// everything; ids without a row have one generation, or the newest is meant.
struct InUse {
  std::string_view id{};
  PolicyDates policy_dates{};
  EnumSet<PlatformKind> kinds{};
  CapabilityRange capability{{0, 0}, {1000, 0}};
  std::string_view gfx{};
  CpuArchitecture architecture = CpuArchitecture::unknown;
  std::uint64_t max_ranks = std::numeric_limits<std::uint64_t>::max();  // tensor parallel
  Activations activations{};
  bool (*when)(const platform::Environment&) = nullptr;
  std::string_view generation{};
  std::string_view unspecified{};  // why the bytes are not known here
};

bool runs_a4w4_dsv4(const platform::Environment& environment) {
  return environment.text(Variable::rocm_aiter_a4w4_dsv4) == "1";
}
// Only the form a8w4 of AITER's SiTU kernels keeps gate and up rows interleaved.
bool separates_situ(const platform::Environment& environment) {
  std::string form = environment.text(Variable::rocm_aiter_situv2).value_or("auto");
  std::ranges::transform(form, form.begin(), [](char c) {
    return c == 'A' ? 'a' : c == 'W' ? 'w' : c;
  });
  return form != "a8w4";
}

constexpr std::string_view kSeparated = "AITER's shuffle with gate and up rows apart";
constexpr std::string_view kGfx1250 = "on gfx1250 scales pass through AITER's own shuffle";

constexpr std::string_view kTriton = "triton.mxfp4";
constexpr std::string_view kAiterTriton = "aiter_triton.mxfp4";
constexpr InUse kInUse[] = {
    {.id = "aiter.mxfp4",
     .policy_dates = kVllm033,
     .when = runs_a4w4_dsv4,
     .unspecified = kSeparated},
    {.id = "aiter.mxfp4",
     .policy_dates = kVllm033,
     .activations = {situ},
     .when = separates_situ,
     .unspecified = kSeparated},
    {.id = kAiterTriton, .gfx = "gfx1250", .unspecified = kGfx1250},
    {.id = kAiterTriton, .gfx = "gfx950", .max_ranks = 2, .generation = "cdna4.v3.6"},
    {.id = kAiterTriton, .generation = "strided"},
    {.id = "aiter_triton_w4a4.mxfp4",
     .unspecified = "codes stay rows, but scales pass through AITER's own shuffle"},
    {.id = kTriton,
     .policy_dates = kVllm033,
     .kinds = kRocm,
     .gfx = "gfx1250",
     .unspecified = kGfx1250},
    {.id = "marlin.nvfp4", .policy_dates = kJanuary2026, .generation = "2026-01"},
    {.id = "marlin.nvfp4", .policy_dates = kMarch2026, .generation = "2026-03"},
    {.id = "flashinfer_trtllm.nvfp4", .policy_dates = kJanuary2026, .generation = "2026-01"},
    {.id = "flashinfer_cutlass_sm90.mxfp4",
     .policy_dates = kBeforeAugust2026,
     .generation = "seed"},
    {.id = "aiter.mxfp4", .policy_dates = kBeforeAugust2026, .generation = "2026-04"},
    {.id = kTriton,
     .policy_dates = kSinceAugust2026,
     .kinds = kCuda,
     .capability = exactly(9, 0),
     .generation = "hopper.v3.5.w8.k4"},
    {.id = kTriton,
     .policy_dates = kJanuary2026,
     .kinds = kCuda,
     .capability = exactly(9, 0),
     .generation = "hopper.v3.5.w8"},
    {.id = kTriton, .kinds = kCuda, .capability = exactly(9, 0), .generation = "hopper.v3.6.w8"},
    {.id = kTriton, .kinds = kCuda, .capability = at_least(10, 0), .generation = "blackwell.v3.6"},
    {.id = kTriton,
     .policy_dates = kSinceAugust2026,
     .kinds = kRocm,
     .gfx = "gfx950",
     .max_ranks = 2,
     .generation = "cdna4.v3.6"},
    {.id = kTriton, .policy_dates = kSinceAugust2026, .generation = "strided"},
    {.id = kTriton, .kinds = kRocm, .gfx = "gfx950", .generation = "cdna4.v3.6"},
    {.id = kTriton, .generation = "strided"},
    {.id = "cpu_native.mxfp4",
     .architecture = CpuArchitecture::x86,
     .generation = "x86.16x32.int8"},
    {.id = "cpu_native.nvfp4",
     .architecture = CpuArchitecture::x86,
     .generation = "x86.16x32.int8"},
};

bool matches(const InUse& row, const LayoutRequest& request, std::string_view id) {
  const platform::Device& device = request.device;
  const platform::Capability capability = device.capability.value_or(platform::Capability{});
  return row.id == id &&
         (row.policy_dates.empty() || row.policy_dates.contains(request.policy_date)) &&
         (row.kinds.empty() || row.kinds.contains(device.kind)) &&
         row.capability.contains(capability) && (row.gfx.empty() || row.gfx == device.gfx) &&
         (row.architecture == CpuArchitecture::unknown ||
          row.architecture == device.architecture) &&
         request.tp_size <= row.max_ranks &&
         (row.activations.empty() ||
          (request.activation && row.activations.contains(*request.activation))) &&
         (row.when == nullptr || row.when(request.environment));
}

Error unspecified(const oracle::Backend& backend, std::string_view why) {
  return error(ErrorCode::unavailable, "layout.unspecified",
               fmt::format("the layout that {} reads is not specified: {}", backend.name, why))
      .try_this("give it the checkpoint as it is");
}

}  // namespace

const std::vector<layout::Layout>& layouts() {
  static const std::vector<layout::Layout> kLayouts = [] {
    std::vector<layout::Layout> all;
    for (const FamilyLayouts family : kFamilyLayouts) {
      const std::vector<layout::Layout> some = family();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return kLayouts;
}

Result<const layout::Layout*> require_layout(std::string_view id, std::string_view generation) {
  if (const layout::Layout* found = layout::find_layout(layouts(), id, generation)) return found;
  std::vector<std::string> ids, generations;
  for (const layout::Layout& layout : layouts()) {
    if (std::ranges::find(ids, layout.id) == ids.end()) ids.emplace_back(layout.id);
    if (layout.id == id) generations.emplace_back(layout.generation);
  }
  if (generations.empty())
    return usage("layout.unknown", "there is no such layout")
        .expects("one of " + join(ids, ", "), "'" + printable(id) + "'")
        .try_this(did_you_mean(id, std::vector<std::string_view>(ids.begin(), ids.end()),
                               "`fp4moe layouts` lists them"));
  if (generations == std::vector<std::string>{""})
    return usage("layout.generation", fmt::format("layout {} never changed", id))
        .expects("no generation", "'" + printable(generation) + "'");
  return usage("layout.generation", fmt::format("layout {} has no such generation", id))
      .expects("one of " + join(generations, ", "), "'" + printable(generation) + "'");
}

std::string layout_id(const oracle::Backend& backend) {
  return backend.layout.empty() ? fmt::format("as_loaded.{}", name(backend.format))
                                : std::string(backend.layout);
}

std::vector<std::string> readers(std::string_view id) {
  std::set<std::string> names;
  for (const oracle::Backend* backend : all_rows())
    if (layout_id(*backend) == id && backend->family != "none") names.emplace(backend->name);
  return {names.begin(), names.end()};
}

Result<const layout::Layout*> layout_of(const LayoutRequest& request) {
  const oracle::Backend& backend = request.backend;
  const std::string id = layout_id(backend);
  const auto* used =
      std::ranges::find_if(kInUse, [&](const InUse& row) { return matches(row, request, id); });
  const bool is_known = used != std::end(kInUse);
  if (is_known && !used->unspecified.empty()) return unspecified(backend, used->unspecified);
  if (layout::find_layout(layouts(), id, {}) == nullptr)
    return error(ErrorCode::unavailable, "layout.external",
                 fmt::format("{} lays weights out itself while it loads them", backend.name))
        .expects("a backend whose layout is known here", "layout " + id)
        .try_this("give it the checkpoint as it is");
  return require_layout(id, is_known ? used->generation : std::string_view());
}

}  // namespace fp4moe::backends
