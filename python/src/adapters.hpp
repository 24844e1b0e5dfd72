// LoRA adapters of one layer, for tokens that name them by their numbers.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "fp4moe/moe/lora_load.hpp"
#include "layer.hpp"

namespace fp4moe::python {

struct Adapters {
  std::weak_ptr<const OpenLayer> layer{};  // whose share of experts they were cut for
  std::shared_ptr<const moe::LoraSet> set{};
  std::vector<std::string> folders{};
};

// Adapters of one call: a set and each token's number in it; empty: none.
struct Additions {
  moe::LoraView view{};
  std::vector<std::int32_t> of_token{};
  std::shared_ptr<const moe::LoraSet> set{};  // lives as long as the call
};
// Without numbers, every token has the first adapter. Errors: TypeError, lora.layer, lora.tokens.
Additions take_additions(const std::shared_ptr<OpenLayer>& layer, std::uint64_t tokens,
                         nb::handle lora, nb::handle of_token);

}  // namespace fp4moe::python
