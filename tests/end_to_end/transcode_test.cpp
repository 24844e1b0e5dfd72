// Transcoding as a user meets it: a process with limited memory, killed at the wrong moment, on a
// disk that is full.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "child.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/write/expert_layout.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "support/files.hpp"

namespace fp4moe {
namespace transcode_test {

using end_to_end::Child;
using end_to_end::run;
using end_to_end::until_it_writes;
using tensor::testing::TemporaryFolder;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// One gpt-oss-20b layer: 32 experts of 12.6 MiB.
void make_layer(const std::string& out) {
  ASSERT_EQ(run({"synth", "--model", "gpt-oss-20b", "--seed", "1", "-o", out}), 0);
}

std::uint64_t bound_of(const std::string& path) {
  const Result<checkpoint::Checkpoint> source = checkpoint::Checkpoint::open(path);
  EXPECT_TRUE(source);
  if (!source) return 0;
  const checkpoint::LayerTensors& layer = source->layers()[0];
  const std::uint64_t expert =
      checkpoint::expert_layout(*layer.row, layer.shape, tensor::DType::bf16).bytes();
  return 2 * expert + 64 * kMiB;
}

class TranscodeMemory : public ::testing::TestWithParam<std::array<const char*, 2>> {};

TEST_P(TranscodeMemory, StaysWithinTwoExpertsAnd64MiBWhateverTheThreads) {
  const auto [from, to] = GetParam();
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_layer(folder / "layer"));
  std::string source = folder / "layer";
  if (std::string(from) != "gpt-oss") {
    ASSERT_EQ(run({"transcode", source, "--to", from, "-o", folder / "source"}), 0);
    source = folder / "source";
  }
  const std::uint64_t bound = bound_of(source);
  std::uint64_t size = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source))
    size += entry.file_size();
  ASSERT_GT(size, 3 * bound);

  for (const char* threads : {"1", "16"}) {
    const std::string out = folder / (std::string("out-") + threads);
    Child child({"transcode", source, "--to", to, "--threads", threads, "-o", out});

    EXPECT_EQ(child.status(), 0);
    EXPECT_LE(child.peak_bytes(), bound) << threads << " threads";
    std::filesystem::remove_all(out);
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, TranscodeMemory,
                         ::testing::Values(std::array{"gpt-oss", "gguf"},
                                           std::array{"gguf", "gpt-oss"},
                                           std::array{"gpt-oss", "compressed-tensors"},
                                           std::array{"compressed-tensors", "gpt-oss"}),
                         [](const auto& pair) {
                           std::string name = std::string(pair.param[0]) + "_to_" + pair.param[1];
                           std::erase(name, '-');
                           return name;
                         });

TEST(TranscodeKill, LeavesTheTargetWholeOrAbsentAndTheNextRunSucceeds) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_layer(folder / "layer"));
  const std::string out = folder / "out";
  int absent = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    {
      Child child({"transcode", folder / "layer", "--to", "quark", "-o", out});
      ASSERT_TRUE(child.has_started());
      until_it_writes(child, folder / ".out.partial");
      for (int i = 0; i < attempt * 1000; ++i) sched_yield();  // a little further each time
      child.send(SIGKILL);
      child.wait();
    }
    if (!std::filesystem::exists(out)) {
      ++absent;
      continue;
    }
    EXPECT_TRUE(checkpoint::Checkpoint::open(out));
    std::filesystem::remove_all(out);
  }
  EXPECT_GT(absent, 0);

  EXPECT_EQ(run({"transcode", folder / "layer", "--to", "quark", "-o", out}), 0);

  EXPECT_TRUE(checkpoint::Checkpoint::open(out));
  EXPECT_FALSE(std::filesystem::exists(folder / ".out.partial"));
  EXPECT_EQ(folder.names().size(), 2u);
}

TEST(TranscodeInterrupt, EndsWith130AndLeavesNothing) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_layer(folder / "layer"));
  for (const char* to : {"quark", "compressed-tensors"}) {
    const std::string out = folder / "out";
    Child child({"transcode", folder / "layer", "--to", to, "-o", out, "--threads", "1"});
    ASSERT_TRUE(child.has_started());
    until_it_writes(child, folder / ".out.partial");
    child.send(SIGINT);

    EXPECT_EQ(child.status(), 130);
    EXPECT_EQ(folder.names(), std::vector<std::string>{"layer"});
    std::filesystem::remove_all(out);
  }
}

TEST(TranscodeFullDisk, EndsWith6BeforeTheWorkAndLeavesNothing) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(make_layer(folder / "layer"));

  Child child({"transcode", folder / "layer", "--to", "quark", "-o", folder / "out"}, 100 * kMiB);

  EXPECT_EQ(child.status(), 6);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"layer"});
}

TEST(Quantize, IsInterruptedAndBoundedToo) {
  const TemporaryFolder folder;
  ASSERT_EQ(run({"synth", "--model", "gpt-oss-20b", "--dialect", "bf16", "--experts", "8", "-o",
                 folder / "plain"}),
            0);
  {
    Child child({"quantize", folder / "plain", "-o", folder / "out", "--threads", "1"});
    until_it_writes(child, folder / ".out.partial");
    child.send(SIGTERM);
    EXPECT_EQ(child.status(), 130);
    EXPECT_EQ(folder.names(), std::vector<std::string>{"plain"});
  }

  Child child({"quantize", folder / "plain", "-o", folder / "out", "--threads", "1"});

  EXPECT_EQ(child.status(), 0);
  // One expert in bfloat16 is 47.5 MiB, quantized 12.6 MiB; the checkpoint 380 MiB.
  EXPECT_LE(child.peak_bytes(), 160 * kMiB);
}

}  // namespace transcode_test
}  // namespace fp4moe
