// SHA-256 (FIPS 180-4), for digests that others have written down. Portable; not a secret keeper.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fp4moe {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void add(std::span<const std::byte> bytes);
  // Ends the message; the object is then ready for the next one.
  Digest finish();

 private:
  static constexpr std::array<std::uint32_t, 8> kStart{0x6A09E667, 0xBB67AE85, 0x3C6EF372,
                                                       0xA54FF53A, 0x510E527F, 0x9B05688C,
                                                       0x1F83D9AB, 0x5BE0CD19};
  void block(const std::byte* data);

  std::array<std::uint32_t, 8> state_ = kStart;
  std::array<std::byte, 64> rest_{};  // bytes that do not fill a block yet
  std::uint64_t length_ = 0;          // of the message so far
};

// The digest in 64 lower-case hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace fp4moe
