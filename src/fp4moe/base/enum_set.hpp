// A set of enumerators as a value: constexpr, comparable, no allocation.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace fp4moe {

template <class Enum>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<Enum> members) {
    for (const Enum member : members) insert(member);
  }
  constexpr void insert(Enum member) { bits_ |= bit(member); }
  constexpr void erase(Enum member) { bits_ &= ~bit(member); }
  constexpr bool contains(Enum member) const { return (bits_ & bit(member)) != 0; }
  constexpr bool contains_all(EnumSet other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(EnumSet, EnumSet) = default;

 private:
  static constexpr std::uint64_t bit(Enum member) {
    return std::uint64_t{1} << static_cast<unsigned>(member);
  }
  std::uint64_t bits_ = 0;
};

}  // namespace fp4moe
