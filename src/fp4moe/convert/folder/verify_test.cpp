#include "fp4moe/convert/folder/verify.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/checkpoint/survey.hpp"
#include "fp4moe/convert/folder/content.hpp"
#include "fp4moe/convert/folder/unconvert.hpp"
#include "support/converted_folder.hpp"
#include "support/limits.hpp"

namespace fp4moe::convert {
namespace verify_test {

namespace fs = std::filesystem;
using checkpoint::WeightFormat;
using tensor::testing::read_text;
using tensor::testing::write_text;
using testing::convert;
using testing::make_checkpoint;
using testing::recipe_of;
using testing::TemporaryFolder;

TEST(Checksum, IsXxh3OfTheDigestsOfThePieces) {
  // XXH3_128bits of nothing, seed 0, as the xxHash project's own tests have it.
  EXPECT_EQ(text(digest_of(std::string_view())), "99aa06d3014798d86001c324468d497f");
  const std::vector<std::byte> bytes = tensor::testing::random_bytes(1000, 3);
  std::vector<Digest> digests;
  for (std::size_t at = 0; at < bytes.size(); at += 300)
    digests.push_back(
        digest_of(std::span(bytes).subspan(at, std::min<std::size_t>(300, bytes.size() - at))));
  EXPECT_EQ(checksum_of(bytes, 300), digest_of(std::as_bytes(std::span(digests))));
  EXPECT_EQ(checksum_of({}), digest_of(std::string_view()));
  const Digest digest = digest_of(bytes);
  EXPECT_EQ(digest_from_text(text(digest)), digest);
  EXPECT_FALSE(digest_from_text("99aa06d3014798d86001c324468d497"));
  EXPECT_FALSE(digest_from_text("99AA06d3014798d86001c324468d497f"));
  EXPECT_FALSE(digest_from_text("99aa06d3014798d86001c324468d497fg"));
}

TEST(Content, DoesNotDependOnHowRowsLie) {
  std::vector<std::byte> dense = tensor::testing::random_bytes(64, 1), apart(128);
  for (std::size_t row = 0; row < 4; ++row)
    std::memcpy(apart.data() + row * 32, dense.data() + row * 16, 16);
  checkpoint::ExpertView a, b;
  a.up.codes = {dense.data(), 4, 16, 16};
  b.up.codes = {apart.data(), 4, 16, 32};
  EXPECT_EQ(content_of(a), content_of(b));
  apart[40] ^= std::byte{1};
  EXPECT_NE(content_of(a), content_of(b));
}

class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    make_checkpoint(folder_ / "source", WeightFormat::nvfp4, {.layers = 2});
    const auto converted = convert(folder_ / "source", out_, recipe_of("marlin.nvfp4"));
    ASSERT_TRUE(converted) << text(converted.why());
  }
  std::vector<Error> findings(const VerifyOptions& options = {}) const {
    const auto report = verify_folder(out_, options);
    EXPECT_TRUE(report) << text(report.why());
    return report ? report->findings : std::vector<Error>();
  }
  void flip(const std::string& file, std::uint64_t at) const {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(stream.get() ^ 0x04);
    stream.seekp(static_cast<std::streamoff>(at)).put(byte);
  }

  TemporaryFolder folder_{};
  std::string out_ = folder_ / "out";
};

TEST_F(Verify, FindsAFlippedBitWhereverItIs) {
  SplitMix64 random(7);
  EXPECT_TRUE(findings().empty());
  for (const auto& [name, bytes] : testing::files_of(out_)) {
    std::vector<std::uint64_t> places{0, 7, 8, bytes.size() / 2, bytes.size() - 1};
    for (int i = 0; i < 12; ++i) places.push_back(random.next() % bytes.size());
    for (int i = 0; i < 4; ++i)
      places.push_back(random.next() % std::min<std::uint64_t>(bytes.size(), 2000));
    for (const std::uint64_t at : places) {
      if (at >= bytes.size()) continue;
      flip(out_ + "/" + name, at);
      const std::vector<Error> found = findings({.threads = 2});
      EXPECT_FALSE(found.empty()) << name << " byte " << at;
      for (const Error& finding : found) {
        EXPECT_EQ(finding.code, ErrorCode::mismatch);
        EXPECT_NE((finding.path + finding.found).find(name), std::string::npos) << text(finding);
      }
      flip(out_ + "/" + name, at);
    }
  }
  EXPECT_TRUE(findings().empty());
}

