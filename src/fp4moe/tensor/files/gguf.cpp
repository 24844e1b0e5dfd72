#include "fp4moe/tensor/files/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <optional>
#include <type_traits>
#include <utility>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"

namespace fp4moe::tensor {
namespace {

constexpr std::uint64_t kMaxKey = 65535;
constexpr std::uint64_t kMaxDimensions = 4;
constexpr std::uint64_t kSmallestField = 8 + 1 + 4 + 1;       // key, type, value
constexpr std::uint64_t kSmallestTensor = 8 + 1 + 4 + 4 + 8;  // name, dimensions, type, offset

struct GgmlName {
  std::uint32_t type;
  std::string_view name;
};
// clang-format off
constexpr std::array<GgmlName, 18> kUnsupportedTypes{{  // ggml.h, enum ggml_type
    {9, "Q8_1"}, {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"}, {41, "Q1_0"},
}};
// clang-format on

std::string type_text(std::uint32_t type) {
  for (const GgmlName& row : kUnsupportedTypes)
    if (row.type == type) return std::to_string(type) + " (" + std::string(row.name) + ")";
  return std::to_string(type);
}

// Reads forward; the first failure stays and everything after it gives nothing.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> file)
      : file_(file), left_(std::min<std::uint64_t>(file.size(), kMaxGgufHeader)) {}

  template <class T>
  T number() {
    if (!has(sizeof(T))) return T{};
    const T value = load<T>(file_.subspan(position_));
    skip(sizeof(T));
    return value;
  }

  std::string string(std::uint64_t longest) {
    const auto length = number<std::uint64_t>();
    if (failed()) return {};
    if (length > longest) {
      fail(invalid("gguf.string", "a string is too long")
               .expects("at most " + std::to_string(longest) + " bytes", std::to_string(length)));
      return {};
    }
    if (!has(length)) return {};
    std::string text(reinterpret_cast<const char*>(file_.data()) + position_, length);
    skip(length);
    return text;
  }

  // `count` things of at least `each` bytes fit into what is left: only then is memory taken.
  bool has(std::uint64_t count, std::uint64_t each = 1) {
    if (failed()) return false;
    if (count <= left_ / each) return true;
    const bool cut = position_ + left_ == file_.size();
    fail(cut ? invalid("gguf.truncated", "the file ends inside its header")
                   .expects(
                       std::to_string(count) + " more items of " + std::to_string(each) + " bytes",
                       std::to_string(left_) + " bytes")
                   .try_this("the file may be cut off: fetch it again")
             : invalid("gguf.header_length", "the header is too long")
                   .expects("at most " + std::to_string(kMaxGgufHeader) + " bytes", "more"));
    return false;
  }

  // An array of so many elements, and all before it, are within the limit.
  bool has_elements(std::uint64_t count) {
    if (failed()) return false;
    if (count > kMaxGgufElements - elements_)
      return fail(invalid("gguf.array", "the metadata's arrays are too long")
                      .expects("at most " + std::to_string(kMaxGgufElements) +
                                   " elements in all arrays of the file",
                               std::to_string(count) + " elements after " +
                                   std::to_string(elements_) + " in earlier arrays"));
    elements_ += count;
    return true;
  }

  bool fail(Error why) {
    if (!failed()) why_ = std::move(why);
    return false;
  }
  bool failed() const { return !why_.id.empty(); }
  const Error& why() const { return why_; }
  std::uint64_t position() const { return position_; }

 private:
  void skip(std::uint64_t bytes) {
    position_ += bytes;
    left_ -= bytes;
  }

  std::span<const std::byte> file_;
  std::uint64_t position_ = 0;
  std::uint64_t left_;
  std::uint64_t elements_ = 0;
  Error why_{};
};

bool read_boolean(Cursor& in) {
  const auto value = in.number<std::uint8_t>();
  if (value > 1)
    in.fail(invalid("gguf.boolean", "invalid boolean").expects("0 or 1", std::to_string(value)));
  return value == 1;
}

// One value or `count` of them, widened to Wide.
template <class Wide, class Read>
GgufValue read_values(Cursor& in, std::optional<std::uint64_t> count, std::uint64_t each,
                      const Read& read) {
  if (!count) return Wide(read());
  if (!in.has(*count, each) || !in.has_elements(*count)) return {};
  std::conditional_t<std::is_same_v<Wide, bool>, std::deque<bool>, std::vector<Wide>> values;
  if constexpr (!std::is_same_v<Wide, bool>) values.reserve(*count);
  for (std::uint64_t i = 0; i < *count && !in.failed(); ++i) values.push_back(read());
  return values;
}

template <class Stored, class Wide>
GgufValue read_numbers(Cursor& in, std::optional<std::uint64_t> count) {
  return read_values<Wide>(in, count, sizeof(Stored),
                           [&in] { return static_cast<Wide>(in.number<Stored>()); });
}

GgufValue read_value(Cursor& in, GgufType type, std::optional<std::uint64_t> count) {
  switch (type) {
    case GgufType::u8:
      return read_numbers<std::uint8_t, std::uint64_t>(in, count);
    case GgufType::i8:
      return read_numbers<std::int8_t, std::int64_t>(in, count);
    case GgufType::u16:
      return read_numbers<std::uint16_t, std::uint64_t>(in, count);
    case GgufType::i16:
      return read_numbers<std::int16_t, std::int64_t>(in, count);
    case GgufType::u32:
      return read_numbers<std::uint32_t, std::uint64_t>(in, count);
    case GgufType::i32:
      return read_numbers<std::int32_t, std::int64_t>(in, count);
    case GgufType::u64:
      return read_numbers<std::uint64_t, std::uint64_t>(in, count);
    case GgufType::i64:
      return read_numbers<std::int64_t, std::int64_t>(in, count);
    case GgufType::f32:
      return read_numbers<float, double>(in, count);
    case GgufType::f64:
      return read_numbers<double, double>(in, count);
    case GgufType::boolean:
      return read_values<bool>(in, count, 1, [&in] { return read_boolean(in); });
    case GgufType::string:
      return read_values<std::string>(in, count, sizeof(std::uint64_t),
                                      [&in] { return in.string(kMaxGgufHeader); });
    case GgufType::array:
      in.fail(invalid("gguf.nested_array", "an array of arrays is not supported")
                  .expects("an array of numbers, truth values or strings", "one of arrays"));
      return {};
  }
  in.fail(invalid("gguf.value_type", "unknown type of a metadata value")
              .expects("0 to 12", std::to_string(static_cast<std::uint32_t>(type))));
  return {};
}

GgufField read_field(Cursor& in) {
  GgufField field;
  field.key = in.string(kMaxKey);
  if (!in.failed() && (field.key.empty() || !is_utf8(field.key)))
    in.fail(invalid("gguf.key", "a metadata key is not a name")
                .expects("UTF-8, not empty", printable(field.key)));
  field.type = static_cast<GgufType>(in.number<std::uint32_t>());
  std::optional<std::uint64_t> count;
  if (field.type == GgufType::array) {
    field.type = static_cast<GgufType>(in.number<std::uint32_t>());
    count = in.number<std::uint64_t>();
  }
  if (!in.failed()) field.value = read_value(in, field.type, count);
  return field;
}

// `entry.begin` is still relative to the data.
TensorEntry read_tensor(Cursor& in) {
  TensorEntry entry;
  entry.name = in.string(kMaxKey);
  if (in.failed()) return entry;
  if (entry.name.empty() || entry.name.find('\0') != std::string::npos || !is_utf8(entry.name)) {
    in.fail(invalid("gguf.name", "a tensor has no usable name")
                .expects("UTF-8 without NUL, not empty", "\"" + printable(entry.name) + "\""));
    return entry;
  }
  const auto dimensions = in.number<std::uint32_t>();
  if (dimensions > kMaxDimensions) {
    in.fail(invalid("gguf.dimensions", "a tensor has too many dimensions")
                .at(entry.name)
                .expects("at most 4", std::to_string(dimensions)));
    return entry;
  }
  for (std::uint32_t i = 0; i < dimensions; ++i) entry.shape.push_back(in.number<std::uint64_t>());
  std::reverse(entry.shape.begin(), entry.shape.end());
  const auto type = in.number<std::uint32_t>();
  entry.begin = in.number<std::uint64_t>();
  if (in.failed()) return entry;
  const std::optional<DType> dtype = dtype_from_ggml(type);
  if (!dtype) {
    in.fail(invalid("gguf.tensor_type", "this type of tensor is not supported")
                .at(entry.name)
                .expects("a plain type, MXFP4, NVFP4, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS",
                         type_text(type)));
    return entry;
  }
  entry.dtype = *dtype;
  const std::optional<std::uint64_t> bytes = byte_count(entry.dtype, entry.shape);
  if (!bytes)
    in.fail(invalid("gguf.shape", "the size overflows or rows do not fill whole blocks")
                .at(entry.name)
                .expects("rows in multiples of " + std::to_string(row(*dtype).block_elements),
                         std::string(name(*dtype)) + " " + text(entry.shape)));
  entry.bytes = bytes.value_or(0);
  return entry;
}

Result<Done> check_unique(std::vector<std::string_view> names, std::string_view id) {
  std::sort(names.begin(), names.end());
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  if (duplicate == names.end()) return Done{};
  return invalid(id, "a name occurs twice").at(*duplicate).expects("each name once", "it twice");
}

Result<std::uint64_t> alignment_of(const GgufHeader& header) {
  const GgufField* field = header.find("general.alignment");
  if (field == nullptr) return kGgufAlignment;
  const auto* value = std::get_if<std::uint64_t>(&field->value);
  if (field->type == GgufType::u32 && value != nullptr && *value >= 8 &&
      std::has_single_bit(*value))
    return *value;
  return invalid("gguf.alignment", "wrong alignment")
      .at("general.alignment")
      .expects("a 32-bit power of two, at least 8",
               value != nullptr ? std::to_string(*value) : "a value of another type");
}

Result<Done> check_ranges(const GgufHeader& header, std::uint64_t file_size) {
  const std::uint64_t data_bytes =
      file_size < header.data_begin ? 0 : file_size - header.data_begin;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin % header.alignment != 0)
      return invalid("gguf.offset", "the tensor does not begin at the alignment")
          .at(tensor.name)
          .expects("a multiple of " + std::to_string(header.alignment),
                   std::to_string(tensor.begin));
    if (tensor.begin > data_bytes || tensor.bytes > data_bytes - tensor.begin)
      return invalid("gguf.range", "the tensor reaches beyond the file")
          .at(tensor.name)
          .expects("at most " + std::to_string(data_bytes) + " bytes of data",
                   std::to_string(tensor.bytes) + " bytes at " + std::to_string(tensor.begin))
          .try_this("the file may be cut off: fetch it again");
  }
  std::vector<const TensorEntry*> order;
  order.reserve(header.tensors.size());
  for (const TensorEntry& tensor : header.tensors)
    if (tensor.bytes != 0) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->begin < b->begin; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i]->begin < order[i - 1]->begin + order[i - 1]->bytes)
      return invalid("gguf.overlap",
                     "the tensor overlaps \"" + printable(order[i - 1]->name) + "\"")
          .at(order[i]->name)
          .expects("a begin at " + std::to_string(order[i - 1]->begin + order[i - 1]->bytes) +
                       " or later",
                   std::to_string(order[i]->begin));
  return Done{};
}

