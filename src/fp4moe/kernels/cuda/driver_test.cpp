// The host's side on any machine: a library that stands in for the driver (tests/cuda/fake_driver)
// gives every answer there is. What needs a device is in tests/cuda/driver_test.cpp.
#include "fp4moe/kernels/cuda/driver.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/fake_driver.hpp"

namespace fp4moe::kernels::cuda {
namespace driver_test {

Cubin fake_cubin(const std::string& code) {
  return {"fake", std::as_bytes(std::span(code.data(), code.size() + 1))};
}

// A function of the driver that stands in.
template <class Function>
Function* fake_function(const char* name) {
  auto* const found = fake_driver_function<Function>(FP4MOE_FAKE_DRIVER, name);
  EXPECT_NE(found, nullptr) << name;
  return found;
}

class WithFakeDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = open_fake_driver(FP4MOE_FAKE_DRIVER);
    ASSERT_NE(fake_, nullptr) << dlerror();
    *fake_ = FakeDriver{};
  }
  void TearDown() override {
    fake_->failing.clear();
    EXPECT_EQ(fake_->pushed, fake_->popped);
  }

  Result<std::shared_ptr<const Device>> open(int ordinal = 0) const {
    return Device::open(ordinal, from_);
  }
  // Opening and then this call, which the driver answers with `code`.
  template <class Call>
  Error failing(const char* function, int code, const Call& call) const {
    const auto device = open();
    if (!device) return device.why();
    fake_->failing[function] = code;
    const auto result = call(**device);
    fake_->failing.clear();
    return result ? Error{} : result.why();
  }

  FakeDriver* fake_ = nullptr;
  std::string code_ = std::string(kFakeCode) + "fp4moe_fake";
  std::string other_code_ = std::string(kFakeCode) + "fp4moe_other";
  std::array<Cubin, 2> cubins_{fake_cubin(other_code_), fake_cubin(code_)};
  DriverFrom from_{.library = FP4MOE_FAKE_DRIVER, .kernels = cubins_};
};

TEST(Driver, ABuildWithoutKernelsSaysSo) {
  const auto found = devices({.library = FP4MOE_FAKE_DRIVER, .kernels = {}});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.why().id, "cuda.build");
  EXPECT_EQ(found.why().code, ErrorCode::unavailable);
  EXPECT_NE(found.why().remedy.find("make cuda"), std::string::npos);
}

TEST_F(WithFakeDriver, ALibraryThatIsNotThereIsNamed) {
  from_.library = "libfp4moe_no_such_driver.so.1";
  const auto device = open();
  ASSERT_FALSE(device);
  EXPECT_EQ(device.why().id, "cuda.driver");
  EXPECT_EQ(device.why().code, ErrorCode::unavailable);
  EXPECT_NE(text(device.why()).find("libfp4moe_no_such_driver.so.1"), std::string::npos);
  EXPECT_NE(device.why().remedy.find("install the NVIDIA driver"), std::string::npos);
}

TEST_F(WithFakeDriver, ALibraryThatIsNoDriverLacksAFunction) {
  from_.library = "libm.so.6";
  const auto device = open();
  ASSERT_FALSE(device);
  EXPECT_EQ(device.why().id, "cuda.driver");
  EXPECT_EQ(device.why().expected, "cuInit");
}

TEST_F(WithFakeDriver, ADriverThatDoesNotStartOrIsTooOldIsRefused) {
  fake_->failing["cuInit"] = 803;
  const auto broken = devices(from_);
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.why().id, "cuda.driver");
  EXPECT_NE(broken.why().message.find("cuInit returned 803"), std::string::npos);
  fake_->failing.clear();

  fake_->version = 11080;
  const auto old = devices(from_);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.why().id, "cuda.driver");
  EXPECT_EQ(old.why().expected, "CUDA 12.0 or newer");
  EXPECT_EQ(old.why().found, "CUDA 11.8");
}

