#include "fp4moe/convert/folder/checksum.hpp"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL  // NOLINT(cppcoreguidelines-macro-usage): xxhash's own switch
#include <fmt/format.h>
#include <xxhash.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::convert {

namespace {

Digest canonical_digest(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest{};
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  return canonical_digest(XXH3_128bits(bytes.data(), bytes.size()));
}

struct DigestStream::State {
  XXH3_state_t xxh3;
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_128bits_reset(&state_->xxh3);
}
DigestStream::~DigestStream() = default;

void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

Digest DigestStream::digest() const { return canonical_digest(XXH3_128bits_digest(&state_->xxh3)); }

Digest digest_of(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string text(const Digest& digest) {
  std::string result;
  for (const std::uint8_t byte : digest) result += fmt::format("{:02x}", byte);
  return result;
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

Digest checksum_of(std::span<const std::byte> bytes, std::uint64_t piece_bytes,
                   const tensor::MappedFile* source) {
  PieceDigests digests(bytes.size(), piece_bytes);
  for (std::size_t i = 0; i < digests.count(); ++i) {
    const auto piece = bytes.subspan(digests.begin(i), digests.size(i));
    digests.put(i, piece);
    if (source != nullptr) source->drop(piece);
  }
  return digests.whole();
}

Result<Digest> write_with_checksum(const std::string& path, std::span<const std::byte> bytes,
                                   const tensor::MappedFile* source) {
  Result<tensor::AtomicFile> to = tensor::AtomicFile::create(path, bytes.size());
  if (!to) return to.why();
  PieceDigests digests(bytes.size(), kPieceBytes);
  for (std::size_t i = 0; i < digests.count(); ++i) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on.why();
    const auto piece = bytes.subspan(digests.begin(i), digests.size(i));
    digests.put(i, piece);
    if (Result<Done> written = to->write(digests.begin(i), piece); !written) return written.why();
    if (source != nullptr) source->drop(piece);
  }
  if (Result<Done> named = to->commit(); !named) return named.why();
  return digests.whole();
}

}  // namespace fp4moe::convert
