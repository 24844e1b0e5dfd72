// Matrices whose rows stay what they are, but for padding and their order; and what packing them
// has in common with packing by kernels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/convert/pack/pack_matrix.hpp"
#include "fp4moe/kernels/cpu/shuffle_list.hpp"

namespace fp4moe::convert {

// The kernels that suit this machine best.
const kernels::cpu::ShuffleSet& machine_shuffles();

// Bytes of a row of the source.
std::uint64_t row_bytes(const layout::IndexMap& map);

// A table made ready for kernels; null where there is none.
class Translator {
 public:
  explicit Translator(const ByteTable* table);
  explicit operator bool() const { return table_.has_value(); }
  void operator()(const std::byte* from, std::byte* to, std::size_t size) const {
    (*this)(reinterpret_cast<const std::uint8_t*>(from), reinterpret_cast<std::uint8_t*>(to), size);
  }
  void operator()(const std::uint8_t* from, std::uint8_t* to, std::size_t size) const {
    machine_shuffles().translate(*table_, from, to, size);
  }

 private:
  std::optional<kernels::cpu::Translation> table_{};
};

void pack_rows(const layout::IndexMap& map, const MatrixSource& from, std::span<std::byte> out);
void unpack_rows(const layout::IndexMap& map, std::span<const std::byte> packed,
                 const MatrixTarget& to);

}  // namespace fp4moe::convert
