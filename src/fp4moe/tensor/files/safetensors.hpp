// safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
//
//   {"__metadata__": {"key": "value"},
//    "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
//
// Everything a file may claim is checked before it is believed: lengths, ranges (in the file, no
// holes, no overlap), names, types, shapes.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "fp4moe/tensor/files/tensor_entry.hpp"
#include "fp4moe/tensor/files/tensor_writer.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::tensor {

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors{};  // by position in the file
  Metadata metadata{};
  std::uint64_t data_begin = 0;
};

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::size_t kMaxSafetensorsDimensions = 64;  // as numpy's arrays

// Reads the header at the front of `file` (the whole file: ranges are checked against its size).
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

// Writes one file, tensors in the order of `specs`, their bytes in any order and from any number of
// threads; the file appears at finish().
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::span<const TensorSpec> specs,
                                          const Metadata& metadata = {});
  // Bytes [offset, offset + bytes.size()) of tensor number `index`.
  Result<Done> write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes);
  // Refuses while any tensor is incomplete (every byte must be written exactly once).
  Result<Done> finish();

  const std::vector<TensorEntry>& entries() const { return entries_; }

 private:
  AtomicFile file_{};
  std::vector<TensorEntry> entries_{};
  WriteLedger ledger_{};
};

}  // namespace fp4moe::tensor
