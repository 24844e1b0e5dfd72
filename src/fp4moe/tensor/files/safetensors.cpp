#include "fp4moe/tensor/files/safetensors.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"

namespace fp4moe::tensor {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// Walks the header once and builds only what it keeps. Where we are is a place, not a stack: the
// format has four levels and anything deeper is refused.
class HeaderWalker final : public JsonEvents {
 public:
  explicit HeaderWalker(SafetensorsHeader& header) : header_(header) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_integer(std::int64_t value) override { return bad_number(std::to_string(value)); }
  bool number_float(double, const std::string& literal) override { return bad_number(literal); }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == ParserState::shape) {
      if (entry_.shape.size() == kMaxSafetensorsDimensions)
        return fail("safetensors.dimensions", "a tensor has too many dimensions",
                    "at most " + std::to_string(kMaxSafetensorsDimensions), "more");
      entry_.shape.push_back(value);
      return true;
    }
    if (place_ != ParserState::offsets) return unexpected("a number");
    if (offsets_found_ == 2)
      return fail("safetensors.entry", "wrong \"data_offsets\"", "two numbers", "more");
    (offsets_found_ == 0 ? entry_.begin : end_) = value;
    ++offsets_found_;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == ParserState::metadata) {
      if (header_.metadata.emplace(key_, std::move(value)).second) return true;
      return fail("safetensors.duplicate_key", "a metadata key occurs twice", "each key once",
                  key_);
    }
    if (place_ != ParserState::entry || field_ != Field::dtype) return unexpected("a string");
    const std::optional<DType> dtype = dtype_from_safetensors(value);
    if (!dtype) return fail("safetensors.dtype", "unknown dtype", "a dtype of the format", value);
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object() override {
    if (place_ == ParserState::outside) {
      place_ = ParserState::top;
      return true;
    }
    if (place_ != ParserState::top) return too_deep();
    if (in_metadata_) {
      place_ = ParserState::metadata;
      return true;
    }
    place_ = ParserState::entry;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    field_ = Field::none;
    return true;
  }

  bool end_object() override {
    if (place_ == ParserState::entry && !finish_entry()) return false;
    place_ = place_ == ParserState::top ? ParserState::outside : ParserState::top;
    return true;
  }

  bool start_array() override {
    if (place_ == ParserState::entry && field_ == Field::shape) {
      place_ = ParserState::shape;
      return true;
    }
    if (place_ == ParserState::entry && field_ == Field::offsets) {
      place_ = ParserState::offsets;
      offsets_found_ = 0;
      return true;
    }
    if (place_ == ParserState::shape || place_ == ParserState::offsets) return too_deep();
    return unexpected("an array");
  }

  bool end_array() override {
    if (place_ == ParserState::offsets && offsets_found_ != 2)
      return fail("safetensors.entry", "wrong \"data_offsets\"", "two numbers",
                  std::to_string(offsets_found_));
    place_ = ParserState::entry;
    return true;
  }

  bool key(std::string& name) override {
    if (place_ == ParserState::top) return top_key(name);
    if (place_ == ParserState::metadata) {
      key_ = std::move(name);
      return true;
    }
    return entry_key(name);
  }

  bool parse_error(std::size_t position, const std::string&) override {
    return fail("safetensors.json", "the header is not valid JSON", "JSON",
                "an error at byte " + std::to_string(kLengthBytes + position));
  }

  const Error& why() const { return why_; }

 private:
  enum class ParserState : std::uint8_t { outside, top, metadata, entry, shape, offsets };
  enum class Field : std::uint8_t { none, dtype, shape, offsets };

  bool top_key(std::string& name) {
    in_metadata_ = name == kMetadataKey;
    entry_ = {};
    if (in_metadata_) {
      if (std::exchange(has_metadata_, true))
        return fail("safetensors.duplicate_key", "a key occurs twice", "each key once", name);
      return true;
    }
    if (name.empty() || name.find('\0') != std::string::npos)
      return fail("safetensors.name", "a tensor has no usable name", "a name without NUL",
                  name.empty() ? "an empty name" : name);
    entry_.name = std::move(name);
    return true;
  }

  bool entry_key(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      field_ = Field::dtype;
      seen = &has_dtype_;
    } else if (name == "shape") {
      field_ = Field::shape;
      seen = &has_shape_;
    } else if (name == "data_offsets") {
      field_ = Field::offsets;
      seen = &has_offsets_;
    } else {
      return fail("safetensors.unknown_key", "a tensor has a key the format does not know",
                  "\"dtype\", \"shape\", \"data_offsets\"", name);
    }
    if (std::exchange(*seen, true))
      return fail("safetensors.duplicate_key", "a key occurs twice", "each key once", name);
    return true;
  }

  bool finish_entry() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_)
      return fail("safetensors.missing_key", "a tensor is not fully described",
                  "\"dtype\", \"shape\", \"data_offsets\"",
                  !has_dtype_   ? "no \"dtype\""
                  : !has_shape_ ? "no \"shape\""
                                : "no \"data_offsets\"");
    if (entry_.begin > end_)
      return fail("safetensors.range", "the range ends before it begins", "begin <= end",
                  "[" + std::to_string(entry_.begin) + ", " + std::to_string(end_) + ")");
    entry_.bytes = end_ - entry_.begin;
    const std::optional<std::uint64_t> size = byte_count(entry_.dtype, entry_.shape);
    if (!size || *size != entry_.bytes)
      return fail("safetensors.shape", "the shape does not fill the range",
                  std::string(name(entry_.dtype)) + " " + text(entry_.shape) +
                      (size ? " = " + std::to_string(*size) + " bytes" : " in whole bytes"),
                  std::to_string(entry_.bytes) + " bytes");
    header_.tensors.push_back(std::move(entry_));
    return true;
  }

  bool bad_number(const std::string& literal) {
    if (place_ != ParserState::shape && place_ != ParserState::offsets)
      return unexpected("a number");
    return fail("safetensors.number", "a size is not a natural number",
                "an integer from 0 to 2^64 - 1", literal);
  }

  bool too_deep() {
    return fail("safetensors.depth", "the header is nested deeper than the format is",
                "objects of tensors with plain fields", "one more level");
  }

  bool unexpected(std::string_view found) {
    if (place_ == ParserState::metadata)
      return fail("safetensors.metadata", "wrong metadata", "a string for \"" + key_ + "\"", found);
    if (place_ == ParserState::shape || place_ == ParserState::offsets)
      return fail("safetensors.number", "a size is not a natural number", "a number", found);
    return fail("safetensors.entry", "a value of the wrong kind", expected_here(), found);
  }

  std::string_view expected_here() const {
    if (place_ == ParserState::outside || place_ == ParserState::top) return "an object";
    return field_ == Field::dtype ? "a string" : "an array";
  }

  bool fail(std::string_view id, std::string_view message, std::string_view expected,
            std::string_view found) {
    if (why_.id.empty())
      why_ = invalid(id, message).at(entry_.name).expects(expected, printable(found));
    return false;
  }

  SafetensorsHeader& header_;
  TensorEntry entry_{};
  std::uint64_t end_ = 0;
  std::string key_{};  // of the metadata
  ParserState place_ = ParserState::outside;
  Field field_ = Field::none;
  int offsets_found_ = 0;
  bool in_metadata_ = false, has_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  Error why_{};
};