TEST_F(WithFakeDriver, NoDeviceIsSomethingElseThanNoDriver) {
  fake_->failing["cuInit"] = 100;
  EXPECT_EQ(devices(from_).why().id, "cuda.device");
  fake_->failing.clear();
  fake_->devices = 0;
  const auto none = devices(from_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.why().id, "cuda.device");
  EXPECT_EQ(none.why().message, "the CUDA driver shows no device");
  EXPECT_FALSE(none.why().remedy.empty());
}

TEST_F(WithFakeDriver, DevicesHaveTheirFacts) {
  const auto found = devices(from_);
  ASSERT_TRUE(found) << text(found.why());
  ASSERT_EQ(found->size(), 2u);
  const DeviceFacts& facts = (*found)[1];
  EXPECT_EQ(facts.name, "Fake H100");
  EXPECT_EQ(facts.ordinal, 1);
  EXPECT_EQ(facts.major, 9);
  EXPECT_EQ(facts.minor, 0);
  EXPECT_EQ(facts.driver_version, 13000);
  EXPECT_EQ(facts.memory_bytes, fake_->memory_bytes);
  EXPECT_EQ(facts.clock_khz, 100 + 13);
  EXPECT_EQ(facts.multiprocessors, 100 + 16);
  EXPECT_EQ(facts.l2_bytes, 100u + 38);
  EXPECT_EQ(facts.shared_bytes, 227u * 1024);
  EXPECT_TRUE(facts.launches_cooperatively);

  fake_->failing["cuDeviceGetName"] = 101;
  EXPECT_EQ(devices(from_).why().id, "cuda.failed");
}

TEST_F(WithFakeDriver, OnlyOrdinalsThatExistAndHopperAreOpened) {
  for (const int ordinal : {-1, 2}) {
    const auto device = open(ordinal);
    ASSERT_FALSE(device);
    EXPECT_EQ(device.why().id, "cuda.ordinal");
    EXPECT_EQ(device.why().code, ErrorCode::usage);
    EXPECT_EQ(device.why().expected, "0 to 1");
  }
  fake_->major = 10;
  const auto device = open();
  ASSERT_FALSE(device);
  EXPECT_EQ(device.why().id, "cuda.architecture");
  EXPECT_EQ(device.why().expected, "compute capability 9.0");
  EXPECT_EQ(device.why().found, "10.0");
  EXPECT_TRUE(devices(from_));  // they may be shown all the same
}

TEST_F(WithFakeDriver, OneFamilyOfKernelsIsLoaded) {
  cubins_[1].family = Family::sm80;
  struct Case {
    int major, minor;
    std::optional<Family> family;
    std::string loaded;  // or what was expected
  };
  const Case cases[] = {{9, 0, {}, "sm90"},
                        {9, 0, Family::sm80, "sm80"},
                        {8, 9, {}, "sm80"},
                        {10, 0, {}, "sm80"},
                        {7, 0, {}, "compute capability 8.0 or newer"},
                        {8, 0, Family::sm80, "sm80"},
                        {12, 1, Family::sm80, "sm80"},
                        {7, 5, Family::sm80, "compute capability 8.0 or newer"},
                        {8, 6, Family::sm90, "compute capability 9.0"}};
  for (const Case& c : cases) {
    fake_->major = c.major;
    fake_->minor = c.minor;
    from_.family = c.family;
    const auto device = open();
    EXPECT_EQ(device ? std::string(name((*device)->family())) : device.why().expected, c.loaded)
        << c.major << "." << c.minor;
    if (!device) continue;
    EXPECT_EQ(fake_->modules, 1);
    const bool is_sm80 = (*device)->family() == Family::sm80;
    EXPECT_EQ(static_cast<bool>((*device)->function("fp4moe_fake")), is_sm80);
    EXPECT_EQ(static_cast<bool>((*device)->function("fp4moe_other")), !is_sm80);
  }
  // A build without them.
  fake_->major = 9;
  fake_->minor = 0;
  from_.kernels = std::span(cubins_).first(1);
  from_.family = Family::sm80;
  EXPECT_EQ(open().why().expected, "a build with the kernels sm80");
  // A device of other sizes, for tests.
  from_.family = {};
  from_.shared_bytes = 99 * 1024;
  from_.multiprocessors = 128;
  const auto smaller = open();
  ASSERT_TRUE(smaller) << text(smaller.why());
  EXPECT_EQ((*smaller)->facts().shared_bytes, 99u * 1024);
  EXPECT_EQ((*smaller)->facts().multiprocessors, 128);
}