TEST_F(Verify, NamesTheTensorWhoseBytesChanged) {
  const ConvertedFolder folder = *ConvertedFolder::open(out_);
  const std::size_t file = folder.file_of_layer(1);
  const auto bytes = folder.bytes(file, 2);
  const auto offset = static_cast<std::uint64_t>(bytes.data() - folder.mapped(file).bytes().data());
  flip(out_ + "/experts-00001.safetensors", offset + 5);
  const std::vector<Error> found = findings();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].id, "converted.checksum");
  EXPECT_EQ(found[0].tensor, "model.layers.1.mlp.experts.w13_scale");
  const std::vector<std::string> folders{out_};
  EXPECT_EQ(unconvert(folders, folder_ / "back").why().id, "converted.checksum");
  EXPECT_FALSE(fs::exists(folder_ / "back"));
}

TEST_F(Verify, FindsFilesThatAreMissingCutOrNew) {
  const std::string layer = out_ + "/experts-00000.safetensors", whole = read_text(layer);
  write_text(layer, whole.substr(0, whole.size() - 1));
  ASSERT_EQ(findings().size(), 1u);
  EXPECT_EQ(findings()[0].id, "converted.file");
  fs::remove(layer);
  EXPECT_EQ(findings()[0].id, "converted.file");
  write_text(layer, whole);
  write_text(out_ + "/more.safetensors", whole);
  EXPECT_EQ(findings()[0].id, "converted.file");
  fs::remove(out_ + "/more.safetensors");
  const std::string config = out_ + "/config.json", text = read_text(config);
  write_text(config, text + " ");
  EXPECT_EQ(findings()[0].id, "converted.file");
  fs::remove(config);
  EXPECT_EQ(findings()[0].id, "converted.file");
  write_text(config, text);
  EXPECT_TRUE(findings().empty());

  const auto none = verify_folder(folder_ / "source");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.why().id, "converted.manifest");
  EXPECT_EQ(none.why().code, ErrorCode::invalid_input);
}

// The same header, other weights: only packing again can tell.
TEST_F(Verify, TellsWhereASourceGivesOtherBytes) {
  const auto changed = checkpoint::synth({.model = "qwen3-30b-a3b",
                                          .format = WeightFormat::nvfp4,
                                          .layers = 2,
                                          .experts = 3,
                                          .hidden = 128,
                                          .intermediate = 128,
                                          .seed = 2},
                                         folder_ / "changed");
  ASSERT_TRUE(changed) << text(changed.why());
  const std::vector<Error> found = findings({.deep = true, .source = folder_ / "changed"});
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].id, "verify.differs");
  const auto first = std::ranges::find_if(
      found, [](const Error& each) { return each.tensor.ends_with("experts.w13"); });
  ASSERT_NE(first, found.end());
  EXPECT_NE(first->message.find("at expert 0 of the rank, row 0, column "), std::string::npos)
      << first->message;
  EXPECT_NE(first->message.find("offset "), std::string::npos);
  EXPECT_TRUE(first->expected.starts_with("0x"));

  make_checkpoint(folder_ / "other", WeightFormat::nvfp4, {.experts = 2});
  const std::vector<Error> other = findings({.deep = true, .source = folder_ / "other"});
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(other[0].id, "verify.source");
  EXPECT_TRUE(findings({.threads = 3, .deep = true}).empty());
  fs::rename(folder_ / "source", folder_ / "moved");
  const auto lost = verify_folder(out_, {.deep = true});
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.why().remedy.find("--source"), std::string::npos);
  EXPECT_TRUE(findings({.deep = true, .source = folder_ / "moved"}).empty());
}