Result<Done> check_names(const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto duplicate = std::adjacent_find(names.begin(), names.end());
  if (duplicate == names.end()) return Done{};
  return invalid("safetensors.duplicate", "two tensors have the same name")
      .at(*duplicate)
      .expects("each name once", "it twice");
}

// The tensors, by position, must cover the data without gap or overlap.
Result<Done> check_ranges(std::span<const TensorEntry> tensors, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::uint64_t end = tensor.begin + tensor.bytes;
    if (end > data_bytes)
      return invalid("safetensors.range", "the tensor reaches beyond the file")
          .at(tensor.name)
          .expects("an end of at most " + std::to_string(data_bytes), std::to_string(end))
          .try_this("the file may be cut off: fetch it again");
    if (tensor.begin < covered)
      return invalid("safetensors.overlap", "the tensor overlaps the one before")
          .at(tensor.name)
          .expects("a begin at " + std::to_string(covered),
                   "it at " + std::to_string(tensor.begin));
    if (tensor.begin > covered)
      return invalid("safetensors.hole", "there are unused bytes before the tensor")
          .at(tensor.name)
          .expects("a begin at " + std::to_string(covered),
                   "it at " + std::to_string(tensor.begin));
    covered = end;
  }
  if (covered != data_bytes)
    return invalid("safetensors.trailing", "there are bytes after the last tensor")
        .expects(std::to_string(covered) + " bytes of data", std::to_string(data_bytes));
  return Done{};
}

Result<std::string_view> header_text(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes)
    return invalid("safetensors.truncated", "the file is too short for a header length")
        .expects("at least 8 bytes", std::to_string(file.size()));
  const auto length = load<std::uint64_t>(file);
  if (length < 2 || length > kMaxSafetensorsHeader)
    return invalid("safetensors.header_length", "the header length is out of bounds")
        .expects("from 2 to " + std::to_string(kMaxSafetensorsHeader) + " bytes",
                 std::to_string(length))
        .try_this("check that this is a safetensors file");
  if (length > file.size() - kLengthBytes)
    return invalid("safetensors.truncated", "the file ends inside its header")
        .expects(std::to_string(kLengthBytes + length) + " bytes or more",
                 std::to_string(file.size()))
        .try_this("the file may be cut off: fetch it again");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.front() != '{')
    return invalid("safetensors.header_start", "the header is not a JSON object")
        .expects("{", printable(text.substr(0, 1)));
  return text;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  const Result<std::string_view> text = header_text(file);
  if (!text) return text.why();
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text->size();
  HeaderWalker walker(header);
  if (!walk_json(*text, walker)) {
    if (walker.why().id == "safetensors.json" && !is_utf8(*text))
      return invalid("safetensors.utf8", "the header is not valid UTF-8")
          .expects("UTF-8", walker.why().found);
    return walker.why();
  }
  if (Result<Done> names = check_names(header.tensors); !names) return names.why();
  const auto by_position = [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  };
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), by_position))
    std::stable_sort(header.tensors.begin(), header.tensors.end(), by_position);
  if (Result<Done> ranges = check_ranges(header.tensors, file.size() - header.data_begin); !ranges)
    return ranges.why();
  for (TensorEntry& tensor : header.tensors) tensor.begin += header.data_begin;
  return header;
}

}  // namespace fp4moe::tensor
