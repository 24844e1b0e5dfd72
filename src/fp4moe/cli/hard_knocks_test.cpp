// Commands that run out of memory or threads, or whose files change under them: each ends with a
// documented status and leaves nothing behind.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "support/command_line.hpp"
#include "support/limits.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::cli {
namespace hard_knocks_test {

namespace fs = std::filesystem;
using fp4moe::testing::has_own_memory;
using fp4moe::testing::limit_memory;
using fp4moe::testing::status_in_child;
using fp4moe::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

// Takes no memory, and lets a text be read that a child wrote.
class SharedText final : public std::streambuf {
 public:
  SharedText()
      : memory_(static_cast<char*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    setp(memory_, memory_ + kBytes - 1);
  }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;
  ~SharedText() override { munmap(memory_, kBytes); }
  std::string text() const { return memory_; }

 private:
  static constexpr std::size_t kBytes = 1 << 16;
  char* memory_;
};

// A stream that uses up the process's memory at the first write after `out` exists.
class GreedyReader final : public std::streambuf {
 public:
  explicit GreedyReader(std::string out) : out_(std::move(out)) {}

 private:
  std::streamsize xsputn(const char*, std::streamsize size) override {
    take();
    return size;
  }
  int overflow(int c) override {
    take();
    return c;
  }
  void take() {
    struct stat found {};
    if (is_full_ || stat(out_.c_str(), &found) != 0) return;
    is_full_ = true;
    limit_memory(0);
    // What the allocator keeps for later, by size; kept until the process ends.
    for (std::size_t size = std::size_t{1} << 20; size > 0; size -= size > 1024 ? size / 2 : 8)
      while (void* const memory = std::malloc(size)) kept_ = memory;
  }

  std::string out_;
  void* volatile kept_ = nullptr;
  bool is_full_ = false;
};

class HardKnocks : public ::testing::Test {
 protected:
  void synth(const std::string& hidden, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"synth", "--model",  "gpt-oss-20b", "--experts",
                                   "8",     "--hidden", hidden,        "--intermediate",
                                   "256",   "-o",       source_};
    words.insert(words.end(), more.begin(), more.end());
    ASSERT_EQ(run(words).status, 0);
  }

