// Layers on the first device, for tests: what is given lies on the host, outputs are poisoned with
// NaN before each call.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/reference/engine.hpp"
#include "support/emulated.hpp"
#include "support/tiny_layer.hpp"
#ifdef FP4MOE_EMULATED_DEVICE
#include "cuda/emulator/device.hpp"
#endif

namespace fp4moe::moe::cuda::testing {

using checkpoint::RowOrder;
using checkpoint::WeightFormat;
using kernels::cuda::Device;
using kernels::cuda::Memory;
using kernels::cuda::Stream;
using moe::testing::TestLayer;
using moe::testing::TestTokens;

#ifdef FP4MOE_EMULATED_DEVICE
inline Result<std::shared_ptr<const Device>> open_test_device() {
  emulator::reset_driver();
  return emulator::open_device();
}
#else
// FP4MOE_CUDA_TEST_LIMITS: plans as for another device, "rtx4090" or "a100".
inline Result<std::shared_ptr<const Device>> open_test_device() {
  const char* const limits = std::getenv("FP4MOE_CUDA_TEST_LIMITS");
  if (limits == nullptr) return Device::open(0);
  const bool is_a100 = std::string_view(limits) == "a100";
  return Device::open(
      0, {.shared_bytes = (is_a100 ? 163u : 99u) * 1024, .multiprocessors = is_a100 ? 108 : 128});
}
#endif

// Every test of a fixture is skipped where there is no device.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<const Device>> found = open_test_device();
    if (!found) GTEST_SKIP() << text(found.why());
    device = std::move(*found);
  }
  std::shared_ptr<const Device> device{};
};

// FP4MOE_CUDA_TEST_ROWS: few tokens go the way of many. FP4MOE_CUDA_TEST_SMALL: under
// compute-sanitizer everything takes a hundred times as long, on an emulated device longer still.
inline bool is_small() { return kIsEmulated || std::getenv("FP4MOE_CUDA_TEST_SMALL") != nullptr; }
// Hopper's kernels have paths of their own.
inline bool is_hopper(const Device& device) {
  return device.family() == kernels::cuda::Family::sm90;
}
inline std::vector<std::uint64_t> some_tokens(std::vector<std::uint64_t> all) {
  if (is_small()) std::erase_if(all, [](std::uint64_t tokens) { return tokens > 20; });
  return all;
}

inline RowOrder order_of(Activation activation) {
  return !is_gated(activation)                                 ? RowOrder::single
         : row(activation).columns == GateColumns::alternating ? RowOrder::interleaved
                                                               : RowOrder::halves;
}

struct Sizes {
  std::uint64_t experts = 5, hidden = 96, intermediate = 160;
};
inline TestLayer layer_of(WeightFormat format, const Sizes& sizes,
                          Activation activation = Activation::silu, std::uint64_t seed = 3) {
  return TestLayer({.format = format,
                    .experts = sizes.experts,
                    .hidden = sizes.hidden,
                    .intermediate = sizes.intermediate,
                    .order = order_of(activation),
                    .has_bias = format == WeightFormat::mxfp4},
                   activation, seed);
}

inline ExpertsProblem problem_of(const TestLayer& layer, std::string_view numerics = "exact") {
  return {.shape = layer.shape,
          .activation = layer.activation,
          .params = layer.params,
          .numerics = **require_numerics(numerics)};
}

inline Memory upload(const Device& device, std::span<const std::byte> bytes) {
  Result<Memory> memory = device.allocate(std::max<std::size_t>(bytes.size(), 1));
  EXPECT_TRUE(memory) << text(memory.why());
  if (!memory) return {};
  EXPECT_TRUE(device.upload(memory->data(), bytes, nullptr));
  EXPECT_TRUE(device.wait(nullptr));
  return std::move(*memory);
}
template <class T>
Memory upload(const Device& device, const std::vector<T>& values) {
  return upload(device, std::as_bytes(std::span(values)));
}

template <class T>
std::vector<T> download(const Device& device, const void* from, std::size_t count) {
  std::vector<T> values(count);
  EXPECT_TRUE(device.download(std::as_writable_bytes(std::span(values)),
                              static_cast<const std::byte*>(from), nullptr));
  EXPECT_TRUE(device.wait(nullptr));
  return values;
}

inline std::uint64_t output_rows(const TestTokens& tokens, OutputForm form) {
  return form == OutputForm::assignments ? tokens.tokens * tokens.top_k : tokens.tokens;
}

// Tokens and their routes on the device, and a buffer for the output.
struct Upload {
  const Device& device;
  Memory x{}, ids{}, weights{}, out{};
  DeviceCall call{};

