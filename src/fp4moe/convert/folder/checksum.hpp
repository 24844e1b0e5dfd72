// Checksums of tensors that are written piece by piece, by threads, out of order.
//
//   checksum(tensor) = xxh3_128(xxh3_128(piece 0) | xxh3_128(piece 1) | ...)
//
// Pieces have `piece_bytes` bytes, the last one what is left; an empty tensor has none. Digests
// stand there in their canonical form, 16 bytes, the highest first. So no tensor is ever held
// whole, and checking is shared by threads as packing is.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::convert {

using Digest = std::array<std::uint8_t, 16>;

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);

// The digest of bytes that come in parts.
class DigestStream {
 public:
  DigestStream();
  DigestStream(const DigestStream&) = delete;
  DigestStream& operator=(const DigestStream&) = delete;
  ~DigestStream();
  void add(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 32 hexadecimal digits, and back.
std::string text(const Digest& digest);
std::optional<Digest> digest_from_text(std::string_view text);

// The piece size of tensors without experts.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;

// The pieces of one tensor. Different pieces may be put by different threads.
class PieceDigests {
 public:
  PieceDigests(std::uint64_t bytes, std::uint64_t piece_bytes);

  std::size_t count() const { return digests_.size(); }
  std::uint64_t piece_bytes() const { return piece_bytes_; }
  // The first byte of piece `number`.
  std::uint64_t begin(std::size_t number) const { return number * piece_bytes_; }
  std::uint64_t size(std::size_t number) const;
  void put(std::size_t number, std::span<const std::byte> piece);
  void put(std::size_t number, const Digest& digest) { digests_[number] = digest; }
  Digest whole() const;

 private:
  std::uint64_t bytes_, piece_bytes_;
  std::vector<Digest> digests_{};
};

// The checksum of bytes that lie in one place. `source`: the mapping that they lie in, whose pages
// are released.
Digest checksum_of(std::span<const std::byte> bytes, std::uint64_t piece_bytes = kPieceBytes,
                   const tensor::MappedFile* source = nullptr);
// Writes a file in pieces; the checksum of what it holds. `source`: as above.
Result<Digest> write_with_checksum(const std::string& path, std::span<const std::byte> bytes,
                                   const tensor::MappedFile* source);

}  // namespace fp4moe::convert
