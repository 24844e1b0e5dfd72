#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "fp4moe/tensor/files/gguf.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace gguf_writer_test {

using testing::bytes_of;
using testing::random_bytes;
using testing::TemporaryFolder;

std::vector<GgufField> all_fields() {
  return {
      {"general.architecture", GgufType::string, std::string("gpt-oss")},
      {"u8", GgufType::u8, std::uint64_t{255}},
      {"i8", GgufType::i8, std::int64_t{-128}},
      {"u16", GgufType::u16, std::uint64_t{65535}},
      {"i16", GgufType::i16, std::int64_t{-32768}},
      {"u32", GgufType::u32, std::uint64_t{UINT32_MAX}},
      {"i32", GgufType::i32, std::int64_t{INT32_MIN}},
      {"u64", GgufType::u64, UINT64_MAX},
      {"i64", GgufType::i64, INT64_MIN},
      {"f32", GgufType::f32, 0.25},
      {"f64", GgufType::f64, 0.1},
      {"infinity", GgufType::f32, std::numeric_limits<double>::infinity()},
      {"bool", GgufType::boolean, true},
      {"u8s", GgufType::u8, std::vector<std::uint64_t>{0, 255}},
      {"i32s", GgufType::i32, std::vector<std::int64_t>{-1, 0, 7}},
      {"f32s", GgufType::f32, std::vector<double>{1.5, -2.0}},
      {"bools", GgufType::boolean, std::deque<bool>{true, false, true}},
      {"strings", GgufType::string, std::vector<std::string>{"a", "", "東"}},
      {"none", GgufType::string, std::vector<std::string>{}},
  };
}

std::vector<TensorSpec> all_tensors() {
  std::vector<TensorSpec> specs;
  for (const DTypeRow& dtype : kDTypes)
    if (dtype.ggml_type >= 0)
      specs.push_back(
          {"t." + std::string(dtype.name), dtype.dtype, {2, 3, 2 * dtype.block_elements}});
  specs.push_back({"scalar", DType::f32, {}});
  specs.push_back({"empty", DType::f32, {0}});
  specs.push_back({"four", DType::f16, {2, 1, 3, 5}});
  return specs;
}

void round_trip(std::vector<GgufField> fields, std::uint64_t alignment) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = all_tensors();
  Result<GgufWriter> writer = GgufWriter::create(folder / "a", fields, specs);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = specs.size(); i-- > 0;)
    ASSERT_TRUE(writer->write(i, 0, random_bytes(writer->entries()[i].bytes, i)));
  ASSERT_TRUE(writer->finish());

  const MappedFile file = *MappedFile::open(folder / "a");
  EXPECT_EQ(file.bytes().size() % alignment, 0u);
  const auto header = parse_gguf(file.bytes());
  ASSERT_TRUE(header) << text(header.why());
  EXPECT_EQ(header->alignment, alignment);
  ASSERT_EQ(header->fields.size(), fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    EXPECT_EQ(header->fields[i].key, fields[i].key);
    EXPECT_EQ(header->fields[i].type, fields[i].type) << fields[i].key;
    EXPECT_EQ(header->fields[i].value, fields[i].value) << fields[i].key;
  }
  ASSERT_EQ(header->tensors.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorEntry& tensor = header->tensors[i];
    EXPECT_EQ(tensor.name, specs[i].name);
    EXPECT_EQ(tensor.dtype, specs[i].dtype);
    EXPECT_EQ(tensor.shape, specs[i].shape);
    EXPECT_EQ(tensor.begin, writer->entries()[i].begin);
    EXPECT_EQ(tensor.begin % alignment, 0u);
    EXPECT_TRUE(std::ranges::equal(file.bytes().subspan(tensor.begin, tensor.bytes),
                                   random_bytes(tensor.bytes, i)));
  }
}

TEST(GgufWriter, WritesWhatTheReaderReads) { round_trip(all_fields(), 32); }

TEST(GgufWriter, HonorsTheAlignment) {
  std::vector<GgufField> fields = all_fields();
  fields.push_back({"general.alignment", GgufType::u32, std::uint64_t{4096}});
  round_trip(fields, 4096);
}

std::string id_of(std::vector<GgufField> fields, std::vector<TensorSpec> specs = {}) {
  const TemporaryFolder folder;
  const Result<GgufWriter> writer = GgufWriter::create(folder / "a", fields, specs);
  return writer ? "ok" : writer.why().id;
}

