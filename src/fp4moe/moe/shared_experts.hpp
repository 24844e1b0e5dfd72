// When experts that see every token run beside the routed ones, as vLLM orders them. The sum is the
// same; what differs is what waits for what.
#pragma once
#include <cstdint>
#include <string_view>

namespace fp4moe::moe {

enum class SharedOrder : std::uint8_t {
  before,     // NO_OVERLAP: computed before the routed kernel
  in_kernel,  // MK_INTERNAL_OVERLAPPED: while the combine of an asynchronous exchange is under way
  second_stream,  // MULTI_STREAM_OVERLAPPED: on a stream of their own, begun before the router
};
std::string_view name(SharedOrder order);  // the reference's

struct SharedCase {
  bool has_eplb = false;
  bool eplb_leaves_overlap = false;  // allgather_reducescatter or FlashInfer's one-sided exchange
  bool is_two_sided = false;         // FlashInfer's two-sided exchange
  bool is_sequence_parallel = false;
  bool is_async = false;  // prepare and finalize are
  bool is_cuda = false;
  std::uint64_t tokens = 0;
  std::uint64_t threshold = 256;  // VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD
};
// The first that matches.
SharedOrder shared_order(const SharedCase& asked);

}  // namespace fp4moe::moe
