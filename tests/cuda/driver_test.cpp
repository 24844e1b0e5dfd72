// The driver's calls on a real device.
#include "fp4moe/kernels/cuda/driver.hpp"

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "probes.hpp"
#include "test_device.hpp"

namespace fp4moe::kernels::cuda {
namespace driver_test {

constexpr std::uint32_t kThreads = 128;

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = test_device();
    if (!opened) GTEST_SKIP() << text(opened.why());
    device_ = *opened;
    auto stream = device_->make_stream();
    ASSERT_TRUE(stream) << text(stream.why());
    stream_ = *stream;
  }
  void TearDown() override {
    if (device_) device_->drop_stream(stream_);
  }

  Memory upload(const std::vector<std::uint32_t>& values) const {
    const auto bytes = std::as_bytes(std::span(values));
    auto memory = device_->allocate(bytes.size());
    EXPECT_TRUE(memory && device_->upload(memory->data(), bytes, stream_));
    return memory ? std::move(*memory) : Memory();
  }
  std::vector<std::uint32_t> download(const Memory& memory) const {
    std::vector<std::uint32_t> values(memory.size() / 4);
    EXPECT_TRUE(
        device_->download(std::as_writable_bytes(std::span(values)), memory.data(), stream_));
    const auto done = device_->wait(stream_);
    EXPECT_TRUE(done) << text(done.why());
    return values;
  }
  Result<Done> scale(const ScaleParams& params, bool has_pdl = true) const {
    const auto kernel = device_->function("fp4moe_test_scale");
    if (!kernel) return kernel.why();
    return device_->launch({.function = *kernel,
                            .blocks = (params.count + kThreads - 1) / kThreads,
                            .threads = kThreads,
                            .has_pdl = has_pdl,
                            .params = &params},
                           stream_);
  }

  std::shared_ptr<const Device> device_{};
  Stream stream_ = nullptr;
};

std::vector<std::uint32_t> counting(std::uint32_t size) {
  std::vector<std::uint32_t> values(size);
  std::iota(values.begin(), values.end(), 0u);
  return values;
}

TEST_F(OnDevice, FactsAreThoseOfHopper) {
  const DeviceFacts& facts = device_->facts();
  EXPECT_EQ(facts.major, 9);
  EXPECT_GT(facts.multiprocessors, 0);
  EXPECT_GE(facts.shared_bytes, 227u * 1024);
  EXPECT_GT(facts.memory_bytes, std::uint64_t{1} << 30);
  EXPECT_GT(facts.l2_bytes, 0u);
  EXPECT_TRUE(facts.launches_cooperatively);
  EXPECT_FALSE(facts.name.empty());
  const auto left = device_->free_bytes();
  ASSERT_TRUE(left) << text(left.why());
  EXPECT_LE(*left, facts.memory_bytes);
}

TEST_F(OnDevice, AChainOfOverlappingLaunchesKeepsItsOrder) {
  constexpr std::uint32_t kCount = 100'003;
  Memory values = upload(counting(kCount));
  for (int i = 0; i < 20; ++i) {
    const auto done = scale({values.as<std::uint32_t>(), values.as<std::uint32_t>(), kCount, 3, 1});
    ASSERT_TRUE(done) << text(done.why());
  }
  std::vector<std::uint32_t> expected = counting(kCount);
  for (std::uint32_t& value : expected)
    for (int i = 0; i < 20; ++i) value = value * 3 + 1;
  EXPECT_EQ(download(values), expected);
}

TEST_F(OnDevice, AGraphReplaysWhatWasCaptured) {
  Memory values = upload(counting(1000));
  ASSERT_TRUE(device_->wait(stream_));
  ASSERT_TRUE(device_->begin_capture(stream_));
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(scale({values.as<std::uint32_t>(), values.as<std::uint32_t>(), 1000, 1, 5}));
  const auto graph = device_->end_capture(stream_);
  ASSERT_TRUE(graph) << text(graph.why());
  EXPECT_EQ(download(values), counting(1000));  // captured, not run
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(device_->replay(*graph, stream_));
  std::vector<std::uint32_t> expected = counting(1000);
  for (std::uint32_t& value : expected) value += 30;
  EXPECT_EQ(download(values), expected);
  device_->drop_graph(*graph);
}

