#include "fp4moe/convert/folder/content.hpp"

#include <cstring>

#define XXH_INLINE_ALL  // NOLINT(cppcoreguidelines-macro-usage): xxhash's own switch
#include <xxhash.h>

#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::convert {
namespace {

void add_rows(XXH3_state_t& state, const checkpoint::RowsView& rows) {
  if (rows.rows == 0) return;
  if (rows.is_dense()) {
    XXH3_128bits_update(&state, rows.data, rows.rows * rows.row_bytes);
    return;
  }
  for (std::uint64_t row = 0; row < rows.rows; ++row)
    XXH3_128bits_update(&state, rows.row(row).data(), rows.row_bytes);
}

void add_bias(XXH3_state_t& state, const checkpoint::BiasView& bias) {
  const std::size_t each = tensor::row(bias.dtype).block_bytes;
  for (std::uint64_t i = 0; i < bias.size; ++i)
    XXH3_128bits_update(&state, bias.data + i * bias.stride, each);
}

}  // namespace

Digest content_of(const checkpoint::ExpertView& view) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  for (const checkpoint::ProjectionView* part : {&view.gate, &view.up, &view.down}) {
    add_rows(state, part->codes);
    add_rows(state, part->scales);
    add_bias(state, part->bias);
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  Digest digest{};
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace fp4moe::convert
