// The request "which backend for this layer on this device" as options of a command.
#pragma once
#include <string>

#include "fp4moe/cli/options.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::cli {

using runtime::resolve_device;
using runtime::SelectionOptions;
using runtime::SelectionRequest;

// --policy and --vllm alone.
void declare_policy(OptionSet& set, SelectionOptions& options);

// Filled while the command line is parsed; `options` must stay where it is until then.
void declare_selection(OptionSet& set, SelectionOptions& options);

// "h100 (cuda 9.0; flashinfer, triton_kernels)"
std::string text(const platform::Device& device);

}  // namespace fp4moe::cli
