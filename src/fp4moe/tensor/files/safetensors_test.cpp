#include "fp4moe/tensor/files/safetensors.hpp"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace fp4moe::tensor {
namespace safetensors_test {

using testing::bytes_of;
using testing::safetensors_file;

Result<SafetensorsHeader> parse(std::string_view header, std::string_view data = {}) {
  return parse_safetensors(bytes_of(safetensors_file(header, data)));
}

std::string id_of(const Result<SafetensorsHeader>& result) {
  return result ? "ok" : result.why().id;
}

// A header with one tensor "a" that has these fields.
std::string id_of_entry(const std::string& fields, std::size_t data = 4) {
  return id_of(parse("{\"a\":{" + fields + "}}", std::string(data, 'x')));
}

const std::string kValidHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("e":{"dtype":"I64","shape":[0,5],"data_offsets":[7,7]},)"
    R"("s":{"dtype":"U8","shape":[],"data_offsets":[7,8]}}  )";

TEST(Safetensors, ReadsAHeader) {
  const auto header = parse(kValidHeader, "12345678");
  ASSERT_TRUE(header) << text(header.why());
  const std::uint64_t data = 8 + kValidHeader.size();
  EXPECT_EQ(header->data_begin, data);
  EXPECT_EQ(header->metadata, (Metadata{{"format", "pt"}}));
  ASSERT_EQ(header->tensors.size(), 4u);
  const TensorEntry& first = header->tensors[0];
  EXPECT_EQ(first.name, "a");
  EXPECT_EQ(first.dtype, DType::bf16);
  EXPECT_EQ(first.begin, data);
  EXPECT_EQ(first.bytes, 4u);
  EXPECT_EQ(header->tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(header->tensors[2].bytes, 0u);
  EXPECT_EQ(header->tensors[3].shape, Shape{});
}

TEST(Safetensors, ReadsEveryDtypeOfTheFormat) {
  for (const DTypeRow& dtype : kDTypes) {
    const std::string header = "{\"a\":{\"dtype\":\"" + std::string(dtype.name) + "\",\"shape\":[" +
                               std::to_string(dtype.block_elements) + "],\"data_offsets\":[0," +
                               std::to_string(dtype.block_bytes) + "]}}";
    const auto result = parse(header, std::string(dtype.block_bytes, 'x'));
    EXPECT_EQ(id_of(result), dtype.in_safetensors ? "ok" : "safetensors.dtype") << dtype.name;
    if (result) {
      EXPECT_EQ(result->tensors[0].dtype, dtype.dtype);
    }
  }
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_EQ(id_of(parse("{}")), "ok");
  EXPECT_EQ(id_of(parse("{}        ")), "ok");
  EXPECT_EQ(id_of(parse(R"({"__metadata__":{}})")), "ok");
}

TEST(Safetensors, ReadsNamesInAnyScript) {
  const auto header =
      parse(R"({"\u6771\"\\é":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  ASSERT_TRUE(header);
  EXPECT_EQ(header->tensors[0].name, "東\"\\é");
}

TEST(Safetensors, RefusesFilesTooShortForALength) {
  for (std::size_t size = 0; size < 8; ++size) {
    const auto result = parse_safetensors(std::vector<std::byte>(size));
    EXPECT_EQ(id_of(result), "safetensors.truncated") << size;
  }
}

TEST(Safetensors, RefusesLengthsOutOfBounds) {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, kMaxSafetensorsHeader + 1,
                                     std::uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7}) {
    std::string file;
    append(file, length);
    file += "{}";
    EXPECT_EQ(id_of(parse_safetensors(bytes_of(file))), "safetensors.header_length") << length;
  }
  std::string file;
  append(file, kMaxSafetensorsHeader);
  EXPECT_EQ(id_of(parse_safetensors(bytes_of(file + "{}"))), "safetensors.truncated");
}

TEST(Safetensors, TakesAHeaderOfTheGreatestLength) {
  EXPECT_EQ(id_of(parse("{}" + std::string(kMaxSafetensorsHeader - 2, ' '))), "ok");
}

TEST(Safetensors, RefusesAHeaderThatIsNoObject) {
  EXPECT_EQ(id_of(parse("[]")), "safetensors.header_start");
  EXPECT_EQ(id_of(parse(" {}")), "safetensors.header_start");
  EXPECT_EQ(id_of(parse("\xef\xbb\xbf{}")), "safetensors.header_start");
}

TEST(Safetensors, RefusesMalformedJson) {
  for (const char* header :
       {"{]", "{}}", "{} x", "{\"a\"", "{\"__metadata__\":{},}", "{'a':1}", "{\"\\ud800\":1}"})
    EXPECT_EQ(id_of(parse(header)), "safetensors.json") << header;
  EXPECT_EQ(id_of(parse(std::string_view("{}\0", 3))), "safetensors.json");
}

TEST(Safetensors, RefusesInvalidUtf8) {
  EXPECT_EQ(id_of(parse("{\"\xff\":1}")), "safetensors.utf8");
  EXPECT_EQ(id_of(parse("{\"__metadata__\":{\"a\":\"\xc0\xaf\"}}")), "safetensors.utf8");
}

TEST(Safetensors, RefusesDepth) {
  EXPECT_EQ(id_of_entry(R"("shape":[[1]])"), "safetensors.depth");
  EXPECT_EQ(id_of_entry(R"("data_offsets":[{}])"), "safetensors.depth");
  EXPECT_EQ(id_of_entry(R"("dtype":{})"), "safetensors.depth");
  EXPECT_EQ(id_of(parse(R"({"__metadata__":{"a":{}}})")), "safetensors.depth");
  EXPECT_EQ(id_of_entry("\"shape\":" + std::string(1'000'000, '[')), "safetensors.depth");
}

TEST(Safetensors, RefusesDuplicates) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const auto twice = parse("{\"a\":" + entry + ",\"b\":" + entry + ",\"\\u0061\":" + entry + "}");
  EXPECT_EQ(id_of(twice), "safetensors.duplicate");
  EXPECT_EQ(twice.why().tensor, "a");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","dtype":"U8")"), "safetensors.duplicate_key");
  EXPECT_EQ(id_of_entry(R"("shape":[],"shape":[])"), "safetensors.duplicate_key");
  EXPECT_EQ(id_of_entry(R"("data_offsets":[0,0],"data_offsets":[0,0])"),
            "safetensors.duplicate_key");
  EXPECT_EQ(id_of(parse(R"({"__metadata__":{},"__metadata__":{}})")), "safetensors.duplicate_key");
  EXPECT_EQ(id_of(parse(R"({"__metadata__":{"k":"1","k":"2"}})")), "safetensors.duplicate_key");
}

