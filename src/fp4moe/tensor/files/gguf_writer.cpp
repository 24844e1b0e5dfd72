#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"
#include "fp4moe/tensor/files/gguf.hpp"

namespace fp4moe::tensor {
namespace {

constexpr std::uint32_t kVersion = 3;

void append_string(std::string& out, const std::string& text) {
  append<std::uint64_t>(out, text.size());
  out += text;
}

// False when the value does not fit the type.
template <class Stored, class Wide>
bool append_number(std::string& out, Wide value) {
  if constexpr (std::is_integral_v<Stored>) {
    if (value < static_cast<Wide>(std::numeric_limits<Stored>::min()) ||
        value > static_cast<Wide>(std::numeric_limits<Stored>::max()))
      return false;
  } else if (sizeof(Stored) < sizeof(Wide)) {
    const auto stored = static_cast<Stored>(value);
    if (std::isfinite(value) && !std::isfinite(stored)) return false;
  }
  append(out, static_cast<Stored>(value));
  return true;
}

bool append_one(std::string& out, GgufType type, std::uint64_t value) {
  switch (type) {
    case GgufType::u8:
      return append_number<std::uint8_t>(out, value);
    case GgufType::u16:
      return append_number<std::uint16_t>(out, value);
    case GgufType::u32:
      return append_number<std::uint32_t>(out, value);
    case GgufType::u64:
      return append_number<std::uint64_t>(out, value);
    default:
      return false;
  }
}
bool append_one(std::string& out, GgufType type, std::int64_t value) {
  switch (type) {
    case GgufType::i8:
      return append_number<std::int8_t>(out, value);
    case GgufType::i16:
      return append_number<std::int16_t>(out, value);
    case GgufType::i32:
      return append_number<std::int32_t>(out, value);
    case GgufType::i64:
      return append_number<std::int64_t>(out, value);
    default:
      return false;
  }
}
bool append_one(std::string& out, GgufType type, double value) {
  switch (type) {
    case GgufType::f32:
      return append_number<float>(out, value);
    case GgufType::f64:
      return append_number<double>(out, value);
    default:
      return false;
  }
}
bool append_one(std::string& out, GgufType type, bool value) {
  append<std::uint8_t>(out, value ? 1 : 0);
  return type == GgufType::boolean;
}
bool append_one(std::string& out, GgufType type, const std::string& value) {
  append_string(out, value);
  return type == GgufType::string;
}

template <class Value>
constexpr bool kIsArray = false;
template <class Element>
constexpr bool kIsArray<std::vector<Element>> = true;
template <>
constexpr bool kIsArray<std::deque<bool>> = true;

bool append_field(std::string& out, const GgufField& field) {
  append_string(out, field.key);
  return std::visit(
      [&](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        const auto type = static_cast<std::uint32_t>(field.type);
        if constexpr (kIsArray<Value>) {
          append(out, static_cast<std::uint32_t>(GgufType::array));
          append(out, type);
          append<std::uint64_t>(out, value.size());
          for (const typename Value::value_type& element : value)
            if (!append_one(out, field.type, element)) return false;
          return true;
        } else {
          append(out, type);
          return append_one(out, field.type, value);
        }
      },
      field.value);
}

Result<Done> check_unique_names(std::vector<std::string_view> names, std::string_view id) {
  std::sort(names.begin(), names.end());
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  if (duplicate == names.end()) return Done{};
  return usage(id, "a name occurs twice").at(*duplicate).expects("each name once", "it twice");
}

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 65535 && name.find('\0') == std::string::npos &&
         is_utf8(name);
}

// Nothing is written that the reader would refuse.
Result<Done> check_counts(std::span<const GgufField> fields) {
  if (fields.size() > kMaxGgufFields)
    return usage("gguf.fields", "too much metadata")
        .expects("at most " + std::to_string(kMaxGgufFields) + " keys",
                 std::to_string(fields.size()));
  std::uint64_t elements = 0;
  for (const GgufField& field : fields)
    elements += std::visit(
        [](const auto& value) -> std::uint64_t {
          if constexpr (kIsArray<std::decay_t<decltype(value)>>) return value.size();
          return 0;
        },
        field.value);
  if (elements <= kMaxGgufElements) return Done{};
  return usage("gguf.array", "the metadata's arrays are too long")
      .expects(
          "at most " + std::to_string(kMaxGgufElements) + " elements in all arrays of the file",
          std::to_string(elements));
}

Result<std::string> write_fields(std::span<const GgufField> fields) {
  if (Result<Done> counts = check_counts(fields); !counts) return counts.why();
  std::string out;
  std::vector<std::string_view> keys;
  for (const GgufField& field : fields) {
    if (!is_name(field.key))
      return usage("gguf.key", "cannot be a metadata key")
          .at(field.key)
          .expects("UTF-8 without NUL, not empty", "\"" + printable(field.key) + "\"");
    if (!append_field(out, field))
      return usage("gguf.value_type", "the value does not fit its type")
          .at(field.key)
          .expects("a value of type " + std::to_string(static_cast<std::uint32_t>(field.type)),
                   "another");
    keys.emplace_back(field.key);
  }
  if (Result<Done> unique = check_unique_names(keys, "gguf.duplicate_key"); !unique)
    return unique.why();
  return out;
}

Result<std::uint64_t> alignment_of(std::span<const GgufField> fields) {
  for (const GgufField& field : fields) {
    if (field.key != "general.alignment") continue;
    const auto* value = std::get_if<std::uint64_t>(&field.value);
    if (field.type != GgufType::u32 || value == nullptr || *value < 8 ||
        !std::has_single_bit(*value))
      return usage("gguf.alignment", "wrong alignment")
          .at(field.key)
          .expects("a 32-bit power of two, at least 8", "another value");
    return *value;
  }
  return kGgufAlignment;
}

// Entries with `begin` relative to the data.
Result<std::vector<TensorEntry>> place(std::span<const TensorSpec> specs, std::uint64_t alignment) {
  std::vector<TensorEntry> entries;
  std::vector<std::string_view> names;
  std::uint64_t end = 0;
  for (const TensorSpec& spec : specs) {
    if (!is_name(spec.name))
      return usage("gguf.name", "cannot be a tensor's name")
          .at(spec.name)
          .expects("UTF-8 without NUL, not empty", "\"" + printable(spec.name) + "\"");
    if (row(spec.dtype).ggml_type < 0)
      return usage("gguf.tensor_type", "the format has no such type of tensor")
          .at(spec.name)
          .expects("F32, F16, BF16, F64, I8 to I64, Q8_0, MXFP4 or NVFP4", name(spec.dtype));
    if (spec.shape.size() > 4)
      return usage("gguf.dimensions", "a tensor has too many dimensions")
          .at(spec.name)
          .expects("at most 4", std::to_string(spec.shape.size()));
    const std::optional<std::uint64_t> bytes = byte_count(spec.dtype, spec.shape);
    const std::uint64_t begin = round_up(end, alignment);
    if (!bytes || *bytes > INT64_MAX / 2 - begin)
      return usage("gguf.shape", "the size overflows or rows do not fill whole blocks")
          .at(spec.name)
          .expects("rows in multiples of " + std::to_string(row(spec.dtype).block_elements),
                   std::string(name(spec.dtype)) + " " + text(spec.shape));
    entries.push_back({spec.name, spec.dtype, spec.shape, begin, *bytes});
    names.emplace_back(spec.name);
    end = begin + *bytes;
  }
  if (Result<Done> unique = check_unique_names(names, "gguf.duplicate"); !unique)
    return unique.why();
  return entries;
}

void append_tensor(std::string& out, const TensorEntry& entry) {
  append_string(out, entry.name);
  append(out, static_cast<std::uint32_t>(entry.shape.size()));
  for (std::size_t i = entry.shape.size(); i > 0; --i) append(out, entry.shape[i - 1]);
  append(out, static_cast<std::uint32_t>(row(entry.dtype).ggml_type));
  append(out, entry.begin);
}

}  // namespace

