#include "fp4moe/tensor/files/gguf.hpp"

#include <new>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "support/files.hpp"
#include "support/limits.hpp"

namespace fp4moe::tensor {
namespace gguf_test {

using testing::bytes_of;

std::string gguf_string(std::string_view text) {
  std::string out;
  append<std::uint64_t>(out, text.size());
  return out + std::string(text);
}

template <class T>
std::string number(T value) {
  std::string out;
  append(out, value);
  return out;
}

std::string field(std::string_view key, std::uint32_t type, const std::string& value) {
  return gguf_string(key) + number(type) + value;
}

std::string tensor(std::string_view name, const std::vector<std::uint64_t>& innermost_first,
                   std::uint32_t type, std::uint64_t offset) {
  std::string out = gguf_string(name) + number(static_cast<std::uint32_t>(innermost_first.size()));
  for (const std::uint64_t extent : innermost_first) out += number(extent);
  return out + number(type) + number(offset);
}

// A file by hand: fields, tensors, padding to 32 bytes, data.
struct Parts {
  std::uint32_t version = 3;
  std::vector<std::string> fields{};
  std::vector<std::string> tensors{};
  std::string data{};

  std::string file() const {
    std::string out = "GGUF" + number(version) + number<std::uint64_t>(tensors.size()) +
                      number<std::uint64_t>(fields.size());
    for (const std::string& part : fields) out += part;
    for (const std::string& part : tensors) out += part;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }
};

std::string id_of(const std::string& file) {
  const auto header = parse_gguf(bytes_of(file));
  return header ? "ok" : header.why().id;
}
std::string id_of_field(const std::string& part) { return id_of(Parts{.fields = {part}}.file()); }
std::string id_of_tensor(const std::string& part, std::size_t data = 64) {
  return id_of(Parts{.tensors = {part}, .data = std::string(data, 'x')}.file());
}

Parts small_file() {
  return {.fields = {field("general.architecture", 8, gguf_string("gpt-oss")),
                     field("n", 4, number<std::uint32_t>(7)),
                     field("list", 9,
                           number<std::uint32_t>(5) + number<std::uint64_t>(2) +
                               number<std::int32_t>(-1) + number<std::int32_t>(2)),
                     field("words", 9,
                           number<std::uint32_t>(8) + number<std::uint64_t>(2) + gguf_string("a") +
                               gguf_string(""))},
          .tensors = {tensor("w", {32, 2}, 39, 0), tensor("b", {2}, 0, 64), tensor("s", {}, 0, 96)},
          .data = std::string(100, 'x')};
}

TEST(Gguf, ReadsAFile) {
  for (const std::uint32_t version : {2u, 3u}) {
    Parts parts = small_file();
    parts.version = version;
    const std::string file = parts.file();
    const auto header = parse_gguf(bytes_of(file));
    ASSERT_TRUE(header) << text(header.why());
    EXPECT_EQ(header->alignment, 32u);
    EXPECT_EQ(header->data_begin, file.size() - 100);
    ASSERT_EQ(header->fields.size(), 4u);
    EXPECT_EQ(std::get<std::string>(header->find("general.architecture")->value), "gpt-oss");
    EXPECT_EQ(std::get<std::uint64_t>(header->find("n")->value), 7u);
    EXPECT_EQ(header->find("n")->type, GgufType::u32);
    EXPECT_EQ(std::get<std::vector<std::int64_t>>(header->find("list")->value),
              (std::vector<std::int64_t>{-1, 2}));
    EXPECT_EQ(header->find("list")->type, GgufType::i32);
    EXPECT_EQ(std::get<std::vector<std::string>>(header->find("words")->value),
              (std::vector<std::string>{"a", ""}));
    EXPECT_EQ(header->find("absent"), nullptr);
    ASSERT_EQ(header->tensors.size(), 3u);
    EXPECT_EQ(header->tensors[0].dtype, DType::gguf_mxfp4);
    EXPECT_EQ(header->tensors[0].shape, (Shape{2, 32})) << "outermost first";
    EXPECT_EQ(header->tensors[0].bytes, 34u);
    EXPECT_EQ(header->tensors[1].begin, header->data_begin + 64);
    EXPECT_EQ(header->tensors[2].bytes, 4u);
  }
}

TEST(Gguf, WidensEveryNumber) {
  const std::string file = Parts{
      .fields = {
          field("u8", 0, number<std::uint8_t>(255)), field("i8", 1, number<std::int8_t>(-128)),
          field("u16", 2, number<std::uint16_t>(65535)), field("i16", 3, number<std::int16_t>(-2)),
          field("i32", 5, number<std::int32_t>(-3)), field("f32", 6, number(1.5f)),
          field("bool", 7, number<std::uint8_t>(1)), field("u64", 10, number(UINT64_MAX)),
          field("i64", 11, number(INT64_MIN)),
          field("f64", 12,
                number(-0.1))}}.file();
  const auto header = parse_gguf(bytes_of(file));
  ASSERT_TRUE(header) << text(header.why());
  const auto value = [&](std::string_view key) { return header->find(key)->value; };
  EXPECT_EQ(value("u8"), GgufValue(std::uint64_t{255}));
  EXPECT_EQ(value("i8"), GgufValue(std::int64_t{-128}));
  EXPECT_EQ(value("u16"), GgufValue(std::uint64_t{65535}));
  EXPECT_EQ(value("i16"), GgufValue(std::int64_t{-2}));
  EXPECT_EQ(value("i32"), GgufValue(std::int64_t{-3}));
  EXPECT_EQ(value("f32"), GgufValue(1.5));
  EXPECT_EQ(value("bool"), GgufValue(true));
  EXPECT_EQ(value("u64"), GgufValue(UINT64_MAX));
  EXPECT_EQ(value("i64"), GgufValue(INT64_MIN));
  EXPECT_EQ(value("f64"), GgufValue(-0.1));
}

TEST(Gguf, RefusesOtherFiles) {
  EXPECT_EQ(id_of("GGML" + std::string(100, '\0')), "gguf.magic");
  EXPECT_EQ(id_of("FUGG" + std::string(100, '\0')), "gguf.magic");
  EXPECT_EQ(id_of("GGUF" + number<std::uint32_t>(1) + std::string(100, '\0')), "gguf.version");
  EXPECT_EQ(id_of("GGUF" + number<std::uint32_t>(4) + std::string(100, '\0')), "gguf.version");
  EXPECT_EQ(id_of("GGUF" + number<std::uint32_t>(0) + std::string(100, '\0')), "gguf.version");
  EXPECT_EQ(id_of("GGUF" + number<std::uint32_t>(0x03000000) + std::string(100, '\0')),
            "gguf.big_endian");
}

TEST(Gguf, DoesNotBelieveCounts) {
  const std::string front = "GGUF" + number<std::uint32_t>(3);
  for (const std::uint64_t count : {std::uint64_t{10}, std::uint64_t{1} << 40, UINT64_MAX}) {
    EXPECT_EQ(id_of(front + number(count) + number<std::uint64_t>(0)), "gguf.truncated");
    EXPECT_EQ(id_of(front + number<std::uint64_t>(0) + number(count)), "gguf.truncated");
    for (const std::uint32_t type : {0u, 4u, 7u, 8u, 12u})
      EXPECT_EQ(id_of_field(field("k", 9, number(type) + number(count | 1024))), "gguf.truncated");
  }
  EXPECT_EQ(id_of_field(number<std::uint64_t>(1000)), "gguf.truncated");
  EXPECT_EQ(id_of_field(field("k", 8, number<std::uint64_t>(1000))), "gguf.truncated");
  EXPECT_EQ(id_of_field(field("k", 8, number(UINT64_MAX))), "gguf.string");
  EXPECT_EQ(id_of_field(number(UINT64_MAX) + std::string(100, 'k')), "gguf.string");
}

TEST(Gguf, RefusesHeadersBeyondTheLimit) {
  const std::string long_array = field("k", 9, number<std::uint32_t>(0) + number(kMaxGgufHeader)) +
                                 std::string(kMaxGgufHeader, '\0');
  EXPECT_EQ(id_of_field(long_array), "gguf.header_length");
}

std::string array_of(std::string_view key, std::uint32_t type, std::uint64_t count,
                     std::size_t each) {
  return field(key, 9, number(type) + number(count)) + std::string(count * each, '\0');
}

// A value of one byte takes up to 32 in memory.
TEST(Gguf, RefusesArraysBeyondTheLimit) {
  constexpr std::uint64_t kHalf = kMaxGgufElements / 2;
  EXPECT_EQ(id_of_field(array_of("k", 0, kMaxGgufElements, 1)), "ok");
  EXPECT_EQ(id_of_field(array_of("k", 0, kMaxGgufElements + 1, 1)), "gguf.array");
  EXPECT_EQ(id_of_field(array_of("k", 7, kMaxGgufElements + 1, 1)), "gguf.array");
  EXPECT_EQ(id_of_field(array_of("k", 8, kMaxGgufElements + 1, 8)), "gguf.array");
  const auto two = [](std::uint64_t second) {
    return Parts{.fields = {array_of("k", 0, kHalf, 1), array_of("l", 1, second, 1)}}.file();
  };
  EXPECT_EQ(id_of(two(kHalf)), "ok");
  const std::string file = two(kHalf + 1);
  const auto refused = parse_gguf(bytes_of(file));
  EXPECT_EQ(refused.why().id, "gguf.array") << "all arrays of the file count";
  EXPECT_EQ(refused.why().tensor, "l");
}

TEST(Gguf, RefusesMoreFieldsThanTheLimit) {
  Parts parts;
  for (std::uint64_t i = 0; i < kMaxGgufFields; ++i)
    parts.fields.push_back(field("k" + std::to_string(i), 0, "x"));
  EXPECT_EQ(id_of(parts.file()), "ok");
  parts.fields.push_back(field("one more", 0, "x"));
  EXPECT_EQ(id_of(parts.file()), "gguf.fields");
}

TEST(Gguf, FieldsAreReadOnceAndNotCopied) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer takes memory as it likes";
  constexpr std::size_t kFields = 17, kLength = std::size_t{2} << 20;
  Parts parts;
  for (std::size_t i = 0; i < kFields; ++i)
    parts.fields.push_back(
        field("k" + std::to_string(i), 8, gguf_string(std::string(kLength, 'x'))));
  const std::vector<std::byte> file = bytes_of(parts.file());
  const int status = fp4moe::testing::status_in_child([&] {
    fp4moe::testing::limit_memory(kFields * kLength + kFields * kLength / 2);
    try {
      return parse_gguf(file) ? 0 : 1;
    } catch (const std::bad_alloc&) {
      return 2;
    }
  });
  EXPECT_EQ(status, 0);
}

TEST(Gguf, RefusesBadMetadata) {
  EXPECT_EQ(id_of_field(field("k", 13, std::string(8, '\0'))), "gguf.value_type");
  EXPECT_EQ(id_of_field(field("k", UINT32_MAX, std::string(8, '\0'))), "gguf.value_type");
  EXPECT_EQ(id_of_field(field("k", 9, number<std::uint32_t>(13) + number<std::uint64_t>(0))),
            "gguf.value_type");
  EXPECT_EQ(id_of_field(field("k", 9, number<std::uint32_t>(9) + number<std::uint64_t>(0))),
            "gguf.nested_array");
  EXPECT_EQ(id_of_field(field("k", 7, number<std::uint8_t>(2))), "gguf.boolean");
  EXPECT_EQ(id_of_field(field("", 0, number<std::uint8_t>(2))), "gguf.key");
  EXPECT_EQ(id_of_field(field("\xff", 0, number<std::uint8_t>(2))), "gguf.key");
  const std::string key = field("k", 0, number<std::uint8_t>(2));
  EXPECT_EQ(id_of(Parts{.fields = {key, field("l", 0, "x"), key}}.file()), "gguf.duplicate_key");
}

TEST(Gguf, ErrorsInMetadataNameTheKey) {
  const auto header =
      parse_gguf(bytes_of(Parts{.fields = {field("the.key", 7, number<std::uint8_t>(2))}}.file()));
  EXPECT_EQ(header.why().tensor, "the.key");
}

TEST(Gguf, HonorsTheAlignment) {
  const auto aligned = [](std::uint32_t type, const std::string& value, std::uint64_t offset) {
    Parts parts{.fields = {field("general.alignment", type, value)},
                .tensors = {tensor("a", {1}, 0, 0), tensor("b", {1}, 0, offset)},
                .data = std::string(1000, 'x')};
    return id_of(parts.file());
  };
  EXPECT_EQ(aligned(4, number<std::uint32_t>(8), 8), "ok");
  EXPECT_EQ(aligned(4, number<std::uint32_t>(8), 4), "gguf.offset");
  EXPECT_EQ(aligned(4, number<std::uint32_t>(256), 256), "ok");
  EXPECT_EQ(aligned(4, number<std::uint32_t>(256), 32), "gguf.offset");
  for (const std::uint32_t wrong : {0u, 1u, 4u, 12u, 33u, UINT32_MAX})
    EXPECT_EQ(aligned(4, number(wrong), 32), "gguf.alignment") << wrong;
  EXPECT_EQ(aligned(10, number<std::uint64_t>(32), 32), "gguf.alignment");
  EXPECT_EQ(aligned(8, gguf_string("32"), 32), "gguf.alignment");
  EXPECT_EQ(aligned(4, number(std::uint32_t{1} << 31), 0), "gguf.range");
}

TEST(Gguf, RefusesBadTensors) {
  EXPECT_EQ(id_of_tensor(tensor("", {1}, 0, 0)), "gguf.name");
  EXPECT_EQ(id_of_tensor(tensor(std::string_view("a\0", 2), {1}, 0, 0)), "gguf.name");
  EXPECT_EQ(id_of_tensor(tensor("\xff", {1}, 0, 0)), "gguf.name");
  EXPECT_EQ(id_of_tensor(tensor("a", {1, 1, 1, 1}, 0, 0)), "ok");
  EXPECT_EQ(id_of_tensor(tensor("a", {1, 1, 1, 1, 1}, 0, 0)), "gguf.dimensions");
  EXPECT_EQ(id_of_tensor(tensor("a", {1}, 16, 0)), "gguf.tensor_type");
  EXPECT_EQ(id_of_tensor(tensor("a", {1}, UINT32_MAX, 0)), "gguf.tensor_type");
  EXPECT_EQ(id_of_tensor(tensor("a", {31}, 39, 0)), "gguf.shape");
  EXPECT_EQ(id_of_tensor(tensor("a", {2, 32}, 39, 0)), "gguf.shape") << "blocks lie along rows";
  EXPECT_EQ(id_of_tensor(tensor("a", {std::uint64_t{1} << 40, std::uint64_t{1} << 40}, 0, 0)),
            "gguf.shape");
  EXPECT_EQ(id_of_tensor(tensor("a", {16}, 0, 0)), "ok");
  EXPECT_EQ(id_of_tensor(tensor("a", {17}, 0, 0)), "gguf.range");
  EXPECT_EQ(id_of_tensor(tensor("a", {1}, 0, 64)), "gguf.range");
  EXPECT_EQ(id_of_tensor(tensor("a", {1}, 0, UINT64_MAX - 31)), "gguf.range");
  EXPECT_EQ(id_of_tensor(tensor("a", {1}, 0, 4)), "gguf.offset");
  EXPECT_EQ(id_of_tensor(tensor("a", {0, 5}, 0, 0)), "ok");
}

TEST(Gguf, NamesTheTypeItDoesNotSupport) {
  const auto header = parse_gguf(
      bytes_of(Parts{.tensors = {tensor("w", {256}, 16, 0)}, .data = std::string(66, 'x')}.file()));
  EXPECT_EQ(header.why().found, "16 (IQ2_XXS)");
  EXPECT_EQ(header.why().tensor, "w");
}

TEST(Gguf, RefusesDuplicatesAndOverlaps) {
  const auto two = [](const std::string& first, const std::string& second) {
    return id_of(Parts{.tensors = {first, second}, .data = std::string(128, 'x')}.file());
  };
  EXPECT_EQ(two(tensor("a", {8}, 0, 0), tensor("b", {8}, 0, 32)), "ok");
  EXPECT_EQ(two(tensor("a", {8}, 0, 64), tensor("b", {8}, 0, 0)), "ok");
  EXPECT_EQ(two(tensor("a", {9}, 0, 0), tensor("b", {8}, 0, 32)), "gguf.overlap");
  EXPECT_EQ(two(tensor("a", {8}, 0, 32), tensor("b", {9}, 0, 0)), "gguf.overlap");
  EXPECT_EQ(two(tensor("a", {8}, 0, 0), tensor("b", {8}, 0, 0)), "gguf.overlap");
  EXPECT_EQ(two(tensor("a", {8}, 0, 0), tensor("a", {8}, 0, 32)), "gguf.duplicate");
}

TEST(Gguf, AFileOfMetadataAloneNeedsNoData) {
  std::string file = Parts{.fields = {field("k", 0, "x")}}.file();
  file.resize(file.size() - 5);
  EXPECT_EQ(id_of(file), "ok");
}

TEST(Gguf, TruncatedAtAnyByteIsAnError) {
  const std::string file = small_file().file();
  for (std::size_t size = 0; size < file.size(); ++size)
    ASSERT_NE(id_of(file.substr(0, size)), "ok") << size;
  EXPECT_EQ(id_of(file), "ok");
}

TEST(Gguf, AnyByteChangedToAnyOtherIsAnErrorOrConsistent) {
  const std::string file = small_file().file();
  std::size_t accepted = 0, refused = 0;
  for (std::size_t at = 0; at + 100 < file.size(); ++at) {
    std::string changed = file;
    for (int value = 0; value < 256; ++value) {
      changed[at] = static_cast<char>(value);
      const auto header = parse_gguf(bytes_of(changed));
      if (!header) {
        ++refused;
        ASSERT_TRUE(header.why().id.starts_with("gguf."));
        continue;
      }
      ++accepted;
      for (const TensorEntry& entry : header->tensors) {
        ASSERT_LE(entry.begin + entry.bytes, changed.size());
        ASSERT_EQ(byte_count(entry.dtype, entry.shape), entry.bytes);
      }
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 10'000u);
}

TEST(Gguf, AFieldThatNoMemoryIsLeftToCopyIsAnExceptionAndNothingElse) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer takes memory as it likes";
  const GgufField field{
      .key = "key", .type = GgufType::string, .value = std::string(std::size_t{64} << 20, 'x')};
  const int status = fp4moe::testing::status_in_child([&] {
    fp4moe::testing::limit_memory(std::uint64_t{32} << 20);
    try {
      const std::vector<GgufField> copy{field};
      return copy.size() == 1 ? 1 : 2;
    } catch (const std::bad_alloc&) {
      return 0;
    }
  });
  EXPECT_EQ(status, 0);
}

}  // namespace gguf_test
}  // namespace fp4moe::tensor
