#include "fp4moe/checkpoint/write/tensor_sink.hpp"

#include <filesystem>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{4} << 20;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

// Shards are runs of the list: a shard ends before the tensor that would make it too large.
Result<Done> TensorSink::lay_out(const SpecList& specs, std::uint64_t max_shard_bytes) {
  std::uint64_t in_shard = 0;
  begins_ = {0};
  places_.reserve(specs.count);
  for (std::size_t i = 0; i < specs.count; ++i) {
    const tensor::TensorSpec spec = specs.at(i);
    const std::optional<std::uint64_t> size = tensor::byte_count(spec.dtype, spec.shape);
    const std::optional<std::uint64_t> total = size ? checked_add(bytes_, *size) : std::nullopt;
    if (!total || *total > std::numeric_limits<std::int64_t>::max())
      return usage("write.size", "the tensor's size overflows or does not fill whole blocks")
          .at(spec.name)
          .expects("a size that fits a file",
                   std::string(tensor::name(spec.dtype)) + " " + tensor::text(spec.shape));
    if (i != begins_.back() &&
        (in_shard >= max_shard_bytes || *size > max_shard_bytes - in_shard)) {
      begins_.push_back(i);
      in_shard = 0;
    }
    places_.push_back({.shard = static_cast<std::uint32_t>(begins_.size() - 1),
                       .index = static_cast<std::uint32_t>(i - begins_.back())});
    in_shard += *size;
    bytes_ = *total;
  }
  begins_.push_back(specs.count);
  return Done{};
}

std::string TensorSink::shard_name(std::size_t shard) const {
  if (begins_.size() == 2) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, begins_.size() - 1);
}

Result<TensorSink> TensorSink::create(const std::string& folder, const SpecList& specs,
                                      const SinkOptions& options) {
  TensorSink sink;
  if (Result<Done> laid = sink.lay_out(specs, options.max_shard_bytes); !laid) return laid.why();
  Result<tensor::AtomicFolder> result = tensor::AtomicFolder::create(folder);
  if (!result) return result.why();
  sink.folder_ = *std::move(result);
  sink.has_folder_ = true;
  for (std::size_t shard = 0; shard + 1 < sink.begins_.size(); ++shard) {
    const std::size_t begin = sink.begins_[shard], end = sink.begins_[shard + 1];
    std::vector<tensor::TensorSpec> part;
    part.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i) part.push_back(specs.at(i));
    tensor::Metadata metadata{{"format", "pt"}};
    if (options.metadata) metadata.merge(options.metadata(begin, end));
    Result<tensor::SafetensorsWriter> writer = tensor::SafetensorsWriter::create(
        sink.folder_.staging() + "/" + sink.shard_name(shard), part, metadata);
    if (!writer) return sink.folder_.explain(writer.why());
    sink.shards_.push_back(*std::move(writer));
  }
  return sink;
}

Result<TensorSink> TensorSink::create_gguf(const std::string& path, const SpecList& specs,
                                           std::span<const tensor::GgufField> fields) {
  TensorSink sink;
  sink.is_gguf_ = true;
  if (Result<Done> laid = sink.lay_out(specs, std::numeric_limits<std::uint64_t>::max()); !laid)
    return laid.why();
  std::string file = path;
  if (!path.ends_with(".gguf")) {
    Result<tensor::AtomicFolder> result = tensor::AtomicFolder::create(path);
    if (!result) return result.why();
    sink.folder_ = *std::move(result);
    sink.has_folder_ = true;
    file = sink.folder_.staging() + "/model.gguf";
  } else if (std::error_code code; std::filesystem::exists(path, code)) {
    return usage("write.exists", "would be overwritten")
        .in(path)
        .expects("a free name", "a file of this name")
        .try_this("choose another name, or remove it first");
  }
  std::vector<tensor::TensorSpec> all;
  all.reserve(specs.count);
  for (std::size_t i = 0; i < specs.count; ++i) all.push_back(specs.at(i));
  Result<tensor::GgufWriter> writer = tensor::GgufWriter::create(file, fields, all);
  if (!writer) return sink.explain(writer.why());
  sink.gguf_ = *std::move(writer);
  return sink;
}

Result<Done> TensorSink::write(std::size_t index, std::uint64_t offset,
                               std::span<const std::byte> bytes) {
  const ShardIndex place = places_[index];
  Result<Done> done = is_gguf_ ? gguf_.write(place.index, offset, bytes)
                               : shards_[place.shard].write(place.index, offset, bytes);
  return done ? done : explain(done.why());
}

Result<Done> TensorSink::put_file(std::string_view name, std::string_view content) {
  if (!has_folder_) return Done{};  // a lone GGUF file has nothing beside it
  Result<Done> done =
      tensor::write_file(folder_.staging() + "/" + std::string(name), as_bytes(content));
  return done ? done : explain(done.why());
}

Result<Done> TensorSink::put_json(std::string_view name, const Json& document) {
  return put_file(name, document.dump(2) + "\n");
}

Result<Done> TensorSink::copy_file(std::string_view name, const std::string& from) {
  if (!has_folder_) return Done{};
  Result<tensor::MappedFile> source = tensor::MappedFile::open(from);
  if (!source) return source.why();
  const std::span<const std::byte> bytes = source->bytes();
  Result<tensor::AtomicFile> target =
      tensor::AtomicFile::create(folder_.staging() + "/" + std::string(name), bytes.size());
  if (!target) return explain(target.why());
  for (std::size_t at = 0; at < bytes.size(); at += kCopyBytes) {
    const std::span<const std::byte> piece =
        bytes.subspan(at, std::min(kCopyBytes, bytes.size() - at));
    if (Result<Done> written = target->write(at, piece); !written) return explain(written.why());
    source->drop(piece);
  }
  Result<Done> named = target->commit();
  return named ? named : explain(named.why());
}

// Written as text, entry by entry: a document of a hundred thousand nodes would weigh more than an
// expert.
Result<Done> TensorSink::write_index() {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", bytes_);
  const char* comma = "\n";
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    const std::string file = shard_name(shard);
    for (const tensor::TensorEntry& entry : shards_[shard].entries()) {
      text += comma;
      text += "    " + Json(entry.name).dump() + ": \"" + file + "\"";
      comma = ",\n";
    }
  }
  return put_file("model.safetensors.index.json", text + "\n  }\n}\n");
}

Result<Done> TensorSink::finish() {
  if (is_gguf_) {
    if (Result<Done> done = gguf_.finish(); !done) return explain(done.why());
  }
  for (tensor::SafetensorsWriter& shard : shards_)
    if (Result<Done> done = shard.finish(); !done) return explain(done.why());
  if (shards_.size() > 1)
    if (Result<Done> done = write_index(); !done) return done;
  return has_folder_ ? folder_.commit() : Done{};
}

}  // namespace fp4moe::checkpoint