TEST_F(WithFakeDriver, KernelsOfEveryGpuStartWhenTheOnesBeforeAreComplete) {
  cubins_[1].family = Family::sm80;
  from_.family = Family::sm80;
  const auto device = open();
  ASSERT_TRUE(device) << text(device.why());
  const auto function = (*device)->function("fp4moe_fake");
  ASSERT_TRUE(function);
  const int params = 7;
  ASSERT_TRUE(
      (*device)->launch({.function = *function, .has_pdl = true, .params = &params}, nullptr));
  EXPECT_FALSE(fake_->launches.back().has_pdl);
}

TEST_F(WithFakeDriver, CodeThatTheDriverDoesNotLoadGivesBackEverything) {
  const std::string noise = "noise";
  cubins_[1] = fake_cubin(noise);
  const auto device = open();
  ASSERT_FALSE(device);
  EXPECT_EQ(device.why().id, "cuda.load");
  EXPECT_NE(device.why().found.find("CUDA_ERROR_FAKE (200)"), std::string::npos);
  EXPECT_NE(device.why().found.find("CUDA 13.0"), std::string::npos);
  EXPECT_EQ(fake_->modules, 0);
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(WithFakeDriver, ADeviceThatCannotBeUsedIsAnError) {
  fake_->failing["cuDevicePrimaryCtxRetain"] = 46;
  EXPECT_EQ(open().why().id, "cuda.failed");
  fake_->failing = {{"cuDevicePrimaryCtxRetain", 2}};
  EXPECT_EQ(open().why().code, ErrorCode::exhausted);
  fake_->failing = {{"cuCtxPushCurrent", 201}};
  EXPECT_EQ(open().why().id, "cuda.failed");
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(WithFakeDriver, EverythingIsGivenBack) {
  {
    const auto device = open();
    ASSERT_TRUE(device) << text(device.why());
    EXPECT_EQ(fake_->modules, 2);
    auto memory = (*device)->allocate(100);
    auto other = (*device)->allocate(50);
    auto pinned = (*device)->pin(100);
    ASSERT_TRUE(memory && other && pinned);
    *memory = std::move(*other);
    EXPECT_EQ(memory->size(), 50u);
    EXPECT_EQ(fake_->used_bytes, 50u);  // what it held is free at once
    Pinned moved = std::move(*pinned);
    EXPECT_EQ(moved.size(), 100u);
    EXPECT_EQ(pinned->data(), nullptr);
  }
  EXPECT_EQ(fake_->allocations, 0);
  EXPECT_EQ(fake_->pinned, 0);
  EXPECT_EQ(fake_->modules, 0);
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(WithFakeDriver, MemoryKeepsItsDeviceAlive) {
  Memory memory;
  {
    auto device = open();
    ASSERT_TRUE(device);
    auto result = (*device)->allocate(8);
    ASSERT_TRUE(result);
    memory = std::move(*result);
  }
  EXPECT_EQ(fake_->contexts, 1);
  memory = {};
  EXPECT_EQ(fake_->contexts, 0);
}

TEST_F(WithFakeDriver, KernelsAreFoundInWhicheverCodeHoldsThem) {
  const auto device = open();
  ASSERT_TRUE(device);
  EXPECT_TRUE((*device)->function("fp4moe_fake"));
  EXPECT_TRUE((*device)->function("fp4moe_other"));
  const auto none = (*device)->function("fp4moe_fak");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.why().id, "cuda.kernel");
  EXPECT_EQ(fake_->unknown_kernels, 0);  // nor is the driver asked for what is not there
  fake_->failing["cuFuncLoad"] = 719;
  EXPECT_EQ((*device)->function("fp4moe_fake").why().id, "cuda.failed");
}

TEST_F(WithFakeDriver, LaunchesCarryTheirShapeAndParameters) {
  const auto device = open();
  ASSERT_TRUE(device);
  const auto kernel = (*device)->function("fp4moe_fake");
  ASSERT_TRUE(kernel);
  const std::array<int, 3> params{42, 1, 2};
  Launch launch{.function = *kernel,
                .blocks = 7,
                .threads = 96,
                .shared_bytes = 512,
                .params = params.data()};
  ASSERT_TRUE((*device)->launch(launch, nullptr));
  launch.has_pdl = true;
  ASSERT_TRUE((*device)->launch(launch, nullptr));
  launch.is_cooperative = true;
  ASSERT_TRUE((*device)->launch(launch, nullptr));
  ASSERT_EQ(fake_->launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const FakeLaunch& seen = fake_->launches[i];
    EXPECT_EQ(seen.kernel, "fp4moe_fake");
    EXPECT_EQ(seen.blocks, 7u);
    EXPECT_EQ(seen.threads, 96u);
    EXPECT_EQ(seen.shared_bytes, 512u);
    EXPECT_EQ(seen.first_param, 42);
    EXPECT_EQ(seen.has_pdl, i >= 1);
    EXPECT_EQ(seen.is_cooperative, i == 2);
  }
}

TEST_F(WithFakeDriver, BytesGoThereAndBack) {
  const auto device = open();
  ASSERT_TRUE(device);
  const std::vector<std::byte> sent(10, std::byte{3});
  std::vector<std::byte> back(10);
  const auto first = (*device)->allocate(10), second = (*device)->allocate(10);
  ASSERT_TRUE(first && second);
  ASSERT_TRUE((*device)->upload(first->data(), sent, nullptr));
  ASSERT_TRUE((*device)->clear(second->data(), 9, 10, nullptr));
  ASSERT_TRUE((*device)->copy(second->data(), first->data(), 9, nullptr));
  ASSERT_TRUE((*device)->download(back, second->data(), nullptr));
  std::vector<std::byte> expected = sent;
  expected[9] = std::byte{9};
  EXPECT_EQ(back, expected);

  // Nothing to move needs no address.
  EXPECT_TRUE((*device)->upload(nullptr, {}, nullptr));
  EXPECT_TRUE((*device)->download({}, nullptr, nullptr));
  EXPECT_TRUE((*device)->copy(nullptr, nullptr, 0, nullptr));
  EXPECT_TRUE((*device)->clear(nullptr, 0, 0, nullptr));
  const auto nothing = (*device)->allocate(0);
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->data(), nullptr);
}

TEST_F(WithFakeDriver, MemoryThatIsNotThereIsCounted) {
  const auto device = open();
  ASSERT_TRUE(device);
  const auto held = (*device)->allocate(1000);
  const auto memory = (*device)->allocate(fake_->memory_bytes);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.why().id, "cuda.memory");
  EXPECT_EQ(memory.why().code, ErrorCode::exhausted);
  EXPECT_EQ(memory.why().expected, "1048576 bytes free on device 0");
  EXPECT_EQ(memory.why().found, "1047576 of 1048576");
  const auto left = (*device)->free_bytes();
  ASSERT_TRUE(left);
  EXPECT_EQ(*left, 1047576u);

  fake_->failing["cuMemHostAlloc"] = 2;
  const auto pinned = (*device)->pin(64);
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.why().id, "cuda.memory");
  EXPECT_NE(pinned.why().expected.find("64 bytes"), std::string::npos);
}