TEST_F(OnDevice, ASpoiltCaptureIsAnErrorAndTheStreamGoesOn) {
  ASSERT_TRUE(device_->begin_capture(stream_));
  EXPECT_FALSE(device_->wait(stream_));
  const auto graph = device_->end_capture(stream_);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.why().id, "cuda.failed");
  EXPECT_TRUE(device_->wait(stream_));
}

TEST_F(OnDevice, BlocksOfACooperativeLaunchAreThereTogether) {
  const auto kernel = device_->function("fp4moe_test_meet");
  ASSERT_TRUE(kernel) << text(kernel.why());
  const auto blocks = static_cast<std::uint32_t>(device_->facts().multiprocessors);
  const auto shared = static_cast<std::uint32_t>(device_->facts().shared_bytes);
  ASSERT_TRUE(device_->allow_shared(*kernel, shared));
  EXPECT_FALSE(device_->allow_shared(*kernel, shared + 4096));
  Memory counter = upload({0}), seen = upload(std::vector<std::uint32_t>(blocks));
  const MeetParams params{counter.as<std::uint32_t>(), seen.as<std::uint32_t>()};
  Launch launch{.function = *kernel,
                .blocks = blocks,
                .threads = kThreads,
                .shared_bytes = shared,
                .is_cooperative = true,
                .has_pdl = true,
                .params = &params};
  const auto done = device_->launch(launch, stream_);
  ASSERT_TRUE(done) << text(done.why());
  EXPECT_EQ(download(seen), std::vector<std::uint32_t>(blocks, blocks));

  launch.blocks = blocks + 1;  // could never meet
  const auto refused = device_->launch(launch, stream_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.why().message.find("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
            std::string::npos);
}

TEST_F(OnDevice, EventsMeasureTime) {
  const auto begin = device_->make_event(), end = device_->make_event();
  ASSERT_TRUE(begin && end);
  Memory values = upload(counting(1 << 20));
  ASSERT_TRUE(device_->record(*begin, stream_));
  ASSERT_TRUE(
      scale({values.as<std::uint32_t>(), values.as<std::uint32_t>(), 1 << 20, 2, 0}, false));
  ASSERT_TRUE(device_->record(*end, stream_));
  const auto time = device_->microseconds(*begin, *end);
  ASSERT_TRUE(time) << text(time.why());
  EXPECT_GT(*time, 0);
  EXPECT_LT(*time, 1e6);
  device_->drop_event(*begin);
  device_->drop_event(*end);
}

TEST_F(OnDevice, CopiesBetweenPinnedAndDeviceMemory) {
  auto pinned = device_->pin(4096);
  ASSERT_TRUE(pinned) << text(pinned.why());
  std::memset(pinned->data(), 7, 4096);
  auto first = device_->allocate(4096), second = device_->allocate(4096);
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(device_->upload(first->data(), {pinned->data(), 4096}, stream_));
  ASSERT_TRUE(device_->copy(second->data(), first->data(), 4096, stream_));
  ASSERT_TRUE(device_->clear(second->data(), 9, 4, stream_));
  EXPECT_EQ(download(*second)[0], 0x09090909u);
  EXPECT_EQ(download(*second)[1023], 0x07070707u);
}

TEST_F(OnDevice, MemoryThatIsNotThereIsAnErrorWithBytes) {
  const auto memory = device_->allocate(std::size_t{1} << 45);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.why().id, "cuda.memory");
  EXPECT_EQ(memory.why().code, ErrorCode::exhausted);
  EXPECT_NE(memory.why().expected.find("35184372088832"), std::string::npos);
  EXPECT_TRUE(device_->allocate(1 << 20));
  const auto none = device_->allocate(0);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->data(), nullptr);
}

