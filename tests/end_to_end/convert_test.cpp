// Converting as a user meets it: killed at any moment and resumed, within limited memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "child.hpp"
#include "fp4moe/base/random.hpp"
#include "support/converted_folder.hpp"

namespace fp4moe {
namespace convert_test {

namespace fs = std::filesystem;
using convert::testing::expect_same_files;
using convert::testing::recipe_of;
using end_to_end::Child;
using end_to_end::run;
using tensor::testing::TemporaryFolder;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

void make_model(const std::string& out, const char* experts, const char* layers) {
  ASSERT_EQ(
      run({"synth", "--model", "gpt-oss-20b", "--experts", experts, "--layers", layers, "-o", out}),
      0);
}

std::size_t finished_files(const std::string& staging) {
  std::error_code code;
  std::size_t count = 0;
  for (fs::directory_iterator entry(staging, code), end; !code && entry != end;
       entry.increment(code))
    ++count;
  return count;
}

// Waits, without sleeping, until so many files stand in the staging folder or the child has ended.
void until_files(Child& child, const std::string& staging, std::size_t wanted) {
  while (!child.poll() && finished_files(staging) < wanted) sched_yield();
}

TEST(ConvertKill, AtRandomPointsThenResumingGivesTheBytesOfAnUndisturbedRun) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_model(folder / "source", "2", "4"));
  const std::string out = folder / "out", staging = folder / ".out.partial";
  const std::vector<std::string> words{
      "convert", folder / "source", "--layout", "marlin.mxfp4", "--pad-hidden",
      "3072",    "--threads",       "2"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ASSERT_EQ(run(with({"-o", folder / "whole"})), 0);
  SplitMix64 random(2026);
  int killed = 0, resumed = 0;
  for (int round = 0; round < 6; ++round) {
    for (int attempt = 0; attempt < 3 && !fs::exists(out); ++attempt) {
      Child child(with({"-o", out, "--resume"}));
      ASSERT_TRUE(child.has_started());
      until_files(child, staging, random.next() % 8);
      for (std::uint64_t i = random.next() % 2000; i > 0; --i) sched_yield();
      child.send(SIGKILL);
      child.wait();
      killed += child.status() == 128 + SIGKILL ? 1 : 0;
      resumed += finished_files(staging) > 1 ? 1 : 0;
    }
    if (!fs::exists(out)) {
      ASSERT_EQ(run(with({"-o", out, "--resume"})), 0);
    }
    expect_same_files(folder / "whole", out);
    EXPECT_FALSE(fs::exists(staging));
    fs::remove_all(out);
  }
  EXPECT_GT(killed, 3);
  EXPECT_GT(resumed, 1);
}

TEST(ConvertInterrupt, EndsWith130AndCanBeResumed) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_model(folder / "source", "8", "2"));
  const std::string out = folder / "out";
  Child child(
      {"convert", folder / "source", "--layout", "as_loaded.mxfp4", "-o", out, "--threads", "1"});
  until_files(child, folder / ".out.partial", 3);
  child.send(SIGINT);
  EXPECT_EQ(child.status(), 130);
  EXPECT_FALSE(fs::exists(out));
  EXPECT_TRUE(fs::exists(folder / ".out.partial/fp4moe-journal.json"));
  EXPECT_EQ(
      run({"convert", folder / "source", "--layout", "as_loaded.mxfp4", "-o", out, "--resume"}), 0);
  EXPECT_EQ(run({"verify", out, "--deep"}), 0);
}

TEST(ConvertFullDisk, EndsWith6) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_model(folder / "source", "4", "1"));
  Child child({"convert", folder / "source", "--layout", "as_loaded.mxfp4", "--experts-only", "-o",
               folder / "out"},
              20 * kMiB);
  EXPECT_EQ(child.status(), 6);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// An expert of gpt-oss-20b is 12.6 MiB, the layer 400 MiB.
