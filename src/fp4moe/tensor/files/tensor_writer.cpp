#include "fp4moe/tensor/files/tensor_writer.hpp"

#include <string>

namespace fp4moe::tensor {

Result<Done> write_piece(const OpenTensorFile& open, PiecePlace at,
                         std::span<const std::byte> bytes) {
  if (at.tensor >= open.entries.size())
    return usage("tensor.index", "there is no such tensor in the file")
        .in(open.file.path())
        .expects("less than " + std::to_string(open.entries.size()), std::to_string(at.tensor));
  const TensorEntry& entry = open.entries[at.tensor];
  if (at.offset > entry.bytes || bytes.size() > entry.bytes - at.offset)
    return usage("tensor.write_range", "the bytes do not fit into the tensor")
        .in(open.file.path())
        .at(entry.name)
        .expects("at most " + std::to_string(entry.bytes) + " bytes",
                 std::to_string(bytes.size()) + " bytes at " + std::to_string(at.offset));
  if (Result<Done> written = open.file.write(entry.begin + at.offset, bytes); !written)
    return Error(written.why()).at(entry.name);
  open.ledger.record(at.tensor, at.offset, at.offset + bytes.size());
  return Done{};
}

Result<Done> check_whole(const OpenTensorFile& open) {
  for (std::size_t i = 0; i < open.entries.size(); ++i) {
    const TensorEntry& entry = open.entries[i];
    if (open.ledger.is_tiled(i, entry.bytes)) continue;
    const std::uint64_t written = open.ledger.bytes(i);
    const bool incomplete = written < entry.bytes;
    return usage(incomplete ? "tensor.incomplete" : "tensor.overwritten",
                 incomplete ? "the tensor is not fully written"
                            : "parts of the tensor were written more than once")
        .in(open.file.path())
        .at(entry.name)
        .expects("each of " + std::to_string(entry.bytes) + " bytes once",
                 std::to_string(written) + " bytes written");
  }
  return Done{};
}

}  // namespace fp4moe::tensor
