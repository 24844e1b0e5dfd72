#include "fp4moe/formats/sm90_scale.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::formats {

Result<int> sm90_offset(std::uint8_t smallest, std::uint8_t largest) {
  constexpr int kLargestStored = 254, kSmallestStored = 2, kBias = 126;
  const int offset = std::max(0, largest + kBias - kLargestStored);
  if (smallest + kBias - offset < kSmallestStored)
    return invalid("scale.range", "block scales of one expert span more than the layout can hold")
        .expects("at most 252 binades", fmt::format("bytes {} to {}", smallest, largest));
  return offset;
}

Result<Done> check_sm90_sign(bool has_negative) {
  if (!has_negative) return Done{};
  return invalid("scale.negative", "a block scale is negative")
      .expects("scales of at least zero", "a sign bit")
      .try_this("see `fp4moe lint`");
}

}  // namespace fp4moe::formats
