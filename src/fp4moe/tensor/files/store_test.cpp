#include "fp4moe/tensor/files/store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/base/parallel.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace store_test {

using testing::bytes_of;
using testing::TemporaryFolder;
using testing::write_text;

// A file with one-byte tensors; each holds the first character of its name.
void write_shard(const std::string& path, const std::vector<std::string>& names,
                 const Metadata& metadata = {}) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::u8, {1}});
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, specs, metadata);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < names.size(); ++i)
    ASSERT_TRUE(writer->write(i, 0, bytes_of(names[i].substr(0, 1))));
  ASSERT_TRUE(writer->finish());
}

void write_gguf(const std::string& path, const std::vector<std::string>& names,
                const std::vector<GgufField>& fields = {}) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::i8, {1}});
  Result<GgufWriter> writer = GgufWriter::create(path, fields, specs);
  ASSERT_TRUE(writer) << text(writer.why());
  for (std::size_t i = 0; i < names.size(); ++i)
    ASSERT_TRUE(writer->write(i, 0, bytes_of(names[i].substr(0, 1))));
  ASSERT_TRUE(writer->finish());
}

std::vector<GgufField> split_fields(std::uint64_t number, std::uint64_t count,
                                    std::int64_t tensors) {
  return {{"split.no", GgufType::u16, number},
          {"split.count", GgufType::u16, count},
          {"split.tensors.count", GgufType::i32, tensors}};
}

std::string id_of(const std::string& path) {
  const Result<Store> store = Store::open(path);
  return store ? "ok" : store.why().id;
}

TEST(Store, OpensOneFile) {
  const TemporaryFolder folder;
  write_shard(folder / "m.safetensors", {"z", "a", "m"}, {{"k", "v"}});
  const Result<Store> store = Store::open(folder / "m.safetensors");
  ASSERT_TRUE(store) << text(store.why());
  EXPECT_EQ(store->kind(), StoreKind::safetensors);
  EXPECT_EQ(store->folder(), folder.path());
  ASSERT_EQ(store->tensors().size(), 3u);
  EXPECT_EQ(store->tensors()[0].entry.name, "a");
  EXPECT_EQ(store->tensors()[2].entry.name, "z");
  const StoredTensor* found = store->find("m");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(store->bytes(*found)[0], std::byte{'m'});
  EXPECT_EQ(store->path(*found), folder / "m.safetensors");
  for (const char* absent : {"", "b", "mm", "zz"}) EXPECT_EQ(store->find(absent), nullptr);
  ASSERT_EQ(store->metadata().size(), 1u);
  EXPECT_EQ(store->metadata()[0].at("k"), "v");
}

TEST(Store, OpensAFolderWithoutIndex) {
  const TemporaryFolder folder;
  write_shard(folder / "1.safetensors", {"d", "b"});
  write_shard(folder / "2.safetensors", {"c", "a"});
  write_shard(folder / "3.safetensors", {"e"});
  const Result<Store> store = Store::open(folder.path());
  ASSERT_TRUE(store) << text(store.why());
  std::string names;
  for (const StoredTensor& tensor : store->tensors()) {
    names += tensor.entry.name;
    EXPECT_EQ(store->bytes(tensor)[0], static_cast<std::byte>(tensor.entry.name[0]));
    store->drop(tensor, store->bytes(tensor));
  }
  EXPECT_EQ(names, "abcde");
  EXPECT_EQ(store->files().size(), 3u);
}

TEST(Store, StaysValidWhenMoved) {
  const TemporaryFolder folder;
  write_shard(folder / "1.safetensors", {"a"});
  Result<Store> opened = Store::open(folder.path());
  ASSERT_TRUE(opened);
  const StoredTensor* tensor = opened->find("a");
  const Store store = *std::move(opened);
  EXPECT_EQ(store.find("a"), tensor);
  EXPECT_EQ(store.bytes(*tensor)[0], std::byte{'a'});
}