TEST_F(WithFakeDriver, PointersThatTheDeviceCannotReadAreRefused) {
  const auto device = open();
  ASSERT_TRUE(device);
  const std::array<char, 6> at{};
  fake_->pointers = {{&at[0], {.type = 1}},
                     {&at[1], {.type = 2, .ordinal = 0}},
                     {&at[2], {.type = 2, .ordinal = 1, .is_managed = true}},
                     {&at[3], {.type = 2, .ordinal = 1}}};
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE((*device)->check_pointer(&at[i], "the logits")) << i;
  const std::pair<const void*, const char*> refused[] = {
      {nullptr, "null"}, {&at[3], "memory of another device"}, {&at[4], "memory of the host"}};
  for (const auto& [pointer, found] : refused) {
    const auto result = (*device)->check_pointer(pointer, "the logits");
    ASSERT_FALSE(result) << found;
    EXPECT_EQ(result.why().id, "cuda.pointer");
    EXPECT_EQ(result.why().code, ErrorCode::usage);
    EXPECT_EQ(result.why().message, "the device cannot read the logits");
    EXPECT_TRUE(result.why().found.starts_with(found)) << result.why().found;
  }
}

TEST_F(WithFakeDriver, StreamsGraphsAndEventsAreMadeAndDropped) {
  const auto device = open();
  ASSERT_TRUE(device);
  const auto stream = (*device)->make_stream();
  const auto begin = (*device)->make_event(), end = (*device)->make_event();
  ASSERT_TRUE(stream && begin && end);
  ASSERT_TRUE((*device)->begin_capture(*stream));
  const auto graph = (*device)->end_capture(*stream);
  ASSERT_TRUE(graph);
  EXPECT_EQ(fake_->graphs, 1);  // the captured one is gone
  ASSERT_TRUE((*device)->replay(*graph, *stream));
  ASSERT_TRUE((*device)->record(*begin, *stream));
  ASSERT_TRUE((*device)->wait(*stream));
  const auto time = (*device)->microseconds(*begin, *end);
  ASSERT_TRUE(time);
  EXPECT_FLOAT_EQ(*time, 1500);

  fake_->failing["cuGraphInstantiate"] = 1;
  EXPECT_FALSE((*device)->end_capture(*stream));
  fake_->failing.clear();
  EXPECT_EQ(fake_->graphs, 1);

  (*device)->drop_graph(*graph);
  (*device)->drop_event(*begin);
  (*device)->drop_event(*end);
  (*device)->drop_stream(*stream);
  (*device)->drop_graph(nullptr);
  (*device)->drop_event(nullptr);
  (*device)->drop_stream(nullptr);
  EXPECT_EQ(fake_->graphs + fake_->events + fake_->streams, 0);
}

