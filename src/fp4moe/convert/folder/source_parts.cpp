#include "fp4moe/convert/folder/source_parts.hpp"

#include <algorithm>
#include <cerrno>
#include <unordered_set>

#include <fmt/format.h>
#include <sys/stat.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::convert {
namespace {

using tensor::Store;
using tensor::StoredTensor;

bool lies_before(const StoredTensor* a, const StoredTensor* b) {
  return a->entry.begin < b->entry.begin;
}

}  // namespace

SourceParts parts_of(const checkpoint::Checkpoint& checkpoint) {
  const Store& store = checkpoint.store();
  SourceParts parts;
  parts.scalars.resize(store.files().size());
  std::unordered_set<const StoredTensor*> taken;
  for (const checkpoint::LayerTensors& layer : checkpoint.layers()) {
    for (const auto* places : {&layer.gate, &layer.up, &layer.down}) {
      for (const checkpoint::ProjectionPlaces& place : *places) {
        for (const checkpoint::TensorPlace part : {place.codes, place.scales, place.bias})
          if (part.tensor != nullptr) taken.insert(part.tensor);
        // Fused dialects name a tensor twice.
        for (const checkpoint::TensorPlace part : {place.global_scale, place.input_scale})
          if (part.tensor != nullptr && taken.insert(part.tensor).second)
            parts.scalars[part.tensor->file].push_back(part.tensor);
      }
    }
  }
  for (auto& scalars : parts.scalars) std::ranges::sort(scalars, lies_before);
  for (const StoredTensor& tensor : store.tensors())
    if (!taken.contains(&tensor)) parts.others.push_back(&tensor);
  return parts;
}

tensor::TensorSpec kept_spec(const tensor::TensorEntry& entry) {
  const tensor::DTypeRow& row = tensor::row(entry.dtype);
  tensor::TensorSpec spec{entry.name, entry.dtype, entry.shape};
  if (row.in_safetensors) return spec;
  spec.dtype = tensor::DType::u8;
  if (spec.shape.empty())
    spec.shape = {entry.bytes};
  else
    spec.shape.back() = spec.shape.back() / row.block_elements * row.block_bytes;
  return spec;
}

std::string file_name(const Store& store, std::size_t file) {
  const std::string& path = store.files()[file].path();
  const std::string& folder = store.folder();
  if (path.size() > folder.size() + 1 && path.starts_with(folder) && path[folder.size()] == '/')
    return path.substr(folder.size() + 1);
  return path.substr(path.rfind('/') + 1);
}

std::vector<checkpoint::Range> gaps_of(const Store& store, std::size_t file) {
  std::vector<const StoredTensor*> here;
  for (const StoredTensor& tensor : store.tensors())
    if (tensor.file == file) here.push_back(&tensor);
  std::ranges::sort(here, lies_before);
  std::vector<checkpoint::Range> gaps;
  std::uint64_t at = 0;
  for (const StoredTensor* tensor : here) {
    if (tensor->entry.begin > at) gaps.push_back({at, tensor->entry.begin});
    at = std::max(at, tensor->entry.begin + tensor->entry.bytes);
  }
  const std::uint64_t size = store.files()[file].bytes().size();
  if (size > at) gaps.push_back({at, size});
  return gaps;
}

Frame::Frame(const Store& store, std::size_t file)
    : mapped_(store.files()[file]), gaps_(gaps_of(store, file)) {
  for (const checkpoint::Range& gap : gaps_) begins_.push_back(begins_.back() + gap.size());
}

void Frame::read(std::uint64_t at, std::span<std::byte> to) const {
  std::size_t gap = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), at) -
                                             begins_.begin() - 1);
  while (!to.empty()) {
    const std::uint64_t inside = at - begins_[gap];
    const std::size_t size = std::min<std::uint64_t>(to.size(), gaps_[gap].size() - inside);
    const auto part = mapped_.bytes().subspan(gaps_[gap].begin + inside, size);
    std::ranges::copy(part, to.begin());
    mapped_.drop(part);
    to = to.subspan(size);
    at += size;
    ++gap;
  }
}

