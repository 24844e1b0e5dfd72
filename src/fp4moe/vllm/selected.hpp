// The result of a selection: the backend, its class of experts, and the record with every reason.
#pragma once
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/vllm/moe_config.hpp"

namespace fp4moe::vllm {

template <class Backend>
struct Selected {
  Backend backend{};
  ExpertsClass experts_cls = nullptr;  // null where the reference has a function, or no kernel
  oracle::Record record{};
};

}  // namespace fp4moe::vllm