TEST(Safetensors, RefusesUnknownAndMissingKeys) {
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","strides":[1])"), "safetensors.unknown_key");
  EXPECT_EQ(id_of_entry(R"("shape":[4],"data_offsets":[0,4])"), "safetensors.missing_key");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","data_offsets":[0,4])"), "safetensors.missing_key");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[4])"), "safetensors.missing_key");
  EXPECT_EQ(id_of_entry(""), "safetensors.missing_key");
}

TEST(Safetensors, RefusesUnknownDtypes) {
  const auto result =
      parse(R"({"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}})", std::string(16, 'x'));
  EXPECT_EQ(id_of(result), "safetensors.dtype");
  EXPECT_EQ(result.why().tensor, "a");
  EXPECT_EQ(result.why().found, "F128");
}

TEST(Safetensors, RefusesNumbersThatAreNoSizes) {
  for (const char* number :
       {"-1", "-0", "1.5", "1e3", "18446744073709551616", "1e400", "null", "true", "\"4\""}) {
    const std::string id =
        std::string(number) == "1e400" ? "safetensors.json" : "safetensors.number";
    EXPECT_EQ(id_of_entry("\"dtype\":\"U8\",\"shape\":[" + std::string(number) + "]"),
              std::string(number) == "\"4\"" ? "safetensors.number" : id)
        << number;
    EXPECT_EQ(id_of_entry("\"dtype\":\"U8\",\"data_offsets\":[0," + std::string(number) + "]"), id)
        << number;
  }
}

TEST(Safetensors, RefusesValuesOfTheWrongKind) {
  EXPECT_EQ(id_of(parse(R"({"a":1})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"a":-1})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"a":1.5})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"a":[]})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"a":"x"})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"a":null})")), "safetensors.entry");
  EXPECT_EQ(id_of(parse(R"({"__metadata__":null})")), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("dtype":1)"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("dtype":[])"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("shape":4)"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("shape":"4")"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("data_offsets":[])"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("data_offsets":[0])"), "safetensors.entry");
  EXPECT_EQ(id_of_entry(R"("data_offsets":[0,1,2])"), "safetensors.entry");
}

TEST(Safetensors, RefusesMetadataThatIsNoText) {
  for (const char* value : {"1", "-1", "1.5", "true", "null", "[]"})
    EXPECT_EQ(id_of(parse("{\"__metadata__\":{\"k\":" + std::string(value) + "}}")),
              "safetensors.metadata")
        << value;
}

TEST(Safetensors, RefusesNamesThatAreNoNames) {
  EXPECT_EQ(id_of(parse(R"({"":{}})")), "safetensors.name");
  EXPECT_EQ(id_of(parse(R"({"a\u0000b":{}})")), "safetensors.name");
}