TEST_F(WithFakeDriver, EveryCallReportsAFailureInWords) {
  std::byte byte{};
  const Launch launch{.params = &byte};
  using Call = std::function<Result<Done>(const Device&)>;
  const auto done = [](const auto& result) -> Result<Done> {
    if (!result) return result.why();
    return Done{};
  };
  const std::pair<const char*, Call> calls[] = {
      {"cuFuncSetAttribute", [&](const Device& d) { return d.allow_shared(nullptr, 1); }},
      {"cuLaunchKernelEx", [&](const Device& d) { return d.launch(launch, nullptr); }},
      {"cuMemAlloc", [&](const Device& d) { return done(d.allocate(1)); }},
      {"cuMemHostAlloc", [&](const Device& d) { return done(d.pin(1)); }},
      {"cuMemGetInfo", [&](const Device& d) { return done(d.free_bytes()); }},
      {"cuPointerGetAttributes", [&](const Device& d) { return d.check_pointer(&byte, "x"); }},
      {"cuMemcpyHtoDAsync",
       [&](const Device& d) {
         return d.upload(&byte, {&byte, 1}, nullptr);
       }},
      {"cuMemcpyDtoHAsync",
       [&](const Device& d) {
         return d.download({&byte, 1}, &byte, nullptr);
       }},
      {"cuMemcpyDtoDAsync", [&](const Device& d) { return d.copy(&byte, &byte, 1, nullptr); }},
      {"cuMemsetD8Async", [&](const Device& d) { return d.clear(&byte, 0, 1, nullptr); }},
      {"cuStreamSynchronize", [&](const Device& d) { return d.wait(nullptr); }},
      {"cuStreamCreate", [&](const Device& d) { return done(d.make_stream()); }},
      {"cuStreamBeginCapture", [&](const Device& d) { return d.begin_capture(nullptr); }},
      {"cuStreamEndCapture", [&](const Device& d) { return done(d.end_capture(nullptr)); }},
      {"cuGraphLaunch", [&](const Device& d) { return d.replay(nullptr, nullptr); }},
      {"cuEventCreate", [&](const Device& d) { return done(d.make_event()); }},
      {"cuEventRecord", [&](const Device& d) { return d.record(nullptr, nullptr); }},
      {"cuEventSynchronize",
       [&](const Device& d) { return done(d.microseconds(nullptr, nullptr)); }},
      {"cuEventElapsedTime",
       [&](const Device& d) { return done(d.microseconds(nullptr, nullptr)); }},
  };
  for (const auto& [function, call] : calls) {
    const Error why = failing(function, 700, call);
    EXPECT_EQ(why.id, "cuda.failed") << function;
    EXPECT_EQ(why.code, ErrorCode::failed) << function;
    EXPECT_TRUE(why.message.starts_with("cannot ")) << why.message;
    EXPECT_TRUE(why.message.ends_with("CUDA_ERROR_FAKE (700): as the test wants it"))
        << why.message;
    EXPECT_NE(why.remedy.find("until the process ends"), std::string::npos);
    EXPECT_EQ(failing("cuCtxGetCurrent", 4, call).id, "cuda.failed") << function;
    EXPECT_EQ(failing("cuCtxPushCurrent", 4, call).id, "cuda.failed") << function;
  }
  EXPECT_EQ(fake_->allocations + fake_->pinned + fake_->contexts, 0);
}

