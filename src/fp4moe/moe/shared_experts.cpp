#include "fp4moe/moe/shared_experts.hpp"

namespace fp4moe::moe {

std::string_view name(SharedOrder order) {
  return order == SharedOrder::before      ? "NO_OVERLAP"
         : order == SharedOrder::in_kernel ? "MK_INTERNAL_OVERLAPPED"
                                           : "MULTI_STREAM_OVERLAPPED";
}

SharedOrder shared_order(const SharedCase& asked) {
  const bool may_overlap = !(asked.has_eplb && !asked.eplb_leaves_overlap) && !asked.is_two_sided &&
                           !asked.is_sequence_parallel;
  if (!may_overlap) return SharedOrder::before;
  if (asked.is_async) return SharedOrder::in_kernel;
  if (asked.is_cuda && asked.tokens <= asked.threshold) return SharedOrder::second_stream;
  return SharedOrder::before;
}

}  // namespace fp4moe::moe