TEST(Safetensors, RefusesShapesThatDoNotFillTheirRange) {
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), "safetensors.shape");
  EXPECT_EQ(id_of_entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "safetensors.shape");
  EXPECT_EQ(id_of_entry(R"("dtype":"F4","shape":[7],"data_offsets":[0,4])"), "safetensors.shape");
  EXPECT_EQ(id_of_entry(R"("dtype":"F6_E2M3","shape":[5],"data_offsets":[0,4])"),
            "safetensors.shape");
  // 2^32 * 2^32 wraps to 0, 2^62 * 8 bytes too.
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
            "safetensors.shape");
  EXPECT_EQ(id_of_entry(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])"),
            "safetensors.shape");
}

TEST(Safetensors, RefusesMoreDimensionsThanTheLimit) {
  const auto of = [](std::size_t dimensions) {
    std::string shape = "4";
    for (std::size_t i = 1; i < dimensions; ++i) shape += ",1";
    return id_of_entry(R"("dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,4])");
  };
  EXPECT_EQ(of(kMaxSafetensorsDimensions), "ok");
  EXPECT_EQ(of(kMaxSafetensorsDimensions + 1), "safetensors.dimensions");
}

TEST(Safetensors, RefusesRangesOutsideTheFile) {
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), "safetensors.range");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "safetensors.range");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[4],)"
                        R"("data_offsets":[18446744073709551611,18446744073709551615])"),
            "safetensors.range");
}

TEST(Safetensors, RefusesOverlapsHolesAndTrailingBytes) {
  const auto two = [](const char* first, const char* second) {
    return id_of(
        parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + std::string(first) +
                  "},\"b\":{\"dtype\":\"U8\",\"shape\":[2]," + "\"data_offsets\":" + second + "}}",
              "1234"));
  };
  EXPECT_EQ(two("[0,2]", "[2,4]"), "ok");
  EXPECT_EQ(two("[2,4]", "[0,2]"), "ok");
  EXPECT_EQ(two("[0,2]", "[1,3]"), "safetensors.overlap");
  EXPECT_EQ(two("[0,2]", "[0,2]"), "safetensors.overlap");
  EXPECT_EQ(two("[1,3]", "[3,5]"), "safetensors.hole");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"),
            "safetensors.trailing");
  EXPECT_EQ(id_of_entry(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])"), "safetensors.hole");
  EXPECT_EQ(id_of(parse("{}", "x")), "safetensors.trailing");
}

TEST(Safetensors, EmptyTensorsMayLieBetweenOthersButNotInsideThem) {
  const auto with_empty = [](int at) {
    const std::string place = std::to_string(at);
    return id_of(parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},)"
                       R"("e":{"dtype":"U8","shape":[0],"data_offsets":[)" +
                           place + "," + place + "]}}",
                       "1234"));
  };
  EXPECT_EQ(with_empty(0), "ok");
  EXPECT_EQ(with_empty(2), "ok");
  EXPECT_EQ(with_empty(4), "ok");
  EXPECT_EQ(with_empty(1), "safetensors.overlap");
  EXPECT_EQ(with_empty(5), "safetensors.range");
}

TEST(Safetensors, TruncatedAtAnyByteIsAnError) {
  const std::string file = safetensors_file(kValidHeader, "12345678");
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto result = parse_safetensors(bytes_of(file.substr(0, size)));
    ASSERT_FALSE(result) << size;
    EXPECT_FALSE(result.why().message.empty());
  }
  EXPECT_TRUE(parse_safetensors(bytes_of(file)));
}

// Whatever a header says, what is accepted is consistent.
void expect_consistent(const SafetensorsHeader& header, std::size_t file_size) {
  std::uint64_t position = header.data_begin;
  for (const TensorEntry& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, position);
    ASSERT_EQ(byte_count(tensor.dtype, tensor.shape), tensor.bytes);
    ASSERT_FALSE(tensor.name.empty());
    position += tensor.bytes;
  }
  ASSERT_EQ(position, file_size);
}

TEST(Safetensors, AnyByteChangedToAnyOtherIsAnErrorOrConsistent) {
  const std::string file = safetensors_file(kValidHeader, "12345678");
  std::size_t accepted = 0, refused = 0;
  for (std::size_t at = 0; at < file.size(); ++at) {
    std::string changed = file;
    for (int value = 0; value < 256; ++value) {
      changed[at] = static_cast<char>(value);
      const auto result = parse_safetensors(bytes_of(changed));
      if (result) {
        ++accepted;
        expect_consistent(*result, changed.size());
      } else {
        ++refused;
        ASSERT_TRUE(result.why().id.starts_with("safetensors."));
      }
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 10'000u);
}

TEST(Safetensors, ReadsManyTensorsWithoutQuadraticWork) {
  std::string header = "{";
  constexpr int kTensors = 200'000;
  for (int i = kTensors; i > 0; --i)
    header += "\"t" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" +
              std::to_string(i - 1) + "," + std::to_string(i) + "]},";
  header.back() = '}';
  const auto result = parse(header, std::string(kTensors, 'x'));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tensors.back().name, "t" + std::to_string(kTensors));
}

}  // namespace safetensors_test
}  // namespace fp4moe::tensor