Result<Done> Frame::for_each_piece(
    const std::function<Result<Done>(std::uint64_t, std::span<const std::byte>)>& work) const {
  std::vector<std::byte> buffer(std::min(bytes(), kPieceBytes));
  for (std::uint64_t at = 0; at < bytes(); at += kPieceBytes) {
    if (Result<Done> go_on = check_interrupt(); !go_on) return go_on;
    const auto piece = std::span(buffer).first(std::min(bytes() - at, kPieceBytes));
    read(at, piece);
    if (Result<Done> done = work(at, piece); !done) return done;
  }
  mapped_.drop(mapped_.bytes());  // gaps smaller than a page brought their pages along
  return Done{};
}

Result<Digest> Frame::digest() const {
  DigestStream stream;
  const auto add = [&stream](std::uint64_t, std::span<const std::byte> piece) -> Result<Done> {
    stream.add(piece);
    return Done{};
  };
  if (Result<Done> done = for_each_piece(add); !done) return done.why();
  return stream.digest();
}

Result<std::uint64_t> frame_bytes(const Store& store) {
  constexpr std::uint64_t kFree = std::uint64_t{128} << 20;  // the largest header, and more
  std::vector<std::uint64_t> tensors(store.files().size(), 0);
  for (const StoredTensor& tensor : store.tensors()) tensors[tensor.file] += tensor.entry.bytes;
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t outside = store.files()[i].bytes().size() - tensors[i];
    if (outside > kFree && outside - kFree > tensors[i])
      return invalid("convert.frame", "most of the file belongs to no tensor")
          .in(store.files()[i].path())
          .expects(fmt::format("at most {} beside {} of tensors", human_bytes(tensors[i] + kFree),
                               human_bytes(tensors[i])),
                   human_bytes(outside))
          .try_this("the file is damaged or was never finished: fetch it again");
    all += outside;
  }
  return all;
}

std::vector<std::byte> joined(const Store& store, const std::vector<const StoredTensor*>& tensors) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto part = store.bytes(*tensors[i]);
    bytes.insert(bytes.end(), part.begin(), part.end());
    if (i % 64 == 63) {  // they lie scattered, and each brings its page along
      const tensor::MappedFile& mapped = store.files()[tensors[i]->file];
      mapped.drop(mapped.bytes());
    }
  }
  return bytes;
}

Result<std::vector<FileStamp>> stamps_of(const checkpoint::Checkpoint& checkpoint) {
  const Store& store = checkpoint.store();
  std::vector<FileStamp> stamps;
  for (std::size_t i = 0; i < store.files().size(); ++i) {
    const std::string& path = store.files()[i].path();
    const Result<Digest> frame = Frame(store, i).digest();
    if (!frame) return frame.why();
    struct stat status {};
    if (stat(path.c_str(), &status) != 0)
      return system_error("file.open", "cannot look at", errno).in(path);
    stamps.push_back(
        {.file = {.name = file_name(store, i),
                  .bytes = static_cast<std::uint64_t>(status.st_size),
                  .frame = *frame},
         .modified_ns = static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                        status.st_mtim.tv_nsec,
         .inode = status.st_ino});
  }
  return stamps;
}

Result<Done> check_stamps(const checkpoint::Checkpoint& checkpoint,
                          const std::vector<FileStamp>& stamps) {
  const auto changed = [&](const std::string& file, std::string_view expected,
                           std::string_view found) {
    return invalid("convert.source_changed", "the source changed while it was converted")
        .in(checkpoint.store().folder() + "/" + file)
        .expects(expected, found)
        .try_this("convert it again once nothing writes to it");
  };
  const auto now = stamps_of(checkpoint);
  if (!now && now.why().code == ErrorCode::failed)
    return changed("", "the same files", now.why().message);
  if (!now) return now.why();
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    const FileStamp &before = stamps[i], &after = (*now)[i];
    const std::string& file = before.file.name;
    if (before.file.bytes != after.file.bytes)
      return changed(file, fmt::format("{} bytes", before.file.bytes),
                     fmt::format("{} bytes", after.file.bytes));
    if (before.inode != after.inode) return changed(file, "the same file", "another one");
    if (before.file.frame != after.file.frame)
      return changed(file, "the same header", "another one");
    if (before.modified_ns != after.modified_ns)
      return changed(file, "no change since", "a later time of change");
  }
  return Done{};
}

}  // namespace fp4moe::convert
