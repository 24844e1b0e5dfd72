#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace safetensors_writer_test {

using testing::bytes_of;
using testing::random_bytes;
using testing::TemporaryFolder;

std::string id_of(const Result<SafetensorsWriter>& result) {
  return result ? "ok" : result.why().id;
}

// One tensor of every dtype, and the awkward shapes.
std::vector<TensorSpec> all_kinds() {
  std::vector<TensorSpec> specs;
  for (const DTypeRow& dtype : kDTypes)
    if (dtype.in_safetensors)
      specs.push_back({"t." + std::string(dtype.name), dtype.dtype, {3, 4 * dtype.block_elements}});
  specs.push_back({"empty", DType::f32, {0, 3}});
  specs.push_back({"scalar", DType::bf16, {}});
  specs.push_back({"quote\" back\\slash 東 \x01", DType::u8, {1, 1, 1, 1, 1, 7}});
  return specs;
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs = all_kinds();
  const Metadata metadata{{"format", "pt"}, {"note\n", "\"é\""}};
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs, metadata);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto data = random_bytes(writer->entries()[i].bytes, i);
    ASSERT_TRUE(writer->write(i, 0, data));
  }
  ASSERT_TRUE(writer->finish());

  const MappedFile file = *MappedFile::open(folder / "a");
  const auto header = parse_safetensors(file.bytes());
  ASSERT_TRUE(header) << text(header.why());
  EXPECT_EQ(header->metadata, metadata);
  EXPECT_EQ(header->data_begin % 8, 0u);
  ASSERT_EQ(header->tensors.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorEntry& tensor = header->tensors[i];
    EXPECT_EQ(tensor.name, specs[i].name);
    EXPECT_EQ(tensor.dtype, specs[i].dtype);
    EXPECT_EQ(tensor.shape, specs[i].shape);
    EXPECT_TRUE(std::ranges::equal(file.bytes().subspan(tensor.begin, tensor.bytes),
                                   random_bytes(tensor.bytes, i)));
  }
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SafetensorsWriter::create(folder / "a", {})->finish());
  EXPECT_TRUE(parse_safetensors(MappedFile::open(folder / "a")->bytes()));
}

TEST(SafetensorsWriter, RoundTripsRandomFiles) {
  const TemporaryFolder folder;
  SplitMix64 random(21);
  for (int round = 0; round < 50; ++round) {
    std::vector<TensorSpec> specs;
    for (std::uint64_t i = random.next() % 8; i > 0; --i) {
      const DTypeRow& dtype = kDTypes.at(random.next() % 22);
      Shape shape;
      for (std::uint64_t d = random.next() % 4; d > 0; --d) shape.push_back(random.next() % 5);
      shape.push_back(dtype.block_elements * (random.next() % 4));
      specs.push_back({"t" + std::to_string(i), dtype.dtype, shape});
    }
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs);
    ASSERT_TRUE(writer) << text(writer.why());
    // In random pieces, last tensor first.
    for (std::size_t i = specs.size(); i-- > 0;) {
      const std::vector<std::byte> data = random_bytes(writer->entries()[i].bytes, i);
      for (std::size_t at = 0; at < data.size();) {
        const std::size_t piece = std::min(data.size() - at, std::size_t{random.next() % 9});
        ASSERT_TRUE(writer->write(i, at, std::span(data).subspan(at, piece)));
        at += piece;
      }
    }
    ASSERT_TRUE(writer->finish());
    const MappedFile file = *MappedFile::open(folder / "a");
    const auto header = parse_safetensors(file.bytes());
    ASSERT_TRUE(header) << text(header.why());
    for (const TensorEntry& tensor : header->tensors) {
      const auto spec = std::ranges::find(specs, tensor.name, &TensorSpec::name);
      ASSERT_NE(spec, specs.end());
      ASSERT_EQ(tensor.shape, spec->shape);
      const auto seed = static_cast<std::uint64_t>(spec - specs.begin());
      ASSERT_TRUE(std::ranges::equal(file.bytes().subspan(tensor.begin, tensor.bytes),
                                     random_bytes(tensor.bytes, seed)));
    }
  }
}

