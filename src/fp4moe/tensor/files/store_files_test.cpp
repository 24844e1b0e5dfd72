#include "fp4moe/tensor/files/store_files.hpp"

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace fp4moe::tensor {
namespace store_files_test {

using testing::TemporaryFolder;
using testing::write_text;

std::string id_of(const std::string& path) {
  const Result<StoreFiles> files = find_store_files(path);
  return files ? "ok" : files.why().id;
}

// The names of the files a folder with these names stands for, or why it does not.
std::string files_of(const std::vector<std::string>& names) {
  const TemporaryFolder folder;
  for (const std::string& name : names) write_text(folder / name, "");
  const Result<StoreFiles> files = find_store_files(folder.path());
  if (!files) return files.why().id;
  std::string found = files->kind == StoreKind::gguf ? "gguf:" : "safetensors:";
  for (const std::string& path : files->paths) found += " " + path.substr(folder.path().size() + 1);
  return found;
}

TEST(PartName, IsTakenApart) {
  const auto part = part_name("model-00002-of-00013.gguf", ".gguf");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->stem, "model");
  EXPECT_EQ(part->number, 2u);
  EXPECT_EQ(part->count, 13u);
  EXPECT_EQ(part_name("a-b-00001-of-00001.safetensors", ".safetensors")->stem, "a-b");
}

TEST(PartName, IsNotSeenInOtherNames) {
  for (const char* name :
       {"model.gguf", "model-1-of-3.gguf", "model-00000-of-00003.gguf", "model-00004-of-00003.gguf",
        "model-0000x-of-00003.gguf", "model-00001-xx-00003.gguf", "model_00001-of-00003.gguf",
        "model-00001-of-00003.bin", "-of-.gguf", ".gguf", "", "model-+0001-of-00003.gguf"})
    EXPECT_FALSE(part_name(name, ".gguf")) << name;
}

TEST(StoreFiles, OfAFolderAreItsSafetensors) {
  EXPECT_EQ(files_of({"b.safetensors", "a.safetensors", "config.json", ".c.safetensors"}),
            "safetensors: a.safetensors b.safetensors");
}

TEST(StoreFiles, OfAFolderMayBeOneGgufOrItsParts) {
  EXPECT_EQ(files_of({"a.gguf", "README.md"}), "gguf: a.gguf");
  EXPECT_EQ(files_of({"m-00002-of-00002.gguf", "m-00001-of-00002.gguf"}),
            "gguf: m-00001-of-00002.gguf m-00002-of-00002.gguf");
}

TEST(StoreFiles, AreAmbiguousWhenTheFolderHoldsSeveralModels) {
  EXPECT_EQ(files_of({"a.gguf", "b.gguf"}), "store.ambiguous");
  EXPECT_EQ(files_of({"a-00001-of-00001.gguf", "b-00001-of-00001.gguf"}), "store.ambiguous");
  EXPECT_EQ(files_of({"a-00001-of-00001.gguf", "b.gguf"}), "store.ambiguous");
  EXPECT_EQ(files_of({"a.gguf", "b.safetensors"}), "store.ambiguous");
  EXPECT_EQ(files_of({"a.gguf", "model.safetensors.index.json"}), "store.ambiguous");
  EXPECT_EQ(files_of({"a.safetensors.index.json", "b.safetensors.index.json"}), "store.ambiguous");
}

TEST(StoreFiles, MustHaveAllTheirParts) {
  EXPECT_EQ(files_of({"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}), "store.missing_shard");
  EXPECT_EQ(files_of({"m-00001-of-00002.gguf"}), "store.missing_shard");
  EXPECT_EQ(files_of({"m-00002-of-00002.safetensors"}), "store.missing_shard");
  EXPECT_EQ(files_of({"m-00001-of-00002.safetensors", "extra.safetensors"}), "store.missing_shard");
}

TEST(StoreFiles, MustExist) {
  EXPECT_EQ(files_of({"config.json"}), "store.empty");
  EXPECT_EQ(id_of("/nonexistent"), "store.open");
  EXPECT_EQ(id_of("/nonexistent/model.gguf"), "store.open");
  const TemporaryFolder folder;
  write_text(folder / "model.bin", "");
  EXPECT_EQ(id_of(folder / "model.bin"), "store.kind");
}

TEST(StoreFiles, OfOnePartOfAGgufModelAreAllItsParts) {
  const TemporaryFolder folder;
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other.gguf"})
    write_text(folder / name, "");
  const Result<StoreFiles> files = find_store_files(folder / "m-00002-of-00002.gguf");
  ASSERT_TRUE(files);
  EXPECT_EQ(files->paths, (std::vector<std::string>{folder / "m-00001-of-00002.gguf",
                                                    folder / "m-00002-of-00002.gguf"}));
  EXPECT_EQ(find_store_files(folder / "other.gguf")->paths.size(), 1u);
}

TEST(StoreFiles, TheUsualIndexIsPreferred) {
  const TemporaryFolder folder;
  write_text(folder / "a.safetensors.index.json", "not read");
  write_text(folder / "model.safetensors.index.json", R"({"weight_map":{}})");
  write_text(folder / "stray.safetensors", "not read");
  const Result<StoreFiles> files = find_store_files(folder.path());
  ASSERT_TRUE(files) << text(files.why());
  EXPECT_EQ(files->index_path, folder / "model.safetensors.index.json");
  EXPECT_TRUE(files->paths.empty());
}

TEST(StoreFiles, AMissingShardIsNamedWithItsTensors) {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors.index.json",
             R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors"}})");
  write_text(folder / "1.safetensors", "");
  const Result<StoreFiles> files = find_store_files(folder.path());
  ASSERT_FALSE(files);
  EXPECT_EQ(files.why().id, "store.missing_shard");
  EXPECT_EQ(files.why().code, ErrorCode::invalid_input);
  EXPECT_EQ(files.why().path, folder / "2.safetensors");
  EXPECT_NE(files.why().expected.find("2 of 3 tensors"), std::string::npos);
}

TEST(StoreFiles, AnIndexMayBeNamedItself) {
  const TemporaryFolder folder;
  write_text(folder / "x.safetensors.index.json", R"({"weight_map":{"a":"sub/1.safetensors"}})");
  std::filesystem::create_directory(folder / "sub");
  write_text(folder / "sub/1.safetensors", "");
  const Result<StoreFiles> files = find_store_files(folder / "x.safetensors.index.json");
  ASSERT_TRUE(files) << text(files.why());
  EXPECT_EQ(files->paths, std::vector<std::string>{folder / "sub/1.safetensors"});
}

TEST(StoreFiles, AnIndexWithBadContentIsRefusedByName) {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors.index.json", "{");
  EXPECT_EQ(find_store_files(folder.path()).why().path, folder / "model.safetensors.index.json");
  EXPECT_EQ(id_of(folder.path()), "index.json");
  std::filesystem::resize_file(folder / "model.safetensors.index.json", 100'000'001);
  EXPECT_EQ(id_of(folder.path()), "index.too_large");
}

TEST(StoreFiles, LinksMayNotLeaveTheFolder) {
  const TemporaryFolder outside, folder;
  write_text(outside / "secret.safetensors", "");
  std::filesystem::create_symlink(outside / "secret.safetensors", folder / "a.safetensors");
  EXPECT_EQ(id_of(folder.path()), "store.link");
  write_text(folder / "model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
  EXPECT_EQ(id_of(folder.path()), "store.link");
  write_text(folder / "model.safetensors.index.json", R"({"weight_map":{"x":"d/a.safetensors"}})");
  std::filesystem::create_symlink(outside.path(), folder / "d");
  write_text(outside / "a.safetensors", "");
  EXPECT_EQ(id_of(folder.path()), "store.link");
}

TEST(StoreFiles, AnIndexMayNotBeALinkOutOfTheFolder) {
  const TemporaryFolder outside, folder;
  write_text(outside / "index", R"({"weight_map":{}})");
  std::filesystem::create_symlink(outside / "index", folder / "model.safetensors.index.json");
  EXPECT_EQ(id_of(folder.path()), "store.link");
}

TEST(StoreFiles, LinksInsideTheFolderAreFine) {
  const TemporaryFolder folder, elsewhere;
  write_text(folder / "real.bin", "");
  std::filesystem::create_symlink("real.bin", folder / "a.safetensors");
  EXPECT_EQ(id_of(folder.path()), "ok");
  std::filesystem::create_symlink(folder.path(), elsewhere / "link");
  EXPECT_EQ(id_of(elsewhere / "link"), "ok") << "the folder itself may be reached by a link";
}

TEST(StoreFiles, ABrokenLinkCountsAsMissing) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("nowhere", folder / "a.safetensors");
  EXPECT_EQ(id_of(folder.path()), "store.open");
  write_text(folder / "model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
  EXPECT_EQ(id_of(folder.path()), "store.missing_shard");
}

TEST(StoreFiles, TheCacheOfHuggingFaceIsUnderstood) {
  const TemporaryFolder hub;
  const std::string model = hub / "models--x";
  const std::string snapshot = model + "/snapshots/abc";
  std::filesystem::create_directories(snapshot + "/original");
  std::filesystem::create_directories(model + "/blobs");
  std::filesystem::create_directories(hub / "models--y/blobs");
  write_text(model + "/blobs/123", "");
  write_text(model + "/blobs/456", R"({"weight_map":{"t":"1.safetensors"}})");
  write_text(hub / "models--y/blobs/123", "");
  std::filesystem::create_symlink("../../blobs/123", snapshot + "/1.safetensors");
  std::filesystem::create_symlink("../../blobs/456", snapshot + "/model.safetensors.index.json");
  std::filesystem::create_symlink("../../../blobs/123", snapshot + "/original/1.safetensors");
  EXPECT_EQ(id_of(snapshot), "ok") << text(find_store_files(snapshot).why());
  EXPECT_EQ(id_of(snapshot + "/original"), "ok");
  // But only its own blobs.
  std::filesystem::remove(snapshot + "/1.safetensors");
  std::filesystem::create_symlink("../../../models--y/blobs/123", snapshot + "/1.safetensors");
  EXPECT_EQ(id_of(snapshot), "store.link");
}

TEST(FileInside, FollowsLinksInsideTheFolderAndIntoTheBlobsOfACache) {
  const TemporaryFolder folder, outside;
  write_text(outside / "config.json", "{}");
  write_text(folder / "real.json", "{}");
  std::filesystem::create_symlink("real.json", folder / "inside.json");
  std::filesystem::create_symlink(outside / "config.json", folder / "outside.json");
  EXPECT_EQ(*file_inside(folder.path(), "real.json"), folder / "real.json");
  EXPECT_TRUE(file_inside(folder.path(), "inside.json"));
  EXPECT_EQ(file_inside(folder.path(), "outside.json").why().id, "store.link");
  EXPECT_EQ(file_inside(folder.path(), "absent.json").why().id, "store.open");

  const std::string snapshot = folder / "models--x/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(folder / "models--x/blobs");
  write_text(folder / "models--x/blobs/1", "{}");
  std::filesystem::create_symlink("../../blobs/1", snapshot + "/config.json");
  EXPECT_TRUE(file_inside(snapshot, "config.json")) << "a Hugging Face cache";
  std::filesystem::remove(folder / "models--x/blobs/1");
  std::filesystem::create_symlink(outside / "config.json", folder / "models--x/blobs/1");
  EXPECT_EQ(file_inside(snapshot, "config.json").why().id, "store.link") << "a link behind a link";
}

}  // namespace store_files_test
}  // namespace fp4moe::tensor