  // With ever more address space: done, or out of memory.
  void expect_done_or_exhausted(const std::vector<std::string>& words) {
    if (!has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
    constexpr int kDone = 0, kExhausted = 6;
    int exhausted = 0;
    for (std::uint64_t more = 0; more < (96 << 20); more += 3 << 20) {
      const int status = status_in_child([&] {
        limit_memory(more);
        return run(words).status;
      });
      EXPECT_TRUE(status == kDone || status == kExhausted)
          << words[0] << " with " << (more >> 20) << " MiB: status " << status;
      exhausted += status == kExhausted ? 1 : 0;
      fs::remove_all(folder_ / "out");
    }
    EXPECT_GT(exhausted, 0);
  }

  // The source loses its second half as soon as the work has begun.
  Outcome run_while_it_shrinks(const std::vector<std::string>& words) {
    std::vector<const char*> pointers{"fp4moe"};
    for (const std::string& word : words) pointers.push_back(word.c_str());
    std::ostringstream out, err;
    std::atomic<bool> is_short{false};
    const std::string file = source_ + "/model.safetensors";
    const int status =
        run_main(static_cast<int>(pointers.size()), pointers.data(),
                 {.out = out,
                  .err = err,
                  .on_progress = [&](std::string_view, std::uint64_t, std::uint64_t) {
                    if (!is_short.exchange(true)) fs::resize_file(file, fs::file_size(file) / 2);
                  }});
    EXPECT_TRUE(is_short);
    return {status, out.str(), err.str()};
  }

  // Memory ends at the command's first words after `trigger` exists; only what it says of errors
  // is kept.
  static Outcome run_until_memory_ends(const std::vector<std::string>& words,
                                       const std::string& trigger) {
    SharedText told;
    const int status = status_in_child([&] {
      GreedyReader reader(trigger);
      std::ostream to(&reader), err(&told);
      std::vector<const char*> pointers{"fp4moe"};
      for (const std::string& word : words) pointers.push_back(word.c_str());
      return run_main(static_cast<int>(pointers.size()), pointers.data(), {.out = to, .err = err});
    });
    return {status, {}, told.text()};
  }

  TemporaryFolder folder_{};
  std::string source_ = folder_ / "source";
};

TEST_F(HardKnocks, RanksOfThreadsRunOutOfMemoryInWords) {
  synth("256");
  expect_done_or_exhausted({"run", source_, "--tp", "2", "--tokens", "8", "--threads", "2"});
  expect_done_or_exhausted({"run", source_, "--ep", "4", "--tokens", "8", "--threads", "1"});
}

TEST_F(HardKnocks, EnginesRunOutOfMemoryInWords) {
  synth("256");
  expect_done_or_exhausted({"run", source_, "--tokens", "8", "--threads", "3", "--check"});
}

TEST_F(HardKnocks, AnOutputThatStandsIsToldOfWithoutAnyMemory) {
  if (!has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  synth("256");
  ASSERT_EQ(run({"synth", "--adapter-for", source_, "-o", folder_ / "adapter"}).status, 0);
  const std::string out = folder_ / "out";
  struct Case {
    std::vector<std::string> words;
    std::string trigger, told;
  };
  for (Case& each : std::vector<Case>{
           {{"convert", source_, "--layout", "marlin.mxfp4"}, out, "the output is complete"},
           {{"convert", source_, "--layout", "marlin.mxfp4", "--tp", "2"},
            out + "/rank-0",
            "the ranks in it are complete"},
           {{"merge", source_, folder_ / "adapter"}, out, "the output is complete"}}) {
    each.words.insert(each.words.end(), {"-o", out, "--threads", "1"});
    const Outcome outcome = run_until_memory_ends(each.words, each.trigger);
    EXPECT_EQ(outcome.status, 6) << each.words[0] << ": " << outcome.err;
    EXPECT_TRUE(has(outcome.err, out + ": " + each.told)) << each.words[0] << ": " << outcome.err;
    fs::remove_all(out);
  }
}

TEST_F(HardKnocks, AFolderWithoutAFinishedRankIsNotCalledComplete) {
  if (!has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  synth("256");
  const std::string out = folder_ / "out";
  const Outcome outcome = run_until_memory_ends(
      {"convert", source_, "--layout", "marlin.mxfp4", "--tp", "2", "-o", out, "--threads", "1"},
      out);
  EXPECT_EQ(outcome.status, 6) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "memory")) << outcome.err;
  EXPECT_FALSE(has(outcome.err, "complete")) << outcome.err;
}

TEST_F(HardKnocks, AnErrorKeepsItsSentenceAndStatusWithoutMemoryForItsWords) {
  if (!has_own_memory()) GTEST_SKIP() << "a sanitizer needs all address space";
  const std::vector<std::string> words{"inspect", folder_ / "no\nsuch", "--json"};
  const Outcome usual = run(words);
  const Outcome outcome = run_until_memory_ends(words, folder_ / "");
  EXPECT_NE(usual.status, 6) << usual.err;
  EXPECT_EQ(outcome.status, usual.status) << outcome.err;
  EXPECT_TRUE(has(outcome.err, (folder_ / "no?such") + ": ")) << outcome.err;
  const std::size_t id = usual.err.find('[');
  EXPECT_TRUE(has(outcome.err, usual.err.substr(id, usual.err.find(']') - id))) << outcome.err;
}

TEST_F(HardKnocks, MissingMemoryIsNoDamage) {
  synth("256");
  ASSERT_EQ(run({"convert", source_, "--layout", "marlin.mxfp4", "-o", folder_ / "sound"}).status,
            0);
  expect_done_or_exhausted({"verify", folder_ / "sound", "--deep"});
  expect_done_or_exhausted({"unconvert", folder_ / "sound", "-o", folder_ / "out"});
  expect_done_or_exhausted({"lint", source_, "--deep"});
  expect_done_or_exhausted({"inspect", source_});
}

TEST_F(HardKnocks, ASourceThatBecomesShorterIsAnErrorAndNoSignal) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"convert", source_, "--layout", "marlin.mxfp4", "--threads", "1", "-o",
            folder_ / "out"},
           {"transcode", source_, "--to", "quark", "--threads", "1", "-o", folder_ / "out"},
           {"lint", source_, "--deep", "--threads", "1"}}) {
    SCOPED_TRACE(words[0]);
    synth("2048");
    const Outcome outcome = run_while_it_shrinks(words);
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_TRUE(has(outcome.err, source_ + "/model.safetensors")) << outcome.err;
    EXPECT_TRUE(has(outcome.err, "[file.changed]")) << outcome.err;
    EXPECT_EQ(folder_.names(), std::vector<std::string>{"source"});
    fs::remove_all(source_);
  }
}

TEST_F(HardKnocks, APipeInAFilesPlaceIsRefusedAtOnce) {
  synth("256");
  ASSERT_EQ(run({"synth", "--adapter-for", source_, "-o", folder_ / "adapter"}).status, 0);
  const std::string config = folder_ / "adapter/adapter_config.json";
  fs::remove(config);
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"merge", source_, folder_ / "adapter", "-o", folder_ / "out"},
           {"run", source_, "--adapter", folder_ / "adapter", "--tokens", "2"},
           {"explain", "--config", config}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 3) << words[0];
    EXPECT_TRUE(has(outcome.err, "file.not_regular")) << outcome.err;
  }
}

}  // namespace hard_knocks_test
}  // namespace fp4moe::cli
