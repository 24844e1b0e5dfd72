// The rank that holds an expert, and the expert's position there.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"

namespace fp4moe::moe::exchange {

struct Owners {
  struct ExpertOwner {
    std::uint64_t rank = 0, local = 0;
  };

  // Physical experts, sharded as weights are. Errors: those of checkpoint::local_experts.
  static Result<Owners> make(std::uint64_t experts, checkpoint::Rank me,
                             checkpoint::Placement placement);

  // The owner of an expert id that a router wrote; none for -1 and for ids out of range.
  std::optional<ExpertOwner> find(std::int32_t expert) const;
  bool is_here(std::int32_t expert) const;

  std::uint64_t me = 0;
  std::uint64_t here = 0;             // experts of this rank
  std::vector<std::int32_t> map{};    // [experts]: the number here, or -1
  std::vector<ExpertOwner> places{};  // [experts]
};

}  // namespace fp4moe::moe::exchange
