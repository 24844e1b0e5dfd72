#include "fp4moe/moe/cuda/device_session.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/fake_device.hpp"

namespace fp4moe::moe::cuda {
namespace device_session_test {

using moe::testing::TestLayer;

class DeviceSessions : public testing::FakeDevice {
 protected:
  DeviceSession session(SessionOptions options = {}) {
    auto layer = make(weights());
    EXPECT_TRUE(layer) << text(layer.why());
    auto result =
        DeviceSession::make(std::make_shared<DeviceLayer>(std::move(*layer)), std::move(options));
    EXPECT_TRUE(result) << text(result.why());
    launched();
    return std::move(*result);
  }
  SessionCall tokens(std::uint64_t count) {
    const DeviceCall given = call(count);
    const auto* weights = static_cast<const float*>(known(count * 8 + 64));
    const auto* logits = static_cast<const std::byte*>(known(count * 16 + 64));
    return {.in = {.x = given.in.x,
                   .top_k = 2,
                   .ids = given.in.ids,
                   .weights = {weights, count * 2},
                   .logits = {logits, DType::f32, count, 4, 16}},
            .out = given.out};
  }
  static SessionOptions routed(routing::Method method = routing::Method::renormalize,
                               std::uint64_t top_k = 2) {
    return {.router = routing::RouterOptions{.method = method, .experts = 4, .top_k = top_k}};
  }
};

TEST_F(DeviceSessions, ReservedMemoryServesSmallerCallsAndStays) {
  DeviceSession result = session();
  ASSERT_TRUE(result.reserve(100, 2));
  const std::uint64_t reserved = result.workspace_bytes();
  SessionCall few = tokens(3), many = tokens(100), more = tokens(200);
  const int allocations = fake_->allocations;
  ASSERT_TRUE(result.apply(few, nullptr));
  ASSERT_TRUE(result.apply(many, nullptr));
  EXPECT_EQ(result.workspace_bytes(), reserved);
  EXPECT_EQ(fake_->allocations, allocations);
  ASSERT_TRUE(result.apply(more, nullptr));
  EXPECT_GT(result.workspace_bytes(), 2 * reserved);  // the first is still there
  EXPECT_EQ(fake_->allocations, allocations + 1);
}

TEST_F(DeviceSessions, LogitsAreRoutedOnTheDevice) {
  DeviceSession result = session(routed());
  ASSERT_TRUE(result.run(tokens(20), nullptr));
  const unsigned routes = fake_->launches.front().shared_bytes;  // with places for logits
  EXPECT_EQ(launched().front(), "prepare");
  ASSERT_TRUE(result.apply(tokens(20), nullptr));
  EXPECT_LT(fake_->launches.front().shared_bytes, routes);
  EXPECT_EQ(launched().front(), "prepare");
}

TEST_F(DeviceSessions, RunReportsARouterThatTheDeviceDoesNotSupport) {
  DeviceSession without = session();
  EXPECT_EQ(without.run(tokens(4), nullptr).why().id, "cuda.routing");
  DeviceSession other = session(routed(routing::Method::llama4, 1));
  EXPECT_EQ(other.run(tokens(4), nullptr).why().id, "cuda.routing");
  EXPECT_TRUE(other.apply(tokens(4), nullptr));
  DeviceSession unspecified = session(routed(routing::Method::unspecified));
  EXPECT_EQ(unspecified.run(tokens(4), nullptr).why().id, "routing.method");
  EXPECT_TRUE(unspecified.apply(tokens(4), nullptr));
}

TEST_F(DeviceSessions, TheMapOfExpertsGoesWithEveryCall) {
  const std::size_t used = fake_->used_bytes;
  DeviceSession result = session({.expert_map = {-1, 0, -1, 1, 2, 3}});
  EXPECT_GT(fake_->used_bytes, used);
  EXPECT_TRUE(result.apply(tokens(20), nullptr));
}

TEST_F(DeviceSessions, WithoutMemoryForMoreACallThatFitsStillRuns) {
  DeviceSession result = session();
  SessionCall given = tokens(70);
  const auto exact = result.layer().workspace_bytes({.tokens = 70, .top_k = 2});
  ASSERT_TRUE(exact);
  fake_->memory_bytes = fake_->used_bytes + *exact + 4096;
  EXPECT_TRUE(result.apply(given, nullptr));
  SessionCall larger = {};
  fake_->memory_bytes = std::size_t{64} << 20;
  larger = tokens(90);
  fake_->memory_bytes = fake_->used_bytes;
  const auto refused = result.apply(larger, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "cuda.memory");
  EXPECT_FALSE(refused.why().remedy.empty());
}

TEST_F(DeviceSessions, WhatACallMayNotBeIsRefusedBeforeAnythingIsEnqueued) {
  DeviceSession result = session(routed());
  SessionCall given = tokens(8);
  given.in.x.columns = 64;
  EXPECT_EQ(result.apply(given, nullptr).why().id, "cuda.size");
  given = tokens(8);
  given.in.logits.columns = 3;
  EXPECT_EQ(result.run(given, nullptr).why().id, "cuda.size");
  given = tokens(8);
  given.in.top_k = 40;
  EXPECT_FALSE(result.apply(given, nullptr));
  EXPECT_TRUE(launched().empty());
}

TEST_F(DeviceSessions, KnownAddressesCostOneCallOfTheDriverPerKernel) {
  DeviceSession result = session(routed());
  ASSERT_TRUE(result.reserve(64, 2));
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{20}}) {
    SessionCall given = tokens(count);
    for (const bool routes : {false, true})
      for (const bool is_known : {false, true}) {
        given.is_on_device = is_known;
        fake_->calls.clear();
        ASSERT_TRUE(routes ? result.run(given, nullptr) : result.apply(given, nullptr));
        const int kernels = static_cast<int>(launched().size());
        EXPECT_GT(kernels, 0);
        EXPECT_EQ(fake_->calls["cuLaunchKernelEx"], kernels);
        // Tokens, outputs, ids and weights, or logits.
        EXPECT_EQ(fake_->calls["cuPointerGetAttributes"], is_known ? 0 : routes ? 3 : 4);
        EXPECT_EQ(fake_->calls["cuCtxPushCurrent"], 1);  // nothing is current in a test
        EXPECT_EQ(fake_->calls["cuCtxPopCurrent"], 1);
        if (!is_known) continue;
        int all = 0;
        for (const auto& [name, times] : fake_->calls) all += times;
        EXPECT_EQ(all, kernels + 3);  // and one look at what is current
      }
  }
}

TEST_F(DeviceSessions, KnownAddressesMustStillBeAddressesThatKernelsRead) {
  DeviceSession result = session();
  SessionCall given = tokens(8);
  given.is_on_device = true;
  const auto refused = [&](const auto& change) {
    SessionCall changed = given;
    change(changed);
    const auto done = result.apply(changed, nullptr);
    return done ? std::string("accepted") : done.why().id;
  };
  launched();
  EXPECT_EQ(refused([](SessionCall& c) { c.in.x.data = nullptr; }), "cuda.pointer");
  EXPECT_EQ(refused([](SessionCall& c) { c.out.data += 4; }), "cuda.pointer");
  EXPECT_EQ(refused([](SessionCall& c) { c.in.ids = {}; }), "cuda.pointer");
  EXPECT_EQ(refused([](SessionCall& c) { c.in.x.stride = 200; }), "cuda.size");
  EXPECT_TRUE(launched().empty());
  EXPECT_EQ(refused([](SessionCall&) {}), "accepted");
}

}  // namespace device_session_test
}  // namespace fp4moe::moe::cuda
