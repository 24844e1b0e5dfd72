// Shared by the writers of tensor files: a piece of a tensor goes to its place, and a file is
// finished only when every byte of every tensor was written once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/tensor_entry.hpp"
#include "fp4moe/tensor/files/write_ledger.hpp"

namespace fp4moe::tensor {

struct OpenTensorFile {
  AtomicFile& file;
  std::span<const TensorEntry> entries;
  WriteLedger& ledger;
};

struct PiecePlace {
  std::size_t tensor;
  std::uint64_t offset;
};

Result<Done> write_piece(const OpenTensorFile& open, PiecePlace at,
                         std::span<const std::byte> bytes);
Result<Done> check_whole(const OpenTensorFile& open);

}  // namespace fp4moe::tensor