  Upload(const Device& on, const TestTokens& tokens, OutputForm form = OutputForm::summed,
         DType dtype = DType::f32)
      : device(on),
        x(upload(on, tokens.x)),
        ids(upload(on, tokens.ids)),
        weights(upload(on, tokens.weights)) {
    const std::uint64_t rows = output_rows(tokens, form),
                        row = tokens.hidden * element_bytes(dtype);
    out = upload(on, std::vector<std::byte>(rows * row));
    const std::size_t assignments = tokens.ids.size();
    call = {.in = {{.x = {x.data(), DType::bf16, tokens.tokens, tokens.hidden, tokens.hidden * 2},
                    .top_k = tokens.top_k,
                    .ids = {ids.as<const std::int32_t>(), assignments},
                    .weights = {weights.as<const float>(), assignments}}},
            .form = form,
            .out = {out.data(), dtype, rows, tokens.hidden, row}};
  }
  // The same rows as batches of `capacity`; counts lie on the device.
  void make_batches(const Memory& counts, std::uint64_t capacity) {
    call.in = {{.x = call.in.x}, TokenFormat::batched};
    call.in.counts = {counts.as<const std::int32_t>(), counts.size() / sizeof(std::int32_t)};
    call.in.capacity = capacity;
    call.form = OutputForm::batches;
  }
  void poison() const {
    EXPECT_TRUE(device.clear(out.data(), 0xFF, out.size(), nullptr));
    EXPECT_TRUE(device.wait(nullptr));
  }
  std::vector<std::byte> bytes() const {
    return download<std::byte>(device, out.data(), call.out.rows * call.out.stride);
  }
  std::vector<double> values() const {
    const std::vector<std::byte> found = bytes();
    const ConstRows rows{found.data(), call.out.dtype, call.out.rows, call.out.columns,
                         call.out.stride};
    std::vector<double> result(call.out.rows * call.out.columns);
    for (std::uint64_t r = 0; r < rows.rows; ++r)
      read_row(rows, r, std::span(result).subspan(r * rows.columns, rows.columns));
    return result;
  }
};

inline DeviceLayer make_layer(const std::shared_ptr<const Device>& device,
                              const ExpertsProblem& problem, const ExpertSource& source,
                              DeviceLayerOptions options = {}) {
  if (std::getenv("FP4MOE_CUDA_TEST_ROWS") != nullptr) options.allow_decode = false;
  Result<DeviceLayer> result = DeviceLayer::make(device, problem, source, options);
  EXPECT_TRUE(result) << text(result.why());
  if (!result) std::abort();  // nothing below can go on
  return std::move(*result);
}

inline Workspace reserve(const DeviceLayer& layer, const WorkspaceLimits& limits) {
  Result<Workspace> result = layer.reserve(limits);
  EXPECT_TRUE(result) << text(result.why());
  if (!result) std::abort();
  return std::move(*result);
}

// One call on poisoned memory.
inline std::vector<double> run(const DeviceLayer& layer, const Upload& upload,
                               const WorkspaceLimits& limits) {
  const Workspace space = reserve(layer, limits);
  upload.poison();
  const auto done = layer.apply(upload.call, space, nullptr);
  EXPECT_TRUE(done) << text(done.why());
  const auto waited = layer.device().wait(nullptr);
  EXPECT_TRUE(waited) << text(waited.why());
  return upload.values();
}
inline std::vector<double> run(const DeviceLayer& layer, const TestTokens& tokens,
                               OutputForm form = OutputForm::summed, DType dtype = DType::f32) {
  return run(layer, Upload(layer.device(), tokens, form, dtype),
             {.tokens = tokens.tokens, .top_k = tokens.top_k});
}

inline std::vector<double> reference(const ExpertsProblem& problem, const TestLayer& layer,
                                     const TestTokens& tokens,
                                     OutputForm form = OutputForm::summed) {
  const reference::ReferenceEngine engine(std::make_shared<ThreadPool>(8));
  const auto experts = engine.make(problem, layer.source());
  EXPECT_TRUE(experts) << text(experts.why());
  const std::uint64_t rows = output_rows(tokens, form);
  std::vector<double> out(rows * tokens.hidden);
  const Prepared in = tokens.prepared();
  const auto done = (*experts)->compute(
      {.in = in}, form, dense_rows(std::span(out), DType::f64, rows, tokens.hidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

// Root mean square of the difference as a share of the expected values'; NaN is infinitely far.
inline double error_of(const std::vector<double>& expected, const std::vector<double>& found) {
  if (expected.size() != found.size()) return INFINITY;
  double wrong = 0, all = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    wrong += (expected[i] - found[i]) * (expected[i] - found[i]);
    all += expected[i] * expected[i];
  }
  if (!std::isfinite(wrong)) return INFINITY;
  return all == 0 ? std::sqrt(wrong) : std::sqrt(wrong / all);
}

inline constexpr double kMaxError = 4e-3;  // h and the output in bf16

}  // namespace fp4moe::moe::cuda::testing
