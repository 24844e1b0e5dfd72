// Tensors in memory as a store: the same questions as of files, and memory that is left alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fp4moe/tensor/files/store.hpp"
#include "support/files.hpp"

namespace fp4moe::tensor {
namespace memory_store_test {

using testing::bytes_of;
using testing::TemporaryFolder;
using testing::write_text;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(PlannedStore, HasNamesShapesAndDocumentsAndNoBytes) {
  const auto store = Store::planned({{"z", DType::u8, {2}}, {"a", DType::f32, {7, 7}}},
                                    {{.name = "config.json", .text = "{}"}});
  ASSERT_TRUE(store) << text(store.why());
  EXPECT_EQ(store->kind(), StoreKind::safetensors);
  ASSERT_EQ(store->tensors().size(), 2u);
  EXPECT_EQ(store->tensors()[0].entry.name, "a");
  EXPECT_EQ(store->tensors()[0].entry.shape, (Shape{7, 7}));
  EXPECT_TRUE(store->bytes(store->tensors()[0]).empty());
  const auto config = store->document("config.json");
  ASSERT_TRUE(config && config->has_value());
  EXPECT_EQ(text_of(**config), "{}");
  const auto absent = store->document("hf_quant_config.json");
  EXPECT_TRUE(absent && !absent->has_value());
  const auto twice = Store::planned({{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}, {});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.why().id, "store.duplicate");
  const auto gguf = Store::planned_gguf({{"a", DType::u8, {1}}}, {{.key = "k", .value = true}});
  ASSERT_TRUE(gguf);
  EXPECT_EQ(gguf->kind(), StoreKind::gguf);
  EXPECT_EQ(gguf->gguf_fields().size(), 1u);
}

TEST(MemoryStore, FindsTensorsInWhateverOrderTheyCome) {
  const auto z = bytes_of("zz"), a = bytes_of("a"), nothing = bytes_of("");
  const auto store = Store::of({{"z", DType::u8, {2}, z},
                                {"a", DType::f8_e8m0, {1, 1}, a},
                                {"none", DType::f32, {0, 7}, nothing}},
                               {});
  ASSERT_TRUE(store) << text(store.why());
  EXPECT_EQ(store->kind(), StoreKind::memory);
  EXPECT_EQ(store->folder(), "");
  ASSERT_EQ(store->tensors().size(), 3u);
  EXPECT_EQ(store->tensors()[0].entry.name, "a");
  EXPECT_EQ(store->tensors()[2].entry.name, "z");
  ASSERT_NE(store->find("z"), nullptr);
  EXPECT_EQ(store->bytes(*store->find("z")).data(), z.data()) << "a copy";
  EXPECT_EQ(store->bytes(*store->find("a")).data(), a.data());
  EXPECT_TRUE(store->bytes(*store->find("none")).empty());
  EXPECT_EQ(store->find("y"), nullptr);
  EXPECT_EQ(store->require_files().why().id, "store.memory");
}

TEST(MemoryStore, RefusesWhatFilesWouldBeRefusedFor) {
  const auto bytes = bytes_of("123456");
  const auto id = [&](std::vector<MemoryTensor> tensors) {
    const auto store = Store::of(std::move(tensors), {});
    return store ? std::string("ok") : store.why().id;
  };
  EXPECT_EQ(id({{"a", DType::u8, {2, 3}, bytes}}), "ok");
  EXPECT_EQ(id({{"a", DType::f4, {12}, bytes}}), "ok");
  EXPECT_EQ(id({{"a", DType::f4, {11}, bytes}}), "store.shape") << "half a byte";
  EXPECT_EQ(id({{"a", DType::u8, {7}, bytes}}), "store.shape");
  EXPECT_EQ(id({{"a", DType::f32, {1}, bytes}}), "store.shape");
  EXPECT_EQ(id({{"a", DType::u64, {std::uint64_t{1} << 61}, bytes}}), "store.shape");
  EXPECT_EQ(id({{"", DType::u8, {6}, bytes}}), "store.name");
  EXPECT_EQ(id({{std::string("a\0b", 3), DType::u8, {6}, bytes}}), "store.name");
  EXPECT_EQ(id({{"a", DType::u8, {6}, bytes}, {"b", DType::u8, {6}, bytes}}), "ok");
  EXPECT_EQ(id({{"b", DType::u8, {6}, bytes},
                {"a", DType::u8, {6}, bytes},
                {"b", DType::i8, {6}, bytes}}),
            "store.duplicate");
  const auto wrong = Store::of({{"a", DType::bf16, {2, 3}, bytes}}, {});
  EXPECT_EQ(wrong.why().expected, "BF16 [2, 3] = 12 bytes");
  EXPECT_EQ(wrong.why().found, "6 bytes");
  EXPECT_EQ(wrong.why().tensor, "a");
}

// MADV_DONTNEED on anonymous memory would give zeros.
TEST(MemoryStore, NeverDropsOrUnmapsPagesOfOthers) {
  const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) * 4;
  void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* data = static_cast<std::byte*>(pages);
  std::fill(data, data + size, std::byte{0x5A});
  {
    Result<Store> result = Store::of({{"a", DType::u8, {size}, {data, size}}}, {});
    ASSERT_TRUE(result);
    const Store store = *std::move(result);
    const StoredTensor& tensor = *store.find("a");
    store.files()[tensor.file].prefetch(store.bytes(tensor));
    store.drop(tensor, store.bytes(tensor));
    store.files()[tensor.file].drop(store.files()[tensor.file].bytes());
    MappedFile moved = MappedFile::of("", store.bytes(tensor));
    MappedFile other = std::move(moved);
    moved = std::move(other);
  }
  EXPECT_EQ(std::count(data, data + size, std::byte{0x5A}), static_cast<std::ptrdiff_t>(size));
  munmap(pages, size);
}

TEST(MemoryStore, HandsOutDocumentsAsAFolderDoes) {
  Result<Store> result = Store::of({}, {{"config.json", "{}"}, {"other", ""}});
  ASSERT_TRUE(result);
  const Store memory = *std::move(result);
  auto document = memory.document("config.json");
  ASSERT_TRUE(document && document->has_value());
  EXPECT_EQ(text_of(**document), "{}");
  EXPECT_EQ((*document)->path(), "config.json");
  EXPECT_TRUE(memory.document("other")->has_value());
  EXPECT_FALSE(memory.document("hf_quant_config.json")->has_value());
  EXPECT_EQ(memory.path_of("config.json"), "config.json");

  const TemporaryFolder folder;
  write_text(folder / "m.safetensors", testing::safetensors_file("{}"));
  write_text(folder / "config.json", "[1]");
  const Result<Store> files = Store::open(folder.path());
  ASSERT_TRUE(files) << text(files.why());
  document = files->document("config.json");
  ASSERT_TRUE(document && document->has_value());
  EXPECT_EQ(text_of(**document), "[1]");
  EXPECT_EQ((*document)->path(), folder / "config.json");
  EXPECT_FALSE(files->document("hf_quant_config.json")->has_value());
  EXPECT_TRUE(files->require_files());
}

}  // namespace memory_store_test
}  // namespace fp4moe::tensor
