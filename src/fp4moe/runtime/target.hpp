// For which device weights are laid out. A folder in a layout that only other devices read, or for
// a backend that does not run on the device, is of no use: that is said before it is written.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/runtime/choice.hpp"

namespace fp4moe::runtime {

struct Target {
  const plan::Model& model;
  const checkpoint::Slice& slice;
  const platform::Device& device;
  bool is_given = false;  // the device was named; else it is this machine
};

// Warnings about a backend that was named: it does not run there, or plan calls the split impossible. Errors: target.device (code usage) where the layout
// depends on the device, none was named and the backend does not run here; target.backend (code
// no_backend) where it depends on the device and the backend does not run on the one that was named.
Result<std::vector<std::string>> check_target(const Choice& choice, const Target& target);

// A layout by id in the generation that is read on the device. Errors: those of require_layout and
// check_target.
Result<const layout::Layout*> layout_for_target(std::string_view id, const Target& target);

}  // namespace fp4moe::runtime
