// Enumerations of the library as kernels see them: the same enumerators in the same order.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/moe/routing/method.hpp"
#include "fp4moe/oracle/words.hpp"

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;

template <class Device, class Host>
constexpr Device device_enum(Host value) {
  return static_cast<Device>(static_cast<std::uint32_t>(value));
}
constexpr sm90::Activation to_device(Activation value) {
  return device_enum<sm90::Activation>(value);
}
constexpr sm90::Quantization to_device(oracle::ActivationKey value) {
  return device_enum<sm90::Quantization>(value);
}
constexpr sm90::FirstRounding to_device(FirstRounding value) {
  return device_enum<sm90::FirstRounding>(value);
}
constexpr sm90::MiddleRounding to_device(MiddleRounding value) {
  return device_enum<sm90::MiddleRounding>(value);
}
constexpr sm90::SecondRounding to_device(SecondRounding value) {
  return device_enum<sm90::SecondRounding>(value);
}
constexpr sm90::WeightRounding to_device(WeightRounding value) {
  return device_enum<sm90::WeightRounding>(value);
}
constexpr sm90::Score to_device(routing::Score value) { return device_enum<sm90::Score>(value); }
constexpr sm90::Normalization to_device(routing::Normalization value) {
  return device_enum<sm90::Normalization>(value);
}
constexpr sm90::OutputForm to_device(OutputForm value) {
  return device_enum<sm90::OutputForm>(value);
}

static_assert(to_device(Activation::situ) == sm90::Activation::situ);
static_assert(to_device(Activation::gelu_tanh_no_mul) == sm90::Activation::gelu_tanh_no_mul);
static_assert(to_device(oracle::ActivationKey::nvfp4) == sm90::Quantization::nvfp4);
static_assert(to_device(oracle::ActivationKey::fp8_token) == sm90::Quantization::fp8_token);
static_assert(to_device(FirstRounding::steps) == sm90::FirstRounding::steps);
static_assert(to_device(MiddleRounding::gate_and_result) == sm90::MiddleRounding::gate_and_result);
static_assert(to_device(SecondRounding::steps) == sm90::SecondRounding::steps);
static_assert(to_device(WeightRounding::bf16_with_global) ==
              sm90::WeightRounding::bf16_with_global);
static_assert(to_device(routing::Score::sqrt_softplus) == sm90::Score::sqrt_softplus);
static_assert(to_device(routing::Normalization::softmax) == sm90::Normalization::softmax);
static_assert(to_device(OutputForm::batches) == sm90::OutputForm::batches);

}  // namespace fp4moe::moe::cuda