Result<GgufWriter> GgufWriter::create(const std::string& path, std::span<const GgufField> fields,
                                      std::span<const TensorSpec> specs) {
  const Result<std::uint64_t> alignment = alignment_of(fields);
  if (!alignment) return Error(alignment.why()).in(path);
  const Result<std::string> metadata = write_fields(fields);
  if (!metadata) return Error(metadata.why()).in(path);
  Result<std::vector<TensorEntry>> entries = place(specs, *alignment);
  if (!entries) return Error(entries.why()).in(path);

  std::string front;
  append(front, kGgufMagic);
  append(front, kVersion);
  append<std::uint64_t>(front, specs.size());
  append<std::uint64_t>(front, fields.size());
  front += *metadata;
  for (const TensorEntry& entry : *entries) append_tensor(front, entry);
  if (front.size() > kMaxGgufHeader)
    return usage("gguf.header_length", "too much metadata or too many tensors for one file")
        .in(path)
        .expects("at most " + std::to_string(kMaxGgufHeader) + " bytes",
                 std::to_string(front.size()));
  front.resize(round_up(front.size(), *alignment));

  GgufWriter writer;
  writer.entries_ = *std::move(entries);
  writer.ledger_ = WriteLedger(writer.entries_.size());
  std::uint64_t end = front.size();
  for (TensorEntry& entry : writer.entries_) {
    entry.begin += front.size();
    end = round_up(entry.begin + entry.bytes, *alignment);
  }
  Result<AtomicFile> file = AtomicFile::create(path, end);
  if (!file) return file.why();
  writer.file_ = *std::move(file);
  if (Result<Done> written = writer.file_.write(0, std::as_bytes(std::span(front))); !written)
    return written.why();
  return writer;
}

Result<Done> GgufWriter::write(std::size_t index, std::uint64_t offset,
                               std::span<const std::byte> bytes) {
  return write_piece({file_, entries_, ledger_}, {index, offset}, bytes);
}

Result<Done> GgufWriter::finish() {
  if (Result<Done> whole = check_whole({file_, entries_, ledger_}); !whole) return whole;
  return file_.commit();
}

}  // namespace fp4moe::tensor