class IndexedStore : public ::testing::Test {
 protected:
  void SetUp() override {
    write_shard(folder_ / "1.safetensors", {"a", "c"});
    write_shard(folder_ / "2.safetensors", {"b"});
  }
  std::string id_with(const std::string& map) {
    write_text(folder_ / "model.safetensors.index.json",
               R"({"metadata":{"total_size":99},"weight_map":)" + map + "}");
    return id_of(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_F(IndexedStore, Opens) {
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"), "ok");
  const Result<Store> store = Store::open(folder_ / "model.safetensors.index.json");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->path(*store->find("b")), folder_ / "2.safetensors");
}

TEST_F(IndexedStore, CountsOnlyTheIndexedShards) {
  write_shard(folder_ / "consolidated.safetensors", {"a", "b", "c"});
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"), "ok");
  EXPECT_EQ(Store::open(folder_.path())->files().size(), 2u);
}

TEST_F(IndexedStore, MustAgreeWithTheShards) {
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors"})"), "store.not_in_index");
  EXPECT_EQ(id_with(R"({"b":"2.safetensors","c":"1.safetensors"})"), "store.not_in_index");
  EXPECT_EQ(
      id_with(
          R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors","d":"1.safetensors"})"),
      "store.not_in_shard");
  EXPECT_EQ(
      id_with(
          R"({"A":"1.safetensors","a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
      "store.not_in_shard");
  EXPECT_EQ(id_with(R"({"a":"2.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
            "store.wrong_shard");
}

TEST_F(IndexedStore, RefusesATensorInTwoShards) {
  write_shard(folder_ / "2.safetensors", {"a", "b"});
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
            "store.duplicate");
  const Result<Store> store = Store::open(folder_.path());
  EXPECT_EQ(store.why().tensor, "a");
}

TEST_F(IndexedStore, NamesTheBrokenShard) {
  write_text(folder_ / "2.safetensors", "short");
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
            "safetensors.truncated");
  EXPECT_EQ(Store::open(folder_.path()).why().path, folder_ / "2.safetensors");
}

TEST_F(IndexedStore, RefusesAShardThatIsAFolder) {
  std::filesystem::remove(folder_ / "2.safetensors");
  std::filesystem::create_directory(folder_ / "2.safetensors");
  EXPECT_EQ(id_with(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})"),
            "file.not_regular");
}

TEST(Store, RefusesANameInTwoFiles) {
  const TemporaryFolder folder;
  write_shard(folder / "1.safetensors", {"a", "b"});
  write_shard(folder / "2.safetensors", {"b", "c"});
  const Result<Store> store = Store::open(folder.path());
  ASSERT_FALSE(store);
  EXPECT_EQ(store.why().id, "store.duplicate");
  EXPECT_EQ(store.why().tensor, "b");
  EXPECT_NE(store.why().found.find("2.safetensors"), std::string::npos);
}

TEST(Store, OpensGguf) {
  const TemporaryFolder folder;
  write_gguf(folder / "m.gguf", {"b", "a"}, {{"k", GgufType::u32, std::uint64_t{5}}});
  for (const std::string& path : {folder.path(), folder / "m.gguf"}) {
    const Result<Store> store = Store::open(path);
    ASSERT_TRUE(store) << text(store.why());
    EXPECT_EQ(store->kind(), StoreKind::gguf);
    EXPECT_EQ(store->folder(), folder.path());
    EXPECT_EQ(store->bytes(*store->find("a"))[0], std::byte{'a'});
    ASSERT_EQ(store->gguf_fields().size(), 1u);
    EXPECT_TRUE(store->metadata().empty());
  }
}

TEST(Store, OpensTheParts) {
  const TemporaryFolder folder;
  write_gguf(folder / "m-00001-of-00003.gguf", {}, split_fields(0, 3, 3));
  write_gguf(folder / "m-00002-of-00003.gguf", {"c", "a"}, split_fields(1, 3, 3));
  write_gguf(folder / "m-00003-of-00003.gguf", {"b"}, split_fields(2, 3, 3));
  const Result<Store> store = Store::open(folder / "m-00002-of-00003.gguf");
  ASSERT_TRUE(store) << text(store.why());
  EXPECT_EQ(store->tensors().size(), 3u);
  EXPECT_EQ(store->bytes(*store->find("b"))[0], std::byte{'b'});
  EXPECT_EQ(std::get<std::uint64_t>(store->gguf_fields()[0].value), 0u) << "of the first part";
}