// Magic and version; the number of tensors and of fields follow.
Result<Done> check_front(Cursor& in) {
  if (const auto magic = in.number<std::uint32_t>(); !in.failed() && magic != kGgufMagic)
    return invalid("gguf.magic", "this is not a GGUF file")
        .expects("\"GGUF\" at its front", "other bytes");
  const auto version = in.number<std::uint32_t>();
  if (in.failed()) return in.why();
  if ((version & 0xFFFF) == 0 && version != 0)
    return invalid("gguf.big_endian", "big-endian files are not supported")
        .expects("a little-endian file", "version " + std::to_string(version))
        .try_this("convert the file with gguf_convert_endian of the gguf package");
  if (version != 2 && version != 3)
    return invalid("gguf.version", "this version of the format is not supported")
        .expects("2 or 3", std::to_string(version));
  return Done{};
}

}  // namespace

const GgufField* GgufHeader::find(std::string_view key) const {
  for (const GgufField& field : fields)
    if (field.key == key) return &field;
  return nullptr;
}

namespace {

// The count of tensors goes to `tensors`.
Result<std::vector<GgufField>> read_fields(Cursor& in, std::uint64_t& tensors) {
  if (Result<Done> front = check_front(in); !front) return front.why();
  tensors = in.number<std::uint64_t>();
  const auto count = in.number<std::uint64_t>();
  std::vector<GgufField> fields;
  if (in.has(count, kSmallestField) && count > kMaxGgufFields)
    in.fail(
        invalid("gguf.fields", "too much metadata")
            .expects("at most " + std::to_string(kMaxGgufFields) + " keys", std::to_string(count)));
  // A field is not moved without an exception: a vector that grows would copy all of them.
  if (!in.failed()) fields.reserve(count);
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) fields.push_back(read_field(in));
  if (in.failed()) return Error(in.why()).at(fields.empty() ? "" : fields.back().key);
  return fields;
}

}  // namespace