TEST(ConvertMemory, StaysWithinWhatIsAllowedWhateverTheThreads) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_model(folder / "source", "32", "1"));
  const std::string source = folder / "source", out = folder / "out";
  struct Row {
    const char *layout, *threads;
    std::uint64_t limit;
  };
  for (const Row& row : {Row{"marlin.mxfp4", "1", 96 * kMiB}, Row{"marlin.mxfp4", "16", 96 * kMiB},
                         Row{"triton.mxfp4", "4", 200 * kMiB}}) {
    Child child({"convert", source, "--layout", row.layout, "--device", "h100", "--pad-hidden",
                 "3072", "--pad-intermediate", "3072", "--threads", row.threads, "--max-memory",
                 std::to_string(row.limit), "-o", out});
    EXPECT_EQ(child.status(), 0);
    EXPECT_LE(child.peak_bytes(), row.limit) << row.layout << " with " << row.threads << " threads";
    fs::remove_all(out);
  }
  Child refused({"convert", source, "--layout", "marlin.mxfp4", "--pad-hidden", "3072",
                 "--max-memory", "64MB", "-o", out});
  EXPECT_EQ(refused.status(), 6);
}

// A file of one BF16 tensor that is no expert's, none of its bytes on the disk.
void make_sparse(const std::string& path, std::uint64_t bytes) {
  std::string header = R"({"vision.embedding.weight":{"dtype":"BF16","shape":[)" +
                       std::to_string(bytes / 2) + R"(],"data_offsets":[0,)" +
                       std::to_string(bytes) + "]}}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();  // little-endian, as every machine we run on
  std::string front(sizeof length, '\0');
  std::memcpy(front.data(), &length, sizeof length);
  tensor::testing::write_text(path, front + header);
  fs::resize_file(path, front.size() + header.size() + bytes);
}

// Claims of terabytes cost nothing to whoever makes such a file.
TEST(SparseFiles, AreReadInLittleMemory) {
  const TemporaryFolder folder;
  const std::string source = folder / "source", out = folder / "out";
  ASSERT_NO_FATAL_FAILURE(make_model(source, "2", "1"));
  make_sparse(source + "/sparse.safetensors", std::uint64_t{1} << 40);
  const std::vector<std::vector<std::string>> lines{
      {"inspect", source},
      {"lint", source, "--deep"},
      {"plan", source},
      {"run", source, "--tokens", "2"},
      {"convert", source, "--layout", "marlin.mxfp4", "--experts-only", "--threads", "2",
       "--max-memory", std::to_string(128 * kMiB), "-o", out},
      {"verify", out, "--deep"}};
  for (const std::vector<std::string>& words : lines) {
    Child child(words);
    EXPECT_EQ(child.status(), 0) << words.front();
    EXPECT_LE(child.peak_bytes(), 192 * kMiB) << words.front();
  }
}

// The tensor and the file beside it go through as they are: into a converted folder, back, and into
// another dialect.
TEST(SparseFiles, AreCopiedWithinTheMemoryThatThePlanTells) {
  const TemporaryFolder folder;
  const std::string source = folder / "source", out = folder / "out";
  ASSERT_NO_FATAL_FAILURE(make_model(source, "2", "1"));
  make_sparse(source + "/sparse.safetensors", std::uint64_t{1} << 30);
  tensor::testing::write_text(source + "/notes.txt", "");
  fs::resize_file(source + "/notes.txt", std::uint64_t{1} << 29);
  const auto checkpoint = checkpoint::Checkpoint::open(source);
  ASSERT_TRUE(checkpoint);
  const auto plan = convert::plan_folder(*checkpoint, source, recipe_of("marlin.mxfp4"));
  ASSERT_TRUE(plan);
  const std::uint64_t bound = convert::memory_of(*plan, 2);
  ASSERT_LT(bound, 128 * kMiB);
  const std::vector<std::vector<std::string>> lines{
      {"convert", source, "--layout", "marlin.mxfp4", "--threads", "2", "--max-memory",
       std::to_string(bound), "-o", out},
      {"verify", out, "--deep", "--source", source, "--threads", "2"},
      {"unconvert", out, "-o", folder / "back", "--threads", "2"},
      {"transcode", source, "--to", "quark", "-o", folder / "quark", "--threads", "2"}};
  for (const std::vector<std::string>& words : lines) {
    Child child(words);
    EXPECT_EQ(child.status(), 0) << words.front();
    EXPECT_LE(child.peak_bytes(), bound) << words.front();
  }
}

}  // namespace convert_test
}  // namespace fp4moe
