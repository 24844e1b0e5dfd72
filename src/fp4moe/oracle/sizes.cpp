#include "fp4moe/oracle/sizes.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::oracle {
namespace {

Result<std::uint64_t> rounded(std::string_view what, std::uint64_t size, std::uint64_t multiple) {
  const std::uint64_t step = std::max<std::uint64_t>(multiple, 1);
  if (const auto up = checked_multiply(ceil_div(size, step), step)) return *up;
  return invalid("sizes.overflow", fmt::format("the {} size cannot be rounded up", what))
      .expects("a size that fits 64 bits", fmt::format("{} up to a multiple of {}", size, step));
}

// The sizes that DeepEP's low-latency kernels and NIXL are compiled for.
constexpr std::array<std::uint64_t, 8> kCompiledHidden{2048, 2560, 3072, 4096,
                                                       5120, 6144, 7168, 8192};
// DeepEP copies 32 lanes of 16 bytes at a time.
constexpr std::uint64_t kTransferBytes = 512;

enum class HiddenRule : std::uint8_t { transfer_units, compiled_sizes };
struct HiddenRow {
  Exchange exchange;
  HiddenRule rule;
};
constexpr HiddenRow kHidden[] = {
    {Exchange::deepep_ht, HiddenRule::transfer_units},
    {Exchange::deepep_v2, HiddenRule::transfer_units},
    {Exchange::deepep_ll, HiddenRule::compiled_sizes},
    {Exchange::nixl, HiddenRule::compiled_sizes},
};

}  // namespace

const Rounding* find_rounding(const Backend& backend, const platform::Device& device,
                              std::optional<Activation> activation) {
  for (const Rounding& row : backend.rounding) {
    if (!row.kinds.empty() && !row.kinds.contains(device.kind)) continue;
    if (!row.gfx.empty() && row.gfx != device.gfx) continue;
    if (!row.not_gfx.empty() && device.gfx.find(row.not_gfx) != device.gfx.npos) continue;
    if (!row.activations.empty() && !(activation && row.activations.contains(*activation)))
      continue;
    return &row;
  }
  return nullptr;
}

Result<Sizes> round_sizes(const Backend& backend, const platform::Device& device,
                          std::optional<Activation> activation, Sizes sizes) {
  const Rounding* row = find_rounding(backend, device, activation);
  if (row == nullptr) return sizes;
  const auto hidden = rounded("hidden", sizes.hidden, row->hidden);
  if (!hidden) return hidden.why();
  const auto intermediate = rounded("intermediate", sizes.intermediate, row->intermediate);
  if (!intermediate) return intermediate.why();
  return Sizes{*hidden, *intermediate};
}

Result<std::uint64_t> exchange_hidden(const Parallel& parallel, PolicyDate policy_date,
                                      ScalarType activations, std::uint64_t hidden) {
  const auto* row =
      std::ranges::find(kHidden, exchange(parallel, policy_date), &HiddenRow::exchange);
  if (row == std::end(kHidden)) return hidden;
  if (row->rule == HiddenRule::transfer_units)
    return rounded("hidden", hidden, kTransferBytes / bytes(activations));
  const auto* fits = std::ranges::lower_bound(kCompiledHidden, hidden);
  if (fits != kCompiledHidden.end()) return *fits;
  return error(ErrorCode::no_backend, "sizes.exchange",
               fmt::format("Hidden Size {} is greater than the maximum supported hidden size {}",
                           hidden, kCompiledHidden.back()))
      .try_this("Use another exchange, for example allgather_reducescatter");
}

Result<Sizes> converted_sizes(const Backend& backend, bool gated, Sizes sizes) {
  const std::span<const ConversionPadding> rows = backend.conversion.padding;
  if (rows.empty()) return sizes;
  const auto refuse = [&](std::string_view what, std::uint64_t multiple, std::uint64_t size) {
    return error(ErrorCode::no_backend, "sizes.conversion",
                 fmt::format("{} cannot convert this {} size", backend.name, what))
        .expects(fmt::format("a multiple of {}", multiple), std::to_string(size))
        .try_this("Use another backend or another split");
  };
  const auto row = std::ranges::find_if(rows, [&](const ConversionPadding& candidate) {
    return sizes.hidden % candidate.hidden_is == 0;
  });
  if (row == rows.end()) return refuse("hidden", rows.back().hidden_is, sizes.hidden);
  const auto hidden = rounded("hidden", sizes.hidden, row->hidden);
  if (!hidden) return hidden.why();
  const auto intermediate =
      rounded("intermediate", sizes.intermediate, gated ? row->gated : row->not_gated);
  if (!intermediate) return intermediate.why();
  if (gated && *intermediate % row->gated_needs != 0)
    return refuse("intermediate", row->gated_needs, *intermediate);
  return Sizes{*hidden, *intermediate};
}

Result<Sizes> layer_sizes(const Backend& backend, const platform::Device& device,
                          std::optional<Activation> activation, const Parallel& parallel,
                          PolicyDate policy_date, ScalarType activations, Sizes sizes) {
  const auto hidden = exchange_hidden(parallel, policy_date, activations, sizes.hidden);
  if (!hidden) return hidden.why();
  return round_sizes(backend, device, activation, {*hidden, sizes.intermediate});
}

}  // namespace fp4moe::oracle
