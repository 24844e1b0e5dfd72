// Test adapters: seeded LoRA factors for the experts of a model, in every form adapters come in.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::checkpoint {

enum class AdapterForm : std::uint8_t {
  per_expert,  // a module for each expert and projection
  wrapped,     // PEFT's target_parameters: experts folded into the rank
  swapped,     // the same by older PEFT: A and B change places
  stacked,     // one 3-D tensor for all experts
  shared,      // the same, A of gate and up and B of down common to all experts
};

struct AdapterFormRow {
  AdapterForm form;
  std::string_view name;
};
inline constexpr AdapterFormRow kAdapterForms[] = {{AdapterForm::per_expert, "per-expert"},
                                                   {AdapterForm::wrapped, "wrapped"},
                                                   {AdapterForm::swapped, "swapped"},
                                                   {AdapterForm::stacked, "stacked"},
                                                   {AdapterForm::shared, "shared"}};
constexpr std::string_view name(AdapterForm form) {
  return kAdapterForms[static_cast<std::size_t>(form)].name;
}
std::optional<AdapterForm> adapter_form_from_name(std::string_view name);

struct SynthAdapterOptions {
  AdapterForm form = AdapterForm::per_expert;
  std::uint64_t rank = 8;
  double alpha = 16;
  bool rslora = false;
  tensor::DType dtype = tensor::DType::bf16;  // or f16, f32
  double change = 0.02;                       // root mean square of scale * B A
  std::uint64_t seed = 1;
};

struct SynthAdapterReport {
  std::uint64_t layers = 0, tensors = 0, bytes = 0;
};

// Writes adapter_config.json and adapter_model.safetensors into a new folder. Errors: synth.adapter
// (a rank of zero or too large, no layer, a form that needs a gate), those of the files.
Result<SynthAdapterReport> synth_adapter(std::span<const AdapterTarget> targets,
                                         const SynthAdapterOptions& options,
                                         const std::string& out);

}  // namespace fp4moe::checkpoint
