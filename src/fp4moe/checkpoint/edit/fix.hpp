// Repairs of what lint finds, each a policy that must be asked for by name. The result is a new
// checkpoint; the old one is never touched. Every change is reported.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::checkpoint {

enum class FixPolicy : std::uint8_t {
  fill_input_scale,
  drop_input_scale,
  reconcile_global_scale,
  invert_global_scale,
  total_size,
};

struct FixPolicyRow {
  FixPolicy policy;
  std::string_view name;
  std::string_view what;  // human-readable
};
std::span<const FixPolicyRow> fix_policies();
std::optional<FixPolicy> fix_policy_from_name(std::string_view name);

struct FixChange {
  FixPolicy policy = FixPolicy::total_size;
  std::string tensor{};  // or the document
  std::string what{};    // "0 -> 0.0125"
};

struct FixReport {
  std::vector<FixChange> changes{};
  // reconcile-global-scale: block scales whose new value is not exactly the old one, of how many,
  // and the largest relative change of a weight among them.
  std::uint64_t rounded_scales = 0, rescaled_scales = 0;
  double worst_relative_change = 0;
};

// Rescaling may change a weight by this share without being forced: what rounding to E4M3 costs
// down to its larger subnormal numbers.
inline constexpr double kMaxRelativeChange = 1.0 / 8;

struct FixOptions {
  std::vector<FixPolicy> policies{};
  bool force = false;  // write what changes weights by more than kMaxRelativeChange, too
  std::size_t threads = 1;
  std::function<void(std::uint64_t bytes)> progress{};  // from any thread
};

// Errors: fix.policies (a pair that contradicts itself), fix.nothing (nothing to repair),
// fix.harm (weights would change by more than kMaxRelativeChange),
// fix.source (no valid scale to fill from), fix.dialect (the dialect has no such scales), and those
// of opening and writing.
Result<FixReport> fix(const std::string& path, const std::string& out, const FixOptions& options);

std::string_view name(FixPolicy policy);

}  // namespace fp4moe::checkpoint
