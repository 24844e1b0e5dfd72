// The batches of a rank's experts in one buffer: the same number of rows for each expert, filled
// from the front.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/exchange/wire.hpp"
#include "fp4moe/moe/tokens.hpp"

namespace fp4moe::moe::exchange {

class Batches {
 public:
  // Empty ones, with a row for each token of each of `ranks` ranks. Errors: exchange.capacity, and
  // those of reserve.
  Result<Done> open(std::uint64_t experts, std::uint64_t max_tokens, std::uint64_t ranks,
                    const RowCodec& codec, bool has_adapters) {
    const auto capacity = checked_multiply(max_tokens, ranks);
    const auto rows = capacity ? checked_multiply(experts, *capacity) : std::nullopt;
    const auto bytes = rows ? checked_multiply(*rows, codec.arrived_bytes()) : std::nullopt;
    if (!bytes)
      return error(ErrorCode::exhausted, "exchange.capacity", "batches do not fit 64 bits");
    capacity_ = *capacity;
    if (const auto done = reserve(memory_, *bytes); !done) return done.why();
    x_ = codec.arrived(memory_, *rows);
    counts_.assign(experts, 0);
    adapters_.assign(has_adapters ? x_.rows : 0, -1);
    return Done{};
  }

  std::uint64_t rows() const { return x_.rows; }
  std::uint64_t capacity() const { return capacity_; }
  bool is_full(std::uint64_t expert) const { return count(expert) >= capacity_; }
  // Unpacks a token into the expert's next free row and returns the row. The batch must not be full.
  std::uint64_t add(std::uint64_t expert, const std::byte* packed, RowCodec& codec) {
    const std::uint64_t row = expert * capacity_ + count(expert);
    ++counts_[expert];
    codec.unpack(packed, x_, row);
    return row;
  }
  std::int32_t* adapter(std::uint64_t row) { return adapters_.empty() ? nullptr : &adapters_[row]; }
  Prepared prepared(const RowCodec& codec) const {
    return {{.x = x_, .adapters = adapters_},
            TokenFormat::batched,
            codec.is_quantized(),
            codec.factor(),
            counts_,
            capacity_};
  }

 private:
  std::uint64_t count(std::uint64_t expert) const {
    return static_cast<std::uint64_t>(counts_[expert]);
  }

  std::uint64_t capacity_ = 0;
  tensor::Buffer memory_{};
  MutableRows x_{};
  std::vector<std::int32_t> counts_{}, adapters_{};
};

}  // namespace fp4moe::moe::exchange