TEST_F(WithFakeDriver, ACodeWithoutAnExplanationIsShownAsANumber) {
  const Error why = failing("cuStreamSynchronize", 1999,
                            [](const Device& device) { return device.wait(nullptr); });
  EXPECT_TRUE(why.message.ends_with("CUresult (1999): no explanation")) << why.message;
}

TEST_F(WithFakeDriver, DestructorsSurviveADriverThatFails) {
  auto device = open();
  ASSERT_TRUE(device);
  auto memory = (*device)->allocate(16);
  ASSERT_TRUE(memory);
  fake_->failing = {{"cuMemFree", 700}, {"cuModuleUnload", 700}, {"cuDevicePrimaryCtxRelease", 4}};
  *memory = {};
  device = error(ErrorCode::failed, "test", "gone");
  EXPECT_EQ(fake_->allocations, 1);  // the fake keeps what it would not free
}

TEST_F(WithFakeDriver, AContextThatIsCurrentIsNotPushed) {
  const auto device = open();
  ASSERT_TRUE(device);
  auto* const push = fake_function<int(void*)>("cuCtxPushCurrent_v2");
  auto* const pop = fake_function<int(void**)>("cuCtxPopCurrent_v2");
  const int before = fake_->pushed;
  ASSERT_TRUE((*device)->wait(nullptr));
  EXPECT_EQ(fake_->pushed, before + 1);
  push(fake_->context_of[0].data());
  ASSERT_TRUE((*device)->wait(nullptr));
  EXPECT_EQ(fake_->pushed, before + 2);
  void* popped = nullptr;
  pop(&popped);
}