TEST(SafetensorsWriter, TakesPiecesFromManyThreads) {
  constexpr std::size_t kPieces = 200, kPiece = 1000;
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"a", DType::u8, {kPieces, kPiece}},
                                      {"b", DType::u8, {kPieces, kPiece}}};
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs);
  ASSERT_TRUE(writer);
  const std::vector<std::byte> data = random_bytes(kPieces * kPiece, 1);
  ASSERT_TRUE(parallel_for(8, 2 * kPieces, [&](std::size_t i) {
    const std::size_t at = (i / 2 * 77) % kPieces * kPiece;
    return writer->write(i % 2, at, std::span(data).subspan(at, kPiece));
  }));
  ASSERT_TRUE(writer->finish());
  const MappedFile file = *MappedFile::open(folder / "a");
  EXPECT_TRUE(std::ranges::equal(file.bytes().last(data.size()), data));
}

TEST(SafetensorsWriter, RefusesToFinishWhatIsNotWrittenExactlyOnce) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"a", DType::u8, {2}}, {"b", DType::u8, {8}}};
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(0, 0, bytes_of("12")));
  ASSERT_TRUE(writer->write(1, 0, bytes_of("1234")));
  const Result<Done> early = writer->finish();
  EXPECT_EQ(early.why().id, "tensor.incomplete");
  EXPECT_EQ(early.why().tensor, "b");
  ASSERT_TRUE(writer->write(1, 0, bytes_of("1234")));
  EXPECT_EQ(writer->finish().why().id, "tensor.overwritten") << "the count is right, the bytes not";
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(SafetensorsWriter, RefusesBytesOutsideTheTensor) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"a", DType::u8, {2}}};
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs);
  ASSERT_TRUE(writer);
  EXPECT_EQ(writer->write(1, 0, bytes_of("1")).why().id, "tensor.index");
  EXPECT_EQ(writer->write(0, 0, bytes_of("123")).why().id, "tensor.write_range");
  EXPECT_EQ(writer->write(0, 2, bytes_of("1")).why().id, "tensor.write_range");
  EXPECT_EQ(writer->write(0, UINT64_MAX, bytes_of("1")).why().id, "tensor.write_range");
  ASSERT_TRUE(writer->write(0, 0, bytes_of("12")));
  ASSERT_TRUE(writer->finish());
  EXPECT_EQ(writer->write(0, 0, bytes_of("12")).why().id, "file.closed");
}

TEST(SafetensorsWriter, RefusesWhatTheFormatCannotHold) {
  const TemporaryFolder folder;
  const auto create = [&](std::vector<TensorSpec> specs, const Metadata& metadata = {}) {
    return id_of(SafetensorsWriter::create(folder / "a", specs, metadata));
  };
  for (const std::string& name :
       {std::string(), std::string("__metadata__"), std::string("a\0b", 3), std::string("\xff")})
    EXPECT_EQ(create({{name, DType::u8, {1}}}), "safetensors.name");
  EXPECT_EQ(create({{"a", DType::gguf_mxfp4, {32}}}), "safetensors.dtype");
  EXPECT_EQ(create({{"a", DType::f4, {3}}}), "safetensors.shape");
  const std::uint64_t huge = std::uint64_t{1} << 62;
  EXPECT_EQ(create({{"a", DType::f64, {huge}}}), "safetensors.shape");
  EXPECT_EQ(create({{"a", DType::u8, Shape(kMaxSafetensorsDimensions + 1, 1)}}),
            "safetensors.dimensions");
  EXPECT_EQ(create({{"a", DType::u8, {huge}}, {"b", DType::u8, {huge}}, {"c", DType::u8, {huge}}}),
            "safetensors.shape");
  EXPECT_EQ(create({{"a", DType::u8, {1}}, {"b", DType::u8, {1}}, {"a", DType::u8, {2}}}),
            "safetensors.duplicate");
  EXPECT_EQ(create({}, {{"k", "\xff"}}), "safetensors.metadata");
  EXPECT_EQ(create({}, {{"\xff", "v"}}), "safetensors.metadata");
  EXPECT_EQ(create({}, {{"k", std::string(kMaxSafetensorsHeader, 'v')}}),
            "safetensors.header_length");
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, NoticesAFullDiskAtOnce) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::vector<TensorSpec> specs{{"a", DType::u8, {2 << 20}}};
    const Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "a", specs);
    _exit(!writer && writer.why().id == "file.disk_full" &&
                  writer.why().code == ErrorCode::exhausted
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace safetensors_writer_test
}  // namespace fp4moe::tensor