TEST(GgufWriter, RefusesValuesThatDoNotFitTheirType) {
  const std::vector<GgufField> wrong{
      {"k", GgufType::u8, std::uint64_t{256}},
      {"k", GgufType::u16, std::uint64_t{65536}},
      {"k", GgufType::u32, std::uint64_t{1} << 32},
      {"k", GgufType::i8, std::int64_t{128}},
      {"k", GgufType::i8, std::int64_t{-129}},
      {"k", GgufType::i16, std::int64_t{-32769}},
      {"k", GgufType::i32, std::int64_t{1} << 31},
      {"k", GgufType::f32, 1e300},
      {"k", GgufType::u32, std::int64_t{1}},
      {"k", GgufType::i32, std::uint64_t{1}},
      {"k", GgufType::f32, std::uint64_t{1}},
      {"k", GgufType::u32, 1.0},
      {"k", GgufType::u32, std::string("1")},
      {"k", GgufType::string, true},
      {"k", GgufType::array, std::uint64_t{1}},
      {"k", GgufType::u8, std::vector<std::uint64_t>{1, 256}},
      {"k", GgufType::string, std::deque<bool>{true}},
  };
  for (std::size_t i = 0; i < wrong.size(); ++i)
    EXPECT_EQ(id_of({wrong[i]}), "gguf.value_type") << i;
}

TEST(GgufWriter, RefusesWhatTheFormatCannotHold) {
  const GgufField good{"k", GgufType::u8, std::uint64_t{1}};
  EXPECT_EQ(id_of({good, good}), "gguf.duplicate_key");
  EXPECT_EQ(id_of({{"", GgufType::u8, std::uint64_t{1}}}), "gguf.key");
  EXPECT_EQ(id_of({{"\xff", GgufType::u8, std::uint64_t{1}}}), "gguf.key");
  EXPECT_EQ(id_of({{std::string(65536, 'k'), GgufType::u8, std::uint64_t{1}}}), "gguf.key");
  for (const std::uint64_t alignment : {0u, 4u, 48u})
    EXPECT_EQ(id_of({{"general.alignment", GgufType::u32, alignment}}), "gguf.alignment");
  EXPECT_EQ(id_of({{"general.alignment", GgufType::u64, std::uint64_t{32}}}), "gguf.alignment");
  EXPECT_EQ(id_of({}, {{"", DType::f32, {1}}}), "gguf.name");
  EXPECT_EQ(id_of({}, {{"a", DType::u8, {1}}}), "gguf.tensor_type");
  EXPECT_EQ(id_of({}, {{"a", DType::f32, {1, 1, 1, 1, 1}}}), "gguf.dimensions");
  EXPECT_EQ(id_of({}, {{"a", DType::gguf_nvfp4, {2, 32}}}), "gguf.shape");
  EXPECT_EQ(id_of({}, {{"a", DType::f32, {std::uint64_t{1} << 61}}}), "gguf.shape");
  EXPECT_EQ(id_of({}, {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}), "gguf.duplicate");
  EXPECT_EQ(id_of({{"k", GgufType::string, std::string(kMaxGgufHeader, 'v')}}),
            "gguf.header_length");
  EXPECT_EQ(id_of({{"k", GgufType::boolean, std::deque<bool>(kMaxGgufElements + 1)}}),
            "gguf.array");
  const auto many = static_cast<std::size_t>(kMaxGgufFields + 1);
  EXPECT_EQ(id_of(std::vector<GgufField>(many, good)), "gguf.fields");
}

TEST(GgufWriter, RefusesToFinishWhatIsIncomplete) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"a", DType::f32, {2}}};
  Result<GgufWriter> writer = GgufWriter::create(folder / "a", {}, specs);
  ASSERT_TRUE(writer);
  EXPECT_EQ(writer->write(0, 5, bytes_of("1234")).why().id, "tensor.write_range");
  EXPECT_EQ(writer->write(1, 0, bytes_of("1")).why().id, "tensor.index");
  ASSERT_TRUE(writer->write(0, 0, bytes_of("1234")));
  EXPECT_EQ(writer->finish().why().id, "tensor.incomplete");
  ASSERT_TRUE(writer->write(0, 4, bytes_of("5678")));
  ASSERT_TRUE(writer->finish());
}

TEST(GgufWriter, SaysWhereItCannotWrite) {
  EXPECT_EQ(GgufWriter::create("/nonexistent/a", {}, {}).why().id, "file.create");
}

}  // namespace gguf_writer_test
}  // namespace fp4moe::tensor
