#include <algorithm>
#include <utility>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"

namespace fp4moe::tensor {
namespace {

constexpr std::uint64_t kAlignment = 8;  // of the data in the file, as the Python package keeps it

Result<Done> check_name(const std::string& name) {
  if (!name.empty() && name != "__metadata__" && name.find('\0') == std::string::npos &&
      is_utf8(name))
    return Done{};
  return usage("safetensors.name", "cannot be a tensor's name in this format")
      .at(name)
      .expects("UTF-8 without NUL, not empty, not \"__metadata__\"", "\"" + printable(name) + "\"");
}

Result<std::vector<TensorEntry>> place(std::span<const TensorSpec> specs) {
  std::vector<TensorEntry> entries;
  entries.reserve(specs.size());
  std::uint64_t end = 0;
  for (const TensorSpec& spec : specs) {
    if (Result<Done> named = check_name(spec.name); !named) return named.why();
    if (!row(spec.dtype).in_safetensors)
      return usage("safetensors.dtype", "the format has no such dtype")
          .at(spec.name)
          .expects("a dtype of safetensors", name(spec.dtype));
    if (spec.shape.size() > kMaxSafetensorsDimensions)
      return usage("safetensors.dimensions", "a tensor has too many dimensions")
          .at(spec.name)
          .expects("at most " + std::to_string(kMaxSafetensorsDimensions),
                   std::to_string(spec.shape.size()));
    const std::optional<std::uint64_t> bytes = byte_count(spec.dtype, spec.shape);
    const std::optional<std::uint64_t> next = bytes ? checked_add(end, *bytes) : std::nullopt;
    if (!next || *next > INT64_MAX / 2)
      return usage("safetensors.shape", "the tensor has no size in whole bytes, or too large a one")
          .at(spec.name)
          .expects("whole bytes", std::string(name(spec.dtype)) + " " + text(spec.shape));
    entries.push_back({spec.name, spec.dtype, spec.shape, end, *bytes});
    end = *next;
  }
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const TensorEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  if (const auto duplicate = std::adjacent_find(names.begin(), names.end());
      duplicate != names.end())
    return usage("safetensors.duplicate", "two tensors have the same name")
        .at(*duplicate)
        .expects("each name once", "it twice");
  return entries;
}

Result<std::string> header_for(std::span<const TensorEntry> entries, const Metadata& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value))
        return usage("safetensors.metadata", "metadata must be text")
            .expects("UTF-8", printable(is_utf8(key) ? value : key));
      header += quoted_json(key) + ":" + quoted_json(value) + ",";
    }
    header.back() = '}';
    header += ',';
  }
  for (const TensorEntry& entry : entries) {
    header += quoted_json(entry.name) + ":{\"dtype\":\"";
    header += name(entry.dtype);
    header += "\",\"shape\":[";
    for (const std::uint64_t extent : entry.shape) header += std::to_string(extent) + ",";
    if (!entry.shape.empty()) header.pop_back();
    header += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," +
              std::to_string(entry.begin + entry.bytes) + "]},";
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize(round_up(header.size(), kAlignment), ' ');
  if (header.size() > kMaxSafetensorsHeader)
    return usage("safetensors.header_length", "too many tensors for one file")
        .expects("a header of at most " + std::to_string(kMaxSafetensorsHeader) + " bytes",
                 std::to_string(header.size()))
        .try_this("write several files");
  return header;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::span<const TensorSpec> specs,
                                                    const Metadata& metadata) {
  Result<std::vector<TensorEntry>> entries = place(specs);
  if (!entries) return Error(entries.why()).in(path);
  Result<std::string> header = header_for(*entries, metadata);
  if (!header) return Error(header.why()).in(path);
  std::string front;
  append<std::uint64_t>(front, header->size());
  front += *header;
  SafetensorsWriter writer;
  writer.entries_ = *std::move(entries);
  writer.ledger_ = WriteLedger(writer.entries_.size());
  for (TensorEntry& entry : writer.entries_) entry.begin += front.size();
  const std::uint64_t size = writer.entries_.empty()
                                 ? front.size()
                                 : writer.entries_.back().begin + writer.entries_.back().bytes;
  Result<AtomicFile> file = AtomicFile::create(path, size);
  if (!file) return file.why();
  writer.file_ = *std::move(file);
  if (Result<Done> written = writer.file_.write(0, std::as_bytes(std::span(front))); !written)
    return written.why();
  return writer;
}

Result<Done> SafetensorsWriter::write(std::size_t index, std::uint64_t offset,
                                      std::span<const std::byte> bytes) {
  return write_piece({file_, entries_, ledger_}, {index, offset}, bytes);
}

Result<Done> SafetensorsWriter::finish() {
  if (Result<Done> whole = check_whole({file_, entries_, ledger_}); !whole) return whole;
  return file_.commit();
}

}  // namespace fp4moe::tensor