TEST_F(WithFakeDriver, SeveralLaunchesLookAfterTheContextOnce) {
  const auto device = open();
  ASSERT_TRUE(device);
  const auto function = (*device)->function("fp4moe_fake");
  ASSERT_TRUE(function);
  auto* const push = fake_function<int(void*)>("cuCtxPushCurrent_v2");
  auto* const pop = fake_function<int(void**)>("cuCtxPopCurrent_v2");
  auto* const current = fake_function<int(void**)>("cuCtxGetCurrent");
  const int number = 0;
  for (const std::size_t callers : {std::size_t{0}, std::size_t{1}}) {  // ours, another device's
    void* const theirs = fake_->context_of[callers].data();
    push(theirs);
    fake_->calls.clear();
    {
      auto inside = (*device)->enter();
      ASSERT_TRUE(inside);
      const Current moved = std::move(*inside);  // still one pop
      for (int i = 0; i < 3; ++i)
        ASSERT_TRUE((*device)->launch({.function = *function, .params = &number}, nullptr, moved));
    }
    std::map<std::string, int> expected{{"cuCtxGetCurrent", 1}, {"cuLaunchKernelEx", 3}};
    if (callers == 1) expected.insert({{"cuCtxPushCurrent", 1}, {"cuCtxPopCurrent", 1}});
    EXPECT_EQ(fake_->calls, expected);
    void* now = nullptr;
    current(&now);
    EXPECT_EQ(now, theirs);
    pop(&now);
  }
  fake_->failing["cuCtxPushCurrent"] = 201;
  EXPECT_EQ((*device)->enter().why().id, "cuda.failed");
}

TEST_F(WithFakeDriver, ManyThreadsUseOneDevice) {
  const auto device = open();
  ASSERT_TRUE(device);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        const auto memory = (*device)->allocate(64);
        EXPECT_TRUE(memory && (*device)->clear(memory->data(), 1, 64, nullptr));
        EXPECT_TRUE((*device)->function("fp4moe_fake"));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_->allocations, 0);
}

TEST(Cubins, HoldEveryKernelOnce) {
  if (!is_built()) GTEST_SKIP() << "this build has no CUDA kernels";
  std::vector<std::string> expected, found;
  for (const std::string_view kernel : kKernels)
    expected.push_back(fmt::format("fp4moe_sm90_{}", kernel));
  for (const std::string_view kernel : kSm80Kernels)
    expected.push_back(fmt::format("fp4moe_sm80_{}", kernel));
  for (const Cubin& cubin : cubins())
    for (std::string& name : kernel_names(cubin)) found.push_back(std::move(name));
  std::ranges::sort(expected);
  std::ranges::sort(found);
  EXPECT_EQ(found, expected);
}

TEST(Cubins, NamesOfKernelsEndWithAZeroAndAreTakenOnce) {
  using namespace std::string_literals;
  const auto names = [](const std::string& code) {
    return kernel_names({"test", std::as_bytes(std::span(code))});
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(".text.b\0.rela.text.b\0.text.a\0"s), (Names{"a", "b"}));
  EXPECT_EQ(names(".text.a\0.text.cut"s), Names{"a"});
  EXPECT_EQ(names(""s), Names{});
}

TEST(Cubins, AreMachineCodeWhereThereAreAny) {
  EXPECT_EQ(is_built(), !cubins().empty());
  for (const Cubin& cubin : cubins()) {
    EXPECT_FALSE(cubin.name.empty());
    ASSERT_GT(cubin.code.size(), 1000u) << cubin.name;
    const std::string_view first = cubin.family == Family::sm90 ? "\x7f"
                                                                  "ELF"
                                                                : "\x50\xed\x55\xba";
    EXPECT_EQ(std::memcmp(cubin.code.data(), first.data(), 4), 0) << cubin.name;
  }
}

}  // namespace driver_test
}  // namespace fp4moe::kernels::cuda