TEST_F(OnDevice, PointersOfTheHostAreRefused) {
  const std::vector<std::uint32_t> here(4);
  EXPECT_EQ(device_->check_pointer(nullptr, "x").why().id, "cuda.pointer");
  EXPECT_EQ(device_->check_pointer(here.data(), "x").why().id, "cuda.pointer");
  const Memory there = upload(here);
  EXPECT_TRUE(device_->check_pointer(there.data(), "x"));
  EXPECT_TRUE(device_->check_pointer(there.data() + 5, "x"));
  const auto pinned = device_->pin(64);
  EXPECT_TRUE(pinned && device_->check_pointer(pinned->data(), "x"));
}

TEST_F(OnDevice, ManyThreadsUseOneDevice) {
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 1; seed <= 8; ++seed)
    threads.emplace_back([this, seed] {
      for (int round = 0; round < 20; ++round) {
        Memory values = upload(counting(1000));
        EXPECT_TRUE(
            scale({values.as<std::uint32_t>(), values.as<std::uint32_t>(), 1000, seed, seed}));
        EXPECT_EQ(download(values)[999], 999 * seed + seed);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(OnDevice, UnknownKernelsAndOrdinalsAreErrors) {
  EXPECT_EQ(device_->function("fp4moe_sm90_nothing").why().id, "cuda.kernel");
  EXPECT_EQ(Device::open(4096, {.kernels = test_cubins()}).why().id, "cuda.ordinal");
  EXPECT_EQ(Device::open(-1, {.kernels = test_cubins()}).why().id, "cuda.ordinal");
}

TEST(OpenDevice, IsOneObjectForAllAndLoadsEveryKernel) {
  const auto first = Device::open(0);
  if (!first) GTEST_SKIP() << text(first.why());
  const auto second = Device::open(0);
  ASSERT_TRUE(second);
  EXPECT_EQ(first->get(), second->get());
}

TEST(OpenDevice, RefusesWhatIsNoMachineCode) {
  const auto device = test_device();
  if (!device) GTEST_SKIP() << text(device.why());
  std::vector<std::byte> noise(4096, std::byte{0x5A});
  noise.back() = {};  // the driver may take it for text
  const Cubin wrong{"noise", noise};
  const auto opened = Device::open(0, {.kernels = std::span(&wrong, 1)});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.why().id, "cuda.load");
}

// Last, since nothing works on the device afterwards.
TEST(ZLostContext, GivesAnErrorFromEveryCallAndNeverCrashes) {
  const auto opened = test_device();
  if (!opened) GTEST_SKIP() << text(opened.why());
  const Device& device = **opened;
  const auto kernel = device.function("fp4moe_test_scale");
  const auto before = device.allocate(4096);
  const auto event = device.make_event(), stream = device.make_stream();
  ASSERT_TRUE(kernel && before && event && stream);
  const ScaleParams wild{nullptr, nullptr, 128, 1, 1};
  ASSERT_TRUE(device.launch({.function = *kernel, .threads = kThreads, .params = &wild}, *stream));
  const auto lost = device.wait(*stream);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.why().id, "cuda.failed");
  EXPECT_NE(lost.why().message.find("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos);
  EXPECT_FALSE(lost.why().remedy.empty());
  EXPECT_FALSE(device.allocate(16));
  EXPECT_FALSE(device.clear(before->data(), 0, 16, *stream));
  EXPECT_FALSE(device.wait(*stream));
  // The driver is free to answer these either way.
  static_cast<void>(device.record(*event, *stream));
  static_cast<void>(device.begin_capture(*stream));
  static_cast<void>(device.end_capture(*stream));
  device.drop_event(*event);
  device.drop_stream(*stream);
}

}  // namespace driver_test
}  // namespace fp4moe::kernels::cuda
