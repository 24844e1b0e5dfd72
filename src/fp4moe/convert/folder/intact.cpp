#include "fp4moe/convert/folder/intact.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::convert {
namespace {

struct CheckedPiece {
  std::size_t tensor = 0, piece = 0;
};

// The begin of each tensor: they fill the file behind the header without a gap.
std::optional<std::vector<std::uint64_t>> begins_of(const FileRecord& record) {
  std::vector<std::uint64_t> begins;
  std::optional<std::uint64_t> at = record.header_bytes;
  for (const TensorRecord& tensor : record.tensors) {
    if (!at) return std::nullopt;
    begins.push_back(*at);
    at = checked_add(*at, tensor.bytes);
  }
  if (at != record.bytes) return std::nullopt;
  return begins;
}

}  // namespace

bool is_damage(const Error& why) {
  if (why.code == ErrorCode::exhausted) return false;
  return why.code != ErrorCode::failed || why.path.empty() || at_path(why.path) == AtPath::nothing;
}

Result<bool> is_intact(const std::string& path, const FileRecord& record, std::size_t threads) {
  const auto begins = begins_of(record);
  if (!begins) return false;
  const Result<tensor::MappedFile> file = tensor::MappedFile::open(path);
  if (!file && !is_damage(file.why())) return file.why();
  if (!file || file->bytes().size() != record.bytes) return false;
  if (digest_of(file->bytes().first(record.header_bytes)) != record.header) return false;
  std::vector<PieceDigests> digests;
  std::vector<CheckedPiece> pieces;
  for (std::size_t t = 0; t < record.tensors.size(); ++t) {
    const TensorRecord& tensor = record.tensors[t];
    // A record of tiny pieces would make lists larger than the file.
    digests.emplace_back(
        tensor.bytes,
        std::max<std::uint64_t>(tensor.piece_bytes, std::min<std::uint64_t>(tensor.bytes, 16)));
    for (std::size_t piece = 0; piece < digests[t].count(); ++piece) pieces.push_back({t, piece});
  }
  const auto check = [&](std::size_t i) -> Result<Done> {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto [t, number] = pieces[i];
    const auto piece =
        file->bytes().subspan((*begins)[t] + digests[t].begin(number), digests[t].size(number));
    digests[t].put(number, piece);
    file->drop(piece);
    return Done{};
  };
  if (Result<Done> done = parallel_for(threads, pieces.size(), check); !done) return done.why();
  for (std::size_t t = 0; t < digests.size(); ++t)
    if (digests[t].whole() != record.tensors[t].checksum) return false;
  return true;
}

}  // namespace fp4moe::convert
