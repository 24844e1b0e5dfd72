// Bytes as decisions: a fuzzer that changes a byte changes one decision and leaves the rest.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fp4moe::fuzz {

class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool is_over() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint32_t below(std::uint32_t count) {  // two bytes
    const std::uint32_t value = byte();
    return count == 0 ? 0 : (value << 8 | byte()) % count;
  }
  bool one_in(unsigned count) { return byte() % count == count - 1; }
  template <class T, std::size_t kCount>
  T any(const std::array<T, kCount>& all) {
    return all[byte() % kCount];
  }
  std::span<const std::uint8_t> rest() const { return rest_; }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace fp4moe::fuzz