TEST_F(Verify, FindsTheSourceFromAnywhereAndWhereBothWereMoved) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  const auto result = convert("source", "relative", recipe_of("marlin.nvfp4"));
  fs::current_path("/");
  ASSERT_TRUE(result) << text(result.why());
  const auto elsewhere = verify_folder(folder_ / "relative", {.deep = true});
  fs::create_directory(folder_ / "there");
  fs::rename(folder_ / "source", folder_ / "there/source");
  fs::rename(folder_ / "relative", folder_ / "there/relative");
  const auto moved = verify_folder(folder_ / "there/relative", {.deep = true});
  fs::current_path(before);
  ASSERT_TRUE(elsewhere) << text(elsewhere.why());
  EXPECT_TRUE(elsewhere->findings.empty());
  ASSERT_TRUE(moved) << text(moved.why());
  EXPECT_TRUE(moved->findings.empty());
  EXPECT_EQ(verify_folder(folder_ / "nothing").why().code, ErrorCode::failed);
}

TEST_F(Verify, ReadsViewsOfTheFilesThemselves) {
  const ConvertedFolder folder = *ConvertedFolder::open(out_);
  const std::vector<NamedView> views = folder.layer(0);
  ASSERT_GE(views.size(), 4u);
  EXPECT_EQ(views[0].name, "w13");
  EXPECT_EQ(views[0].view.dtype, tensor::DType::i32);
  const auto file = folder.mapped(folder.file_of_layer(0)).bytes();
  for (const NamedView& each : views) {
    EXPECT_GE(each.view.bytes.data(), file.data());
    EXPECT_LE(each.view.bytes.data() + each.view.bytes.size(), file.data() + file.size());
    EXPECT_EQ(tensor::byte_count(each.view.dtype, each.view.shape), each.view.bytes.size());
  }
  EXPECT_TRUE(folder.packer(1));
  EXPECT_FALSE(folder.find("experts-00000.safetensors", "nothing"));
  EXPECT_FALSE(folder.find("nothing", "model.layers.0.mlp.experts.w13"));
}

TEST_F(Verify, RefusesToBeTakenForSomethingElse) {
  const auto refuse = [&](const Expectations& expected) {
    const auto opened = ConvertedFolder::open(out_, expected);
    return opened ? usage("ok", "") : opened.why();
  };
  EXPECT_EQ(refuse({.layout = "marlin.nvfp4", .generation = "2026-04", .backend = ""}).id, "ok");
  const Error layout = refuse({.layout = "native_sm90.nvfp4"});
  EXPECT_EQ(layout.id, "converted.layout");
  EXPECT_EQ(layout.expected, "native_sm90.nvfp4");
  EXPECT_EQ(layout.found, "marlin.nvfp4");
  const Error generation = refuse({.generation = "2026-01"});
  EXPECT_EQ(generation.id, "converted.generation");
  EXPECT_EQ(generation.expected, "marlin.nvfp4 (2026-01)");
  EXPECT_EQ(generation.found, "marlin.nvfp4 (2026-04)");
  EXPECT_EQ(refuse({.backend = "MARLIN"}).id, "converted.backend");
  EXPECT_EQ(refuse({.slice = checkpoint::Slice{.tensor_parallel = {1, 2}}}).id, "converted.shard");
  EXPECT_EQ(refuse({.slice = checkpoint::Slice{.expert_parallel = {0, 2}}}).id, "converted.shard");
  EXPECT_EQ(refuse({.slice = checkpoint::Slice{}}).id, "ok");
  EXPECT_EQ(refuse({.sizes = layout::Sizes{128, 64}}).id, "converted.size");
  EXPECT_EQ(refuse({.padded = layout::Sizes{256, 128}}).id, "converted.size");
  EXPECT_EQ(refuse({.sizes = layout::Sizes{128, 128}, .padded = layout::Sizes{128, 128}}).id, "ok");
}

