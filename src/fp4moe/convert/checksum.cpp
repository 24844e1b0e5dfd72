#include "fp4moe/convert/checksum.hpp"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL  // NOLINT(cppcoreguidelines-macro-usage): xxhash's own switch
#include <fmt/format.h>
#include <xxhash.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::convert {

Digest digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest{};
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string text(const Digest& digest) {
  std::string made;
  for (const std::uint8_t byte : digest) made += fmt::format("{:02x}", byte);
  return made;
}

std::optional<Digest> digest_from_text(std::string_view text) {
  Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_number = c >= '0' && c <= '9';
    if (!is_number && !(c >= 'a' && c <= 'f')) return std::nullopt;
    const int value = is_number ? c - '0' : c - 'a' + 10;
    digest[i / 2] = static_cast<std::uint8_t>(digest[i / 2] * 16 + value);
  }
  return digest;
}

PieceDigests::PieceDigests(std::uint64_t bytes, std::uint64_t piece_bytes)
    : bytes_(bytes),
      piece_bytes_(std::max<std::uint64_t>(piece_bytes, 1)),
      digests_(ceil_div(bytes_, piece_bytes_)) {}

std::uint64_t PieceDigests::size(std::size_t number) const {
  return std::min(piece_bytes_, bytes_ - begin(number));
}

void PieceDigests::put(std::size_t number, std::span<const std::byte> piece) {
  digests_[number] = digest_of(piece);
}

Digest PieceDigests::whole() const { return digest_of(std::as_bytes(std::span(digests_))); }

Digest checksum_of(std::span<const std::byte> bytes, std::uint64_t piece_bytes) {
  PieceDigests digests(bytes.size(), piece_bytes);
  for (std::size_t i = 0; i < digests.count(); ++i)
    digests.put(i, bytes.subspan(digests.begin(i), digests.size(i)));
  return digests.whole();
}

}  // namespace fp4moe::convert
