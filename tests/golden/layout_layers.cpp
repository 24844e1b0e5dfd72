// Golden cases about whole layers: experts go through the packer that conversions use, in the
// layout that the case names or that the named backend reads.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/backends/triton/maps.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "golden/fields.hpp"
#include "golden/layout_layer.hpp"
#include "golden/layouts.hpp"

namespace fp4moe::golden {
namespace {

using layout::Layout;
using oracle::PolicyDate;

// Names of layouts that say all. `pad_mode` chooses between rows of one name.
struct NamedLayout {
  std::string_view golden;
  std::string_view id;
  std::string_view generation{};
  std::string_view pad_mode{};
};
constexpr NamedLayout kNamed[] = {
    {"marlin_mxfp4", "marlin.mxfp4"},
    {"marlin_mxfp4_fp8act", "marlin_fp8.mxfp4"},
    {"marlin_nvfp4", "marlin.nvfp4", "2026-04"},
    {"marlin_nvfp4_2026_03", "marlin.nvfp4", "2026-03"},
    {"marlin_nvfp4_2026_01", "marlin.nvfp4", "2026-01"},
    {"trtllm_mxfp4", "flashinfer_trtllm.mxfp4"},
    {"trtllm_mxfp4_w1w3", "flashinfer_trtllm.mxfp4"},
    {"trtllm_nvfp4", "flashinfer_trtllm.nvfp4", "2026-08.reference", "reference"},
    {"trtllm_nvfp4", "flashinfer_trtllm.nvfp4", "2026-08"},
    {"trtllm_nvfp4_2026_01", "flashinfer_trtllm.nvfp4", "2026-01"},
    {"fi_cutlass_sm90_mxfp4_seed", "flashinfer_cutlass_sm90.mxfp4", "seed"},
    {"fi_cutlass_sm90_mxfp4_g2", "flashinfer_cutlass_sm90.mxfp4", "g2"},
    {"fi_cutlass_sm90_mxfp4_g3", "flashinfer_cutlass_sm90.mxfp4", "g3"},
    {"fi_cutlass_sm90_mxfp4_g3_w1w3", "flashinfer_cutlass_sm90.mxfp4", "g3"},
    {"fi_cutlass_sm100_mxfp4_mxfp8", "flashinfer_cutlass_sm100.mxfp4"},
    {"fi_cutlass_sm100_mxfp4_mxfp8_w1w3", "flashinfer_cutlass_sm100.mxfp4"},
    {"fi_cutlass_nvfp4", "flashinfer_cutlass.nvfp4"},
    {"vllm_cutlass_nvfp4", "vllm_cutlass.nvfp4"},
    {"cutedsl_nvfp4", "flashinfer_cutedsl.nvfp4"},
    {"cutedsl_nvfp4_swigluoai", "flashinfer_cutedsl.nvfp4"},
    {"cutedsl_batched_nvfp4", "flashinfer_cutedsl_batched.nvfp4"},
};

struct LayoutDate {
  std::string_view begins;
  PolicyDate policy_date;
};
constexpr LayoutDate kLayoutDates[] = {
    {"2026-01", PolicyDate::january_27},
    {"2026-03", PolicyDate::march_27},
    {"2026-04", PolicyDate::april_24},
    {"2026-08", PolicyDate::august_22},
};

// What Triton's kernels are told on a device, besides the layout.
struct Constraints {
  int major = 0;
  bool only_minor_0 = false;
  std::string_view flags;
};
constexpr Constraints kConstraints[] = {
    {9, true, R"({"split_k": 1})"},
    {10, false, R"({"is_persistent": true, "epilogue_subtile": 1})"},
};

Result<PolicyDate> policy_date_param(const Json& params) {
  const Result<std::string> date = string_field(params, "vllm");
  if (!date) return date.why();
  for (const LayoutDate& row : kLayoutDates)
    if (date->starts_with(row.begins)) return row.policy_date;
  return malformed("vllm", "a date in 2026-01, 2026-03, 2026-04 or 2026-08", "\"" + *date + "\"");
}

// "sm90", "gfx950"
Result<platform::Device> arch_param(const Json& params) {
  const Result<std::string> arch = string_field(params, "arch");
  if (!arch) return arch.why();
  platform::Device device{.name = *arch};
  if (arch->starts_with("gfx")) {
    const Result<platform::Capability> capability = platform::capability_from_gfx(*arch);
    if (!capability) return malformed("arch", "sm90 or gfx950, for example", "\"" + *arch + "\"");
    device.kind = platform::PlatformKind::rocm;
    device.capability = *capability;
    device.gfx = *arch;
    return device;
  }
  device.kind = platform::PlatformKind::cuda;
  device.capability =
      arch->starts_with("sm") ? platform::capability_from_text(arch->substr(2)) : std::nullopt;
  if (!device.capability)
    return malformed("arch", "sm90 or gfx950, for example", "\"" + *arch + "\"");
  return device;
}

const oracle::Backend* find_backend(std::string_view name, PolicyDate policy_date) {
  for (const oracle::Backend* row : backends::all_rows())
    if (row->name == name && row->format == formats::WeightFormat::mxfp4 &&
        row->policy_dates.contains(policy_date))
      return row;
  return nullptr;
}

const oracle::Backend* find_backend_of(const Layout& layout) {
  for (const oracle::Backend* row : backends::all_rows())
    if (row->layout == layout.id && row->policy_dates.contains(PolicyDate::august_22)) return row;
  return nullptr;
}

Result<Layout> named_layout(const LayoutCase& given, const NamedLayout* row) {
  const Result<std::string> mode = word_param(*given.params, "pad_mode");
  if (!mode) return mode.why();
  while (!row->pad_mode.empty() && row->pad_mode != *mode) ++row;
  const Result<const Layout*> found = backends::require_layout(row->id, row->generation);
  if (!found) return found.why();
  return **found;
}

// Sizes are told, or they are what the conversion makes of those of the checkpoint.
Result<layout::Sizes> padded_sizes(const LayoutCase& given, const Layout& layout, bool gated,
                                   layout::Sizes real) {
  const bool told = given.params->contains("I_pad") || given.params->contains("H_pad");
  const oracle::Backend* backend = told ? nullptr : find_backend_of(layout);
  if (backend != nullptr && layout.format == formats::WeightFormat::nvfp4) {
    const Result<oracle::Sizes> result =
        oracle::converted_sizes(*backend, gated, {real.hidden, real.intermediate});
    if (!result) return result.why();
    return layout::Sizes{result->hidden, result->intermediate};
  }
  const Result<std::uint64_t> hidden =
      number_param(*given.params, "H_pad", real.hidden, kMaxLayerSize);
  if (!hidden) return hidden.why();
  const Result<std::uint64_t> intermediate =
      number_param(*given.params, "I_pad", real.intermediate, kMaxLayerSize);
  if (!intermediate) return intermediate.why();
  return layout::Sizes{*hidden, *intermediate};
}

Outcome check_named(const LayoutCase& given, const NamedLayout* row) {
  const Result<Layout> layout = named_layout(given, row);
  if (!layout) return layout.why();
  LayerCase layer{.given = given, .layout = *layout};
  if (const Result<Done> read = read_layer(layer); !read) return read.why();
  const Result<layout::Sizes> padded = padded_sizes(
      given, *layout, layer.problem.order != checkpoint::RowOrder::single, layer.problem.real);
  if (!padded)
    return padded.why().id == "golden.malformed" ? Outcome(padded.why())
                                                 : refused(given, padded.why());
  layer.problem.padded = *padded;
  return check_layer(layer);
}

// The kernel's constraints, key by key.
Outcome check_flags(const Json& params, const platform::Device& device) {
  const auto told = params.find("opt_flags");
  if (told == params.end()) return std::optional<Mismatch>();
  Json ours = Json::object();
  for (const Constraints& row : kConstraints)
    if (device.kind == platform::PlatformKind::cuda && device.capability->major == row.major &&
        (!row.only_minor_0 || device.capability->minor == 0))
      ours = *parse_json(row.flags);
  const auto holds = [](const Json& all, const Json& some) {
    return std::ranges::all_of(some.items(), [&](const auto& flag) {
      const auto found = all.find(flag.key);
      return found != all.end() && *found == flag.value;
    });
  };
  if (!told->is_object()) return malformed("opt_flags", "an object", told->type_name());
  if (holds(ours, *told) && holds(*told, ours)) return std::optional<Mismatch>();
  return std::optional<Mismatch>({"the kernel's constraints differ", told->dump(), ours.dump()});
}

Outcome check_swizzle(const LayoutCase& given) {
  const Result<PolicyDate> policy_date = policy_date_param(*given.params);
  if (!policy_date) return policy_date.why();
  const Result<platform::Device> device = arch_param(*given.params);
  if (!device) return device.why();
  const Result<std::uint64_t> ranks = number_param(*given.params, "tp_size", 1, 1 << 20);
  if (!ranks) return ranks.why();
  const Result<std::uint64_t> warps = number_param(*given.params, "num_warps", 8, 32);
  if (!warps) return warps.why();
  if (!std::has_single_bit(*warps))
    return malformed("num_warps", "a power of two", std::to_string(*warps));
  const oracle::Backend* backend = find_backend("TRITON", PolicyDate::august_22);
  if (backend == nullptr) return malformed("layout", "a backend TRITON", "none");
  const Result<const Layout*> found =
      backends::layout_of({*backend, *policy_date, *device, *ranks});
  if (!found) return found.why();
  LayerCase layer{.given = given, .layout = **found, .names_layouts = true};
  layout::Map& scales = layer.layout.scales;
  if (scales.name == backends::triton::hopper_scale(8).name)
    scales = backends::triton::hopper_scale(static_cast<std::uint32_t>(*warps), scales.pad_cols);
  if (const Result<Done> read = read_layer(layer); !read) return read.why();
  layer.problem.padded = layer.problem.real;
  Outcome outcome = check_layer(layer);
  return outcome && !*outcome ? check_flags(*given.params, *device) : outcome;
}

Outcome check_conversion(const LayoutCase& given) {
  const Result<PolicyDate> policy_date = policy_date_param(*given.params);
  if (!policy_date) return policy_date.why();
  const Result<std::string> name = string_field(*given.params, "backend");
  if (!name) return name.why();
  const oracle::Backend* backend = find_backend(*name, *policy_date);
  if (backend == nullptr)
    return malformed("backend", "a backend of that date", "\"" + *name + "\"");
  const platform::Device device{.kind = platform::PlatformKind::rocm,
                                .capability = platform::Capability{9, 5},
                                .gfx = "gfx950"};
  const Result<const Layout*> found = backends::layout_of({*backend, *policy_date, device, 1});
  if (!found) return found.why();
  LayerCase layer{.given = given, .layout = **found};
  if (const Result<Done> read = read_layer(layer); !read) return read.why();
  layer.problem.padded = layer.problem.real;
  return check_layer(layer);
}

}  // namespace

std::optional<Outcome> check_layout_layer(const LayoutCase& given) {
  if (given.layout == "vllm.swizzle_mxfp4") return check_swizzle(given);
  if (given.layout == "vllm.convert_gpt_oss") return check_conversion(given);
  const auto* row = std::ranges::find(kNamed, given.layout, &NamedLayout::golden);
  if (row == std::end(kNamed)) return std::nullopt;
  return check_named(given, row);
}

}  // namespace fp4moe::golden
