// GGUF version 3 (and 2 for reading): metadata, tensor table, aligned data; little-endian.
//
// Dimensions are stored innermost first; TensorEntry::shape is outermost first, as everywhere here.
// Tensor types without a row in tensor/dtype.hpp are refused by name and number.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/tensor_entry.hpp"
#include "fp4moe/tensor/files/tensor_writer.hpp"

namespace fp4moe::tensor {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint64_t kGgufAlignment = 32;      // unless general.alignment says otherwise
inline constexpr std::uint64_t kMaxGgufHeader = 100'000'000;
// A value takes up to 32 times its bytes in the file when it is read. Models have some hundred fields
// and, in the lists of a tokenizer, about a million elements.
inline constexpr std::uint64_t kMaxGgufFields = 65'536;
inline constexpr std::uint64_t kMaxGgufElements = std::uint64_t{1}
                                                  << 22;  // of all arrays of a file

// A metadata value. Arrays are homogeneous; numeric arrays are widened as single values are. With a
// vector in the deque's place, libstdc++ takes the variant for one that always has a value, and
// destroys it when there is no memory to copy one.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string,
                               std::vector<std::uint64_t>, std::vector<std::int64_t>,
                               std::vector<double>, std::deque<bool>, std::vector<std::string>>;

// The file's own value types, kept so that a copy is faithful.
enum class GgufType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

struct GgufField {
  std::string key{};
  GgufType type = GgufType::u32;  // of the elements when the value is an array
  GgufValue value{};
};

struct GgufHeader {
  std::vector<GgufField> fields{};
  std::vector<TensorEntry> tensors{};
  std::uint64_t data_begin = 0;
  std::uint64_t alignment = kGgufAlignment;

  const GgufField* find(std::string_view key) const;
};

Result<GgufHeader> parse_gguf(std::span<const std::byte> file);
// The metadata alone, also of a file whose tensors are not there.
Result<std::vector<GgufField>> parse_gguf_fields(std::span<const std::byte> file);

// Writes one file, as SafetensorsWriter does. Alignment is the field general.alignment, or 32.
class GgufWriter {
 public:
  static Result<GgufWriter> create(const std::string& path, std::span<const GgufField> fields,
                                   std::span<const TensorSpec> specs);
  Result<Done> write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes);
  Result<Done> finish();

  const std::vector<TensorEntry>& entries() const { return entries_; }

 private:
  AtomicFile file_{};
  std::vector<TensorEntry> entries_{};
  WriteLedger ledger_{};
};

}  // namespace fp4moe::tensor