TEST_F(Verify, RefusesToConvertTwice) {
  const auto again = convert(out_, folder_ / "again", recipe_of("marlin.nvfp4"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.why().id, "dialect.converted");
  EXPECT_NE(again.why().found.find("marlin.nvfp4"), std::string::npos);
  EXPECT_NE(again.why().remedy.find("unconvert"), std::string::npos);
}

// A manifest that was changed and given a right checksum: nothing in it is believed.
class Forged : public Verify {
 protected:
  void forge(const std::function<void(Manifest&)>& change) const {
    Manifest manifest = *read_manifest(out_);
    change(manifest);
    write_text(out_ + "/fp4moe.json", to_text(manifest));
  }
  // The tags of the first layer's file agree, and there are no other layers.
  void forge_all(const std::function<void(Manifest&)>& change) const {
    const std::string layer = out_ + "/experts-00000.safetensors";
    forge([&](Manifest& manifest) {
      manifest.layers.resize(1);
      manifest.files.resize(3);
      change(manifest);
      const auto tags = tags_of(manifest, manifest.layers[0]);
      const auto old = *tensor::MappedFile::open(layer);
      const auto header = *tensor::parse_safetensors(old.bytes());
      std::vector<tensor::TensorSpec> specs;
      for (const auto& entry : header.tensors)
        specs.push_back({entry.name, entry.dtype, entry.shape});
      auto writer = *tensor::SafetensorsWriter::create(layer, specs, tags);
      for (std::size_t t = 0; t < specs.size(); ++t)
        ASSERT_TRUE(writer.write(
            t, 0, old.bytes().subspan(header.tensors[t].begin, header.tensors[t].bytes)));
      manifest.files[2].header_bytes = writer.entries()[0].begin;
      ASSERT_TRUE(writer.finish());
      manifest.files[2].bytes = fs::file_size(layer);
    });
  }
  std::string opened_id() const {
    const auto opened = ConvertedFolder::open(out_);
    if (!opened) return opened.why().id;
    for (std::size_t layer = 0; layer < opened->manifest().layers.size(); ++layer)
      if (const auto packer = opened->packer(layer); !packer) return packer.why().id;
    return "ok";
  }
};

TEST_F(Forged, ManifestsDoNotFitTheFiles) {
  const Manifest sound = *read_manifest(out_);
  const auto id_after = [&](const std::function<void(Manifest&)>& change) {
    forge(change);
    std::string id = opened_id();
    EXPECT_FALSE(findings().empty());
    write_text(out_ + "/fp4moe.json", to_text(sound));
    return id;
  };
  EXPECT_EQ(opened_id(), "ok");
  EXPECT_EQ(id_after([](Manifest& m) { m.layout = "marlin.mxfp4"; }), "converted.layout");
  EXPECT_EQ(id_after([](Manifest& m) { m.generation = "2026-03"; }), "converted.generation");
  EXPECT_EQ(id_after([](Manifest& m) { m.slice.tensor_parallel = {1, 2}; }), "converted.shard");
  EXPECT_EQ(id_after([](Manifest& m) { m.backend = "MARLIN"; }), "converted.backend");
  EXPECT_EQ(id_after([](Manifest& m) { m.layers[0].problem.padded.hidden = 256; }),
            "converted.size");
  EXPECT_EQ(id_after([](Manifest& m) { m.layers[0].problem.has_bias = true; }), "converted.tensor");
  EXPECT_EQ(id_after([](Manifest& m) { m.layers[0].file = "nothing.safetensors"; }),
            "converted.manifest");
  EXPECT_EQ(id_after([](Manifest& m) { m.layers[0].record = Json::object(); }),
            "converted.manifest");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].tensors[0].shape = {1}; }), "converted.tensor");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].tensors[0].name = "x"; }), "converted.tensor");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].tensors.pop_back(); }), "converted.tensor");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].bytes += 1; }), "converted.file");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].header_bytes -= 8; }), "converted.file");
  EXPECT_EQ(id_after([](Manifest& m) { m.files[2].name = "../x"; }), "converted.manifest");
  EXPECT_EQ(id_after([](Manifest& m) { m.companions[0].name = "/etc/passwd"; }),
            "converted.manifest");
  EXPECT_EQ(id_after([](Manifest& m) { m.source_files[0].name = "../../x"; }),
            "converted.manifest");
}

TEST_F(Forged, SizesAreNotAllocatedFor) {
  for (const std::uint64_t huge : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    forge_all([&](Manifest& manifest) {
      manifest.layers[0].problem.experts = huge;
      manifest.layers[0].problem.global_experts = huge;
    });
    EXPECT_EQ(opened_id(), "converted.tensor");
  }
}

