#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/bench/layer_cuda.hpp"
#include "fp4moe/kernels/cuda/sm90/ceiling/params.hpp"

namespace fp4moe::bench {
namespace {

namespace sm90 = kernels::cuda::sm90;
using kernels::cuda::Device;
using DeviceMemory = kernels::cuda::Memory;

constexpr std::size_t kCeilingBytes = std::size_t{1} << 30;  // far more than caches hold
constexpr std::uint32_t kRateSteps = 4000;
constexpr std::size_t kCeilingRounds = 15;

// One enqueued piece of work, timed by the device.
Result<CeilingResult> time_on_device(const Device& device, const std::string& name, double work,
                                     const std::function<Result<Done>()>& enqueue) {
  const Result<void*> begin = device.make_event();
  if (!begin) return begin.why();
  const Result<void*> end = device.make_event();
  Result<Done> done = end ? Result<Done>(Done{}) : Result<Done>(end.why());
  std::vector<Sample> samples;
  for (std::size_t round = 0; done && round <= kCeilingRounds; ++round) {
    done = device.record(*begin, nullptr);
    if (done) done = enqueue();
    if (done) done = device.record(*end, nullptr);
    if (!done) break;
    const Result<float> took = device.microseconds(*begin, *end);
    if (!took) done = took.why();
    if (took && round > 0) samples.push_back({.us = double{*took}});  // the first warms up
  }
  device.drop_event(*begin);
  if (end) device.drop_event(*end);
  if (!done) return done.why();
  return CeilingResult{.name = name,
                       .kernel = fmt::format("{}/{}", kernels::cuda::name(device.family()), name),
                       .timing = summarize(samples, work)};
}

}  // namespace

Result<Ceilings> device_ceilings(const Device& device) {
  Result<DeviceMemory> from = device.allocate(kCeilingBytes);
  if (!from) return from.why();
  Result<DeviceMemory> to = device.allocate(kCeilingBytes);
  if (!to) return to.why();
  const std::string_view family = kernels::cuda::name(device.family());
  const auto read = device.function(fmt::format("fp4moe_{}_read", family));
  if (!read) return read.why();
  const auto rate = device.function(fmt::format("fp4moe_{}_rate", family));
  if (!rate) return rate.why();
  if (const auto done = device.clear(from->data(), 0x5A, kCeilingBytes, nullptr); !done)
    return done.why();
  const auto blocks = static_cast<std::uint32_t>(device.facts().multiprocessors);
  const sm90::ReadParams reading{.data = from->as<const std::uint8_t>(),
                                 .bytes = kCeilingBytes,
                                 .sink = to->as<std::uint32_t>()};
  const sm90::RateParams multiplying{.steps = kRateSteps, .sink = to->as<float>()};
  const double operations =
      static_cast<double>(sm90::kRateOperations) * kRateSteps * static_cast<double>(blocks);
  struct Row {
    std::string name;
    double work;
    double Ceilings::*rate;
    std::function<Result<Done>()> enqueue;
  };
  const Row rows[] = {
      {"read", static_cast<double>(kCeilingBytes), &Ceilings::read_gb_per_s,
       [&] {
         return device.launch({.function = *read,
                               .blocks = blocks * sm90::kReadBlocks,
                               .threads = sm90::kReadThreads,
                               .params = &reading},
                              nullptr);
       }},
      {"copy", 2.0 * static_cast<double>(kCeilingBytes), &Ceilings::copy_gb_per_s,
       [&] { return device.copy(to->data(), from->data(), kCeilingBytes, nullptr); }},
      {"bf16", operations, &Ceilings::bf16_gflop_per_s, [&] {
         return device.launch({.function = *rate,
                               .blocks = blocks,
                               .threads = sm90::kRateThreads,
                               .params = &multiplying},
                              nullptr);
       }}};
  Ceilings created;
  for (const Row& row : rows) {
    auto result = time_on_device(device, row.name, row.work, row.enqueue);
    if (!result) return result.why();
    created.*row.rate = result->timing.rate();
    created.results.push_back(std::move(*result));
  }
  return created;
}

}  // namespace fp4moe::bench