Result<std::vector<GgufField>> parse_gguf_fields(std::span<const std::byte> file) {
  Cursor in(file);
  std::uint64_t tensors = 0;
  return read_fields(in, tensors);
}

Result<GgufHeader> parse_gguf(std::span<const std::byte> file) {
  Cursor in(file);
  std::uint64_t tensors = 0;
  Result<std::vector<GgufField>> fields = read_fields(in, tensors);
  if (!fields) return fields.why();
  GgufHeader header{.fields = *std::move(fields)};
  std::vector<std::string_view> names;
  if (in.has(tensors, kSmallestTensor)) header.tensors.reserve(tensors);
  for (std::uint64_t i = 0; i < tensors && !in.failed(); ++i)
    header.tensors.push_back(read_tensor(in));
  if (in.failed()) return in.why();

  for (const GgufField& field : header.fields) names.emplace_back(field.key);
  if (Result<Done> unique = check_unique(names, "gguf.duplicate_key"); !unique) return unique.why();
  names.clear();
  for (const TensorEntry& tensor : header.tensors) names.emplace_back(tensor.name);
  if (Result<Done> unique = check_unique(names, "gguf.duplicate"); !unique) return unique.why();
  const Result<std::uint64_t> alignment = alignment_of(header);
  if (!alignment) return alignment.why();
  header.alignment = *alignment;
  header.data_begin = round_up(in.position(), header.alignment);
  if (Result<Done> ranges = check_ranges(header, file.size()); !ranges) return ranges.why();
  for (TensorEntry& tensor : header.tensors) tensor.begin += header.data_begin;
  return header;
}

}  // namespace fp4moe::tensor
