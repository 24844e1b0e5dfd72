// Every layout of every family, and which of them a backend's kernels read.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/oracle/backend.hpp"

namespace fp4moe::backends {

// The newest generation of an id comes first.
const std::vector<layout::Layout>& layouts();

// By id ("marlin.mxfp4") and generation (empty: the newest). Errors: layout.unknown,
// layout.generation, both listing what there is.
Result<const layout::Layout*> require_layout(std::string_view id, std::string_view generation);

// The id of the layout that a backend's row names; rows without one keep weights as loaded.
std::string layout_id(const oracle::Backend& backend);

// Names of the backends whose kernels read a layout, sorted, each once.
std::vector<std::string> readers(std::string_view layout_id);

// The layout that kernels of `backend` read on `device` at the policy's date. `tp_size` matters on
// gfx950, activation and environment to AITER. Errors: layout.external for backends whose library
// lays weights out itself while it loads them, layout.unspecified where the bytes are not known
// here; both say which.
struct LayoutRequest {
  const oracle::Backend& backend;
  oracle::PolicyDate policy_date{};
  const platform::Device& device;
  std::uint64_t tp_size = 1;
  std::optional<oracle::Activation> activation{};
  platform::Environment environment{};
};
Result<const layout::Layout*> layout_of(const LayoutRequest& request);

}  // namespace fp4moe::backends
