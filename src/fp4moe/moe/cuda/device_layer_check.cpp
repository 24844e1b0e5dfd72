// Checks a call before anything is enqueued.
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/plan.hpp"

namespace fp4moe::moe::cuda {
namespace {

constexpr std::uintptr_t kRowAlignment = 16;  // bytes that kernels load and store at once

struct ExpectedRows {
  const char* what;
  std::uint64_t rows, columns;
  std::uintptr_t alignment;
};

// `device`: checks whose memory it is; null: the caller has promised that it is the device's.
Result<Done> check_address(const kernels::cuda::Device* device, const void* at, const char* what,
                           std::uintptr_t alignment) {
  if (at == nullptr)
    return usage("cuda.pointer", fmt::format("null pointer: {}", what))
        .expects("an address of the device", "null");
  if (reinterpret_cast<std::uintptr_t>(at) % alignment != 0)
    return usage("cuda.pointer", fmt::format("misaligned pointer: {}", what))
        .expects(fmt::format("a multiple of {} bytes", alignment), fmt::format("{}", at));
  if (device == nullptr) return Done{};
  return device->check_pointer(at, what);
}

Result<Done> check_device_rows(const kernels::cuda::Device* device, const ConstRows& rows,
                               const ExpectedRows& expected) {
  if (rows.dtype != DType::bf16 && rows.dtype != DType::f16 && rows.dtype != DType::f32)
    return usage("cuda.type", fmt::format("unsupported type of {}", expected.what))
        .expects("bf16, f16 or f32", tensor::name(rows.dtype));
  if (rows.rows != expected.rows || rows.columns != expected.columns)
    return usage("cuda.size", fmt::format("wrong size of {}", expected.what))
        .expects(fmt::format("{} x {}", expected.rows, expected.columns),
                 fmt::format("{} x {}", rows.rows, rows.columns));
  if (rows.rows == 0) return Done{};
  const std::uint64_t row = rows.columns * element_bytes(rows.dtype);
  if (rows.stride < row || rows.stride % expected.alignment != 0)
    return usage("cuda.size", fmt::format("unsupported row stride of {}", expected.what))
        .expects(fmt::format("at least {} bytes from row to row, a multiple of {}", row,
                             expected.alignment),
                 fmt::format("{}", rows.stride));
  return check_address(device, rows.data, expected.what, expected.alignment);
}

// Logits, ids or batches: exactly one of them.
Result<Done> check_parts(const DeviceCall& call) {
  const Prepared& in = call.in;
  const bool has_ids = !in.ids.empty() || in.top_k != 0;
  const bool is_batched = in.format == TokenFormat::batched;
  if (!in.counts.empty() && !is_batched)
    return usage("cuda.call", "counts are for batches").expects("batched tokens", "standard rows");
  const int ways = (call.router != nullptr ? 1 : 0) + (has_ids ? 1 : 0) + (is_batched ? 1 : 0);
  // Without rows, none of the three is needed.
  if (ways != 1 && !(ways == 0 && in.x.rows == 0))
    return usage("cuda.call", "need logits, ids or batches")
        .expects("one of them", ways == 0 ? "none" : "several");
  if ((call.form == OutputForm::batches) != is_batched)
    return usage("cuda.call", "output form and token form differ")
        .expects(is_batched ? "batches" : "summed rows or assignments",
                 call.form == OutputForm::batches ? "batches" : "rows");
  const bool has_adapters = call.adapters.pairs != nullptr;
  if (has_adapters && (in.adapters.empty() || call.router != nullptr))
    return usage("cuda.call", "adapters need one index per token, and given ids")
        .expects("adapters of tokens, no router",
                 call.router != nullptr ? "a router" : "no indices");
  return Done{};
}

}  // namespace

// Layers with different keys may still have the same regions.
bool DeviceLayer::may_use(const Workspace& space) const {
  if (space.device_ != device_) return false;
  if (space.key_ == workspace_key(*layer_, device_->family())) return true;
  const auto plan = plan_workspace(*layer_, space.limits_, limits_of(*device_));
  return plan && plan->at == space.plan_.at;
}

Result<Done> DeviceLayer::check_call(const DeviceCall& call, const Workspace& space) const {
  if (const auto fine = check_parts(call); !fine) return fine.why();
  const Prepared& in = call.in;
  const bool is_batched = in.format == TokenFormat::batched;
  const std::uint64_t top_k = call.top_k(), experts = layer_->experts;
  const std::uint64_t tokens = is_batched ? experts * in.capacity : in.x.rows;
  if (top_k > sm90::kMaxTopK)
    return usage("cuda.limits", "top_k is too large")
        .expects(fmt::format("at most {}", sm90::kMaxTopK), fmt::format("{}", top_k));
  const WorkspaceLimits& limits = space.limits_;
  if (!may_use(space))
    return usage("cuda.workspace", "wrong workspace: reserved for a layer of other sizes")
        .expects("one that this layer reserved", "another's");
  if ((is_batched && in.capacity > limits.capacity) ||
      (!is_batched && (tokens > limits.tokens || top_k > limits.top_k)) ||
      (call.adapters.pairs != nullptr && call.adapters.max_rank > limits.max_rank))
    return usage("cuda.workspace", "workspace too small")
        .expects(fmt::format("{} tokens of {} choices, {} rows in batches, rank {}", limits.tokens,
                             limits.top_k, limits.capacity, limits.max_rank),
                 fmt::format("{} tokens of {} choices, {} rows in batches, rank {}",
                             is_batched ? 0 : tokens, top_k, in.capacity, call.adapters.max_rank))
        .try_this("reserve more");

  const std::uint64_t out_rows = call.form == OutputForm::assignments ? tokens * top_k : tokens;
  const std::uint64_t hidden = layer_->hidden;
  const kernels::cuda::Device* const asked = call.is_on_device ? nullptr : device_.get();
  if (const auto fine = check_device_rows(asked, in.x, {"tokens", tokens, hidden, kRowAlignment});
      !fine)
    return fine.why();
  if (const auto fine =
          check_device_rows(asked, call.out, {"outputs", out_rows, hidden, kRowAlignment});
      !fine)
    return fine.why();
  if (tokens * top_k == 0) return Done{};
  if (call.router != nullptr) {
    const std::uint64_t size = element_bytes(in.logits.dtype);
    if (const auto fine =
            check_device_rows(asked, in.logits, {"logits", tokens, call.router->columns(), size});
        !fine)
      return fine.why();
  }
  struct Vector {
    const void* at;
    std::uint64_t size, expected;
    const char* what;
    bool is_needed = false;
  };
  const std::uint64_t assignments = tokens * top_k;
  const Vector vectors[] = {
      {in.ids.data(), in.ids.size(), assignments, "ids", call.router == nullptr && !is_batched},
      {in.weights.data(), in.weights.size(), assignments, "weights"},
      {in.counts.data(), in.counts.size(), experts, "counts", is_batched},
      {call.expert_map.empty() ? nullptr : call.expert_map.data(), 0, 0, "expert map"},
      {call.adapters.pairs, 0, 0, "adapters"},
      {in.adapters.data(), in.adapters.size(), tokens, "adapters of tokens"}};
  for (const Vector& vector : vectors) {
    if (vector.at == nullptr && !vector.is_needed) continue;
    const auto fine = check_address(asked, vector.at, vector.what, sizeof(float));
    if (!fine) return fine.why();
    if (vector.size != vector.expected)
      return usage("cuda.size", fmt::format("wrong size of {}", vector.what))
          .expects(fmt::format("{}", vector.expected), fmt::format("{}", vector.size));
  }
  return Done{};
}

}  // namespace fp4moe::moe::cuda