// Such a folder says nothing of generations, as there were none: it must not pass for the newest.
TEST_F(Forged, FoldersFromBeforeTheLayoutsFirstChangeAreRefused) {
  forge_all([](Manifest& manifest) { manifest.generation = ""; });
  const auto folder = ConvertedFolder::open(out_);
  ASSERT_TRUE(folder) << text(folder.why());
  const auto packer = folder->packer(0);
  ASSERT_FALSE(packer);
  EXPECT_EQ(packer.why().id, "converted.generation");
  EXPECT_EQ(packer.why().expected, "marlin.nvfp4 (2026-04)");
  EXPECT_EQ(packer.why().found, "marlin.nvfp4");
  EXPECT_FALSE(findings().empty());
}

TEST_F(Forged, TextsAreRefusedWhateverTheySay) {
  const std::string sound = read_text(out_ + "/fp4moe.json");
  const auto id_of = [](std::string_view given) {
    const auto manifest = manifest_from_text(given);
    return manifest ? "ok" : manifest.why().id;
  };
  EXPECT_EQ(id_of(sound), "ok");
  for (const std::string_view bad : {"", "{", "[]", "{}", "null", "{\"schema_version\":1}"})
    EXPECT_EQ(id_of(bad), "converted.manifest") << bad;
  EXPECT_EQ(id_of(sound + " "), "converted.manifest");
  std::string newer = sound;
  newer.replace(newer.find("\"version\": \"1\""), 14, "\"version\": \"2\"");
  EXPECT_EQ(id_of(newer), "converted.version");

  // Every member removed or of another type, with a right checksum.
  const Json whole = *parse_json(sound);
  const auto sealed = [](Json json) {
    json.erase("xxh3_128");
    json["xxh3_128"] = text(digest_of(json.dump(1) + "\n"));
    return json.dump(1) + "\n";
  };
  EXPECT_EQ(id_of(sealed(whole)), "ok");
  // `value` is the part of `changed` at "/`at`": visits what is in it, then changes it for a
  // moment.
  Json changed = whole;
  const std::function<void(Json&, const std::string&)> visit = [&](Json& value,
                                                                   const std::string& at) {
    if (value.is_object())
      for (auto& [key, child] : value.items()) visit(child, at + "/" + key);
    if (value.is_array() && !value.empty()) visit(value.front(), at + "/0");
    if (at.empty() || at.find("/record/") != std::string::npos || at == "/xxh3_128") return;
    const Json before = value;
    value = before.is_structured() ? Json(-1) : Json::array({Json()});
    const std::string id = id_of(sealed(changed));
    value = before;
    EXPECT_TRUE(id == "converted.manifest" || at.ends_with("/record")) << at << id;
  };
  visit(changed, "");
  EXPECT_EQ(changed, whole);
}

// A file that cannot be looked at (here a link to itself) is not called missing.
TEST_F(Verify, TellsWhatTheSystemRefusesFromDamage) {
  const std::string file = out_ + "/experts-00000.safetensors";
  fs::remove(file);
  fs::create_symlink(file, file);
  const auto verified = verify_folder(out_);
  ASSERT_FALSE(verified);
  EXPECT_EQ(verified.why().id, "file.open");
  EXPECT_EQ(verified.why().code, ErrorCode::failed);
  EXPECT_EQ(verified.why().path, file);
  fs::remove(file);
  const auto missing = verify_folder(out_);
  ASSERT_TRUE(missing);
  EXPECT_FALSE(missing->findings.empty());
}

// What cannot be mapped for want of memory is no damage.
TEST_F(Verify, TellsMissingMemoryFromDamage) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  for (const char* name : {"config.json", "experts-00000.safetensors", "fp4moe.json"}) {
    const std::uint64_t before = fs::file_size(fs::path(out_) / name);
    fs::resize_file(fs::path(out_) / name, std::uint64_t{1} << 30);
    const int status = fp4moe::testing::status_in_child([&] {
      fp4moe::testing::limit_memory(256 << 20);
      const auto report = verify_folder(out_, {});
      return report ? 100 : static_cast<int>(report.why().code);
    });
    EXPECT_EQ(status, static_cast<int>(ErrorCode::exhausted)) << name;
    fs::resize_file(fs::path(out_) / name, before);
  }
}

}  // namespace verify_test
}  // namespace fp4moe::convert
