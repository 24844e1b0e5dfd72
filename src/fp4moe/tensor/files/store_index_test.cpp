#include "fp4moe/tensor/files/store_index.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe::tensor {
namespace store_index_test {

std::string id_of(std::string_view text) {
  const Result<StoreIndex> index = parse_index(text);
  return index ? "ok" : index.why().id;
}

std::string id_of_shard(const std::string& name) {
  return id_of("{\"weight_map\":{\"a\":\"" + name + "\"}}");
}

TEST(StoreIndex, ReadsAMap) {
  const Result<StoreIndex> index =
      parse_index(R"({"metadata":{"total_size":3,"more":[{"x":null}]},)"
                  R"("weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"}})");
  ASSERT_TRUE(index) << text(index.why());
  EXPECT_EQ(index->shards, (std::vector<std::string>{"2.safetensors", "1.safetensors"}));
  ASSERT_EQ(index->entries.size(), 3u);
  EXPECT_EQ(index->entries[0].name, "a");
  EXPECT_EQ(index->entries[0].shard, 1u);
  EXPECT_EQ(index->entries[1].name, "b");
  EXPECT_EQ(index->entries[2].shard, 0u);
}

TEST(StoreIndex, IgnoresWhatItDoesNotNeed) {
  EXPECT_EQ(id_of(R"({"weight_map":{}})"), "ok");
  EXPECT_EQ(id_of(R"({"metadata":7,"other":{"weight_map":[1]},"weight_map":{}})"), "ok");
  EXPECT_EQ(id_of(R"({"x":[true,-1,1.5,"s",null,[[]]],"weight_map":{}} )"), "ok");
}

TEST(StoreIndex, RefusesMalformedText) {
  EXPECT_EQ(id_of(""), "index.json");
  EXPECT_EQ(id_of("{"), "index.json");
  EXPECT_EQ(id_of(R"({"weight_map":{}} x)"), "index.json");
  EXPECT_EQ(id_of(std::string_view("{\"weight_map\":{}}\0", 18)), "index.json");
  EXPECT_EQ(id_of("{\"weight_map\":{\"\xff\":\"a\"}}"), "index.utf8");
}

TEST(StoreIndex, RefusesValuesOfTheWrongKind) {
  for (const char* text :
       {"[]", "1", "\"a\"", "null", R"({"weight_map":1})", R"({"weight_map":[]})",
        R"({"weight_map":"a"})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":null}})",
        R"({"weight_map":{"a":{}}})", R"({"weight_map":{"a":["b"]}})", R"({"weight_map":{"a":-1}})",
        R"({"weight_map":{"a":1.5}})", R"({"weight_map":{"a":true}})"})
    EXPECT_EQ(id_of(text), "index.kind") << text;
}

TEST(StoreIndex, NeedsAMap) {
  EXPECT_EQ(id_of("{}"), "index.weight_map");
  EXPECT_EQ(id_of(R"({"metadata":{"weight_map":{}}})"), "index.weight_map");
}

TEST(StoreIndex, RefusesDuplicates) {
  const Result<StoreIndex> index =
      parse_index(R"({"weight_map":{"b":"1","a":"1","c":"1","\u0061":"1"}})");
  EXPECT_EQ(index.why().id, "index.duplicate");
  EXPECT_EQ(index.why().tensor, "a");
  EXPECT_EQ(id_of(R"({"weight_map":{},"weight_map":{}})"), "index.duplicate");
}

TEST(StoreIndex, RefusesNamesThatAreNoNames) {
  EXPECT_EQ(id_of(R"({"weight_map":{"":"1"}})"), "index.name");
  EXPECT_EQ(id_of(R"({"weight_map":{"a\u0000":"1"}})"), "index.name");
}

TEST(StoreIndex, RefusesShardsOutsideTheFolder) {
  for (const char* name : {"", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a//b",
                           "a/", "..\\\\x", "C:\\\\x", "a\\u0000b"})
    EXPECT_EQ(id_of_shard(name), "index.shard_name") << name;
  for (const char* name : {"a", "a/b", "..a", "a..", "...", ".hidden", "a b"})
    EXPECT_EQ(id_of_shard(name), "ok") << name;
}

TEST(StoreIndex, RefusesDepth) {
  EXPECT_EQ(id_of("{\"metadata\":" + std::string(1'000'000, '[')), "index.depth");
  EXPECT_EQ(
      id_of("{\"metadata\":" + std::string(60, '[') + std::string(60, ']') + ",\"weight_map\":{}}"),
      "ok");
}

TEST(StoreIndex, TruncatedAtAnyByteIsAnError) {
  const std::string text = R"({"metadata":{"total_size":3},"weight_map":{"a":"1","b":"2"}})";
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_NE(id_of(text.substr(0, size)), "ok") << size;
}

TEST(StoreIndex, AnyByteChangedToAnyOtherIsAnErrorOrConsistent) {
  const std::string text = R"({"metadata":{"total_size":3},"weight_map":{"a":"1","b":"2"}})";
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    for (int value = 0; value < 256; ++value) {
      changed[at] = static_cast<char>(value);
      const Result<StoreIndex> index = parse_index(changed);
      if (!index) continue;
      for (const IndexEntry& entry : index->entries) ASSERT_LT(entry.shard, index->shards.size());
    }
  }
}

}  // namespace store_index_test
}  // namespace fp4moe::tensor
