// Router logits in, chosen experts and their weights out.
//
// A Router is made once from its options, which are checked then, and holds no state that routing
// changes. Rules for awkward logits, which every method keeps: ids of a token are distinct (but for
// simulated normal routing and tables that repeat one); a key or weight that is not finite counts
// as 0, a logit that is compared itself as minus infinity, and so does every logit that is not
// finite where experts are grouped; weights are finite.
//
// Keys are compared as float32, rounded once from their true value. The fast path compares cheaper
// approximations and proves that no rounding can change the order; rows where it cannot are routed
// by the slow path, which is also what route_reference runs for every row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/routing/method.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::moe::routing {

inline constexpr std::uint64_t kMaxExperts = 4096;  // rows of scratch lie on the stack

enum class Simulation : std::uint8_t { uniform_random, normal_routing };
std::optional<Simulation> simulation_from_name(std::string_view name);

struct RouterOptions {
  Method method = Method::renormalize;
  std::uint64_t experts = 0, top_k = 0;
  std::uint64_t groups = 0, chosen_groups = 0;  // up to one group: not grouped
  std::vector<float> bias{};                    // [experts + zero_experts], or none
  double scale = 1;                             // the routed scaling factor
  bool scale_on_output = false;                 // left to the code that adds the shared experts
  std::optional<bool> renormalize{};            // where the method leaves it open
  std::vector<std::int32_t> hash_table{};       // [token ids, top_k] experts; DeepseekV4 only
  std::uint64_t zero_experts = 0;       // identities, routed to with the numbers after the experts'
  std::uint64_t shared_experts = 0;     // appended to every token: experts, experts + 1, ...
  bool scores_in_logits_dtype = false;  // grouped: round scores and keys to 16 bits as logits are
  bool weights_in_bf16 = false;         // round the weights, as triton_kernels and TRT-LLM do
  Simulation simulation = Simulation::uniform_random;
  std::uint64_t seed = 0;  // of the simulation
};

// [tokens, columns] of f32, bf16 or f16, `stride` elements from row to row (0: columns).
struct LogitsView {
  const void* data = nullptr;
  tensor::DType dtype = tensor::DType::f32;
  std::uint64_t tokens = 0, columns = 0, stride = 0;
};

struct RouteInput {
  LogitsView logits{};
  std::span<const std::int32_t> token_ids{};   // [tokens], where a table chooses
  std::span<const std::uint8_t> is_padding{};  // [tokens] or none: such rows get ids -1, weights 0
};

struct RouteOutput {
  std::span<std::int32_t> ids{};        // [tokens, assignments_per_token()]
  std::span<float> weights{};           // [tokens, assignments_per_token()]
  std::span<float> identity_weights{};  // [tokens] where there are zero experts: their weight
};

struct RowPlan;

class Router {
 public:
  // Errors: routing.method, .experts, .top_k, .groups, .bias, .scale, .renormalize, .hash, .dtype.
  static Result<Router> make(RouterOptions options);

  const RouterOptions& options() const { return options_; }
  std::uint64_t columns() const { return options_.experts + options_.zero_experts; }
  std::uint64_t assignments_per_token() const { return options_.top_k + options_.shared_experts; }
  bool is_grouped() const;
  RowPlan plan() const;  // rows.hpp; valid as long as this object

  // Nothing is allocated. Errors are about sizes, types and token ids (routing.input); then nothing
  // was written.
  Result<Done> route(const RouteInput& input, const RouteOutput& output, ThreadPool& pool) const;
  // The same, every row the slow way.
  Result<Done> route_reference(const RouteInput& input, const RouteOutput& output) const;

 private:
  struct Rows {
    std::uint64_t begin = 0, end = 0;
    bool exactly = false;
  };
  explicit Router(RouterOptions options) : options_(std::move(options)) {}

  Result<Done> check(const RouteInput& input, const RouteOutput& output) const;
  // Rows [begin, end).
  void route_rows(const RouteInput& input, const RouteOutput& output, Rows rows) const;

  RouterOptions options_{};
};

// TRT-LLM's form of a choice: id << 16 | bf16(weight).
Result<Done> pack_routing(std::span<const std::int32_t> ids, std::span<const float> weights,
                          std::span<std::int32_t> packed);

}  // namespace fp4moe::moe::routing