TEST(Store, RefusesPartsThatDoNotBelongTogether) {
  const auto with = [](const std::vector<GgufField>& first, const std::vector<GgufField>& second) {
    const TemporaryFolder folder;
    write_gguf(folder / "m-00001-of-00002.gguf", {"a"}, first);
    write_gguf(folder / "m-00002-of-00002.gguf", {"b"}, second);
    return id_of(folder.path());
  };
  EXPECT_EQ(with(split_fields(0, 2, 2), split_fields(1, 2, 2)), "ok");
  EXPECT_EQ(with({}, {}), "store.split");
  EXPECT_EQ(with(split_fields(0, 3, 2), split_fields(1, 3, 2)), "store.split");
  EXPECT_EQ(with(split_fields(1, 2, 2), split_fields(0, 2, 2)), "store.split");
  EXPECT_EQ(with(split_fields(0, 2, 5), split_fields(1, 2, 5)), "store.split");
  const TemporaryFolder folder;
  write_gguf(folder / "renamed.gguf", {"a"}, split_fields(0, 2, 2));
  EXPECT_EQ(id_of(folder.path()), "store.split");
  write_gguf(folder / "renamed.gguf", {"a"}, split_fields(0, 1, 1));
  EXPECT_EQ(id_of(folder.path()), "ok");
}

TEST(Store, RefusesBrokenGguf) {
  const TemporaryFolder folder;
  write_text(folder / "m.gguf", "GGUX                                ");
  EXPECT_EQ(id_of(folder.path()), "gguf.magic");
}

TEST(Store, EmptyTensorsHaveNoBytes) {
  const TemporaryFolder folder;
  const std::vector<TensorSpec> specs{{"e", DType::f32, {0}}};
  ASSERT_TRUE(GgufWriter::create(folder / "m.gguf", {}, specs)->finish());
  std::filesystem::resize_file(folder / "m.gguf", 24 + 8 + 1 + 4 + 8 + 4 + 8);  // no padding
  const Result<Store> store = Store::open(folder.path());
  ASSERT_TRUE(store) << text(store.why());
  EXPECT_TRUE(store->bytes(*store->find("e")).empty());
}

TEST(Store, OpensAHundredThousandTensorsInFiftyShards) {
  constexpr std::size_t kShards = 50, kPerShard = 2000;
  const TemporaryFolder folder;
  const auto shard_name = [](std::size_t shard) {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", shard + 1, kShards);
    return std::string(name.data());
  };
  const auto tensor_name = [](std::size_t shard, std::size_t i) {
    return "model.layers." + std::to_string(shard) + ".mlp.experts." + std::to_string(i / 4) +
           ".gate_up_proj.part" + std::to_string(i % 4);
  };
  std::string index = R"({"metadata":{"total_size":1600000},"weight_map":{)";
  for (std::size_t shard = 0; shard < kShards; ++shard) {
    std::string header = "{";
    for (std::size_t i = 0; i < kPerShard; ++i) {
      header += "\"" + tensor_name(shard, i) + "\":{\"dtype\":\"BF16\",\"shape\":[2,4]," +
                "\"data_offsets\":[" + std::to_string(16 * i) + "," + std::to_string(16 * i + 16) +
                "]},";
      index += "\"" + tensor_name(shard, i) + "\":\"" + shard_name(shard) + "\",";
    }
    header.back() = '}';
    write_text(folder / shard_name(shard),
               testing::safetensors_file(header, std::string(16 * kPerShard, 'x')));
  }
  index.back() = '}';
  write_text(folder / "model.safetensors.index.json", index + "}");

  for (const bool indexed : {true, false}) {
    if (!indexed) std::filesystem::remove(folder / "model.safetensors.index.json");
    const auto start = std::chrono::steady_clock::now();
    const Result<Store> store = Store::open(folder.path());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(store) << text(store.why());
    std::printf("opened 100000 tensors in 50 shards, %s index: %.0f ms\n",
                indexed ? "with" : "without", took.count());
    EXPECT_EQ(store->tensors().size(), kShards * kPerShard);
    EXPECT_TRUE(std::ranges::is_sorted(store->tensors(), {}, [](const StoredTensor& tensor) {
      return std::string_view(tensor.entry.name);
    }));
    const StoredTensor* last = store->find(tensor_name(kShards - 1, kPerShard - 1));
    ASSERT_NE(last, nullptr);
    EXPECT_EQ(store->path(*last), folder / shard_name(kShards - 1));
  }
}

TEST(Store, DocumentsFollowTheSameRuleOfLinks) {
  const TemporaryFolder folder, outside;
  write_shard(folder / "a.safetensors", {"a"});
  write_text(outside / "config.json", "{}");
  std::filesystem::create_symlink(outside / "config.json", folder / "config.json");
  const Result<Store> store = Store::open(folder.path());
  ASSERT_TRUE(store);
  const auto document = store->document("config.json");
  ASSERT_FALSE(document);
  EXPECT_EQ(document.why().id, "store.link");
  EXPECT_FALSE(*store->document("absent.json"));
}

}  // namespace store_test
}  // namespace fp4moe::tensor
