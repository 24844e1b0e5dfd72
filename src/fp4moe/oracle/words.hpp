// The words of a selection: each enumeration with its names in one table beside it. Numbers and
// printed forms are those of the reference, because users search logs for them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/formats/weight_format.hpp"

namespace fp4moe::oracle {

using formats::WeightFormat;

// The states of the reference that differ in what they decide; `native` is our own.
enum class PolicyDate : std::uint8_t {
  january_seed,
  january_27,
  march_20,
  march_27,
  april_24,
  august_22,
  vllm_033,  // release 0.33.0
  native,
};
inline constexpr EnumSet<PolicyDate> kJanuary2026{PolicyDate::january_seed, PolicyDate::january_27};
inline constexpr EnumSet<PolicyDate> kMarch2026{PolicyDate::march_20, PolicyDate::march_27};
inline constexpr EnumSet<PolicyDate> kBeforeAugust2026{PolicyDate::march_20, PolicyDate::march_27,
                                                       PolicyDate::april_24};
inline constexpr EnumSet<PolicyDate> kAugust2026{PolicyDate::august_22};
inline constexpr EnumSet<PolicyDate> kVllm033{PolicyDate::vllm_033};
inline constexpr EnumSet<PolicyDate> kSinceAugust2026{PolicyDate::august_22, PolicyDate::vllm_033};
inline constexpr EnumSet<PolicyDate> kSinceApril2026{PolicyDate::april_24, PolicyDate::august_22,
                                                     PolicyDate::vllm_033, PolicyDate::native};
inline constexpr EnumSet<PolicyDate> kSinceMarch2026{PolicyDate::march_20, PolicyDate::march_27,
                                                     PolicyDate::april_24, PolicyDate::august_22,
                                                     PolicyDate::vllm_033, PolicyDate::native};
inline constexpr EnumSet<PolicyDate> kAllDates{
    PolicyDate::january_seed, PolicyDate::january_27, PolicyDate::march_20, PolicyDate::march_27,
    PolicyDate::april_24,     PolicyDate::august_22,  PolicyDate::vllm_033, PolicyDate::native};

// compat repeats the reference's mistakes, strict repairs those that change a result.
enum class Mode : std::uint8_t { strict, compat };
inline constexpr std::array<std::string_view, 2> kModeNames{"strict", "compat"};

enum class Activation : std::uint8_t {
  silu,
  gelu,
  gelu_tanh,
  relu2,
  swigluoai,
  swigluoai_uninterleave,
  swiglustep,
  situ,
  silu_no_mul,
  gelu_no_mul,
  gelu_tanh_no_mul,
  relu2_no_mul,
};
struct ActivationWord {
  std::string_view name;     // as configurations spell it
  std::string_view printed;  // as the reference's enumeration spells it
};
inline constexpr std::array<ActivationWord, 12> kActivationWords{{
    {"silu", "SILU"},
    {"gelu", "GELU"},
    {"gelu_tanh", "GELU_TANH"},
    {"relu2", "RELU2"},
    {"swigluoai", "SWIGLUOAI"},
    {"swigluoai_uninterleave", "SWIGLUOAI_UNINTERLEAVE"},
    {"swiglustep", "SWIGLUSTEP"},
    {"situ", "SITU"},
    {"silu_no_mul", "SILU_NO_MUL"},
    {"gelu_no_mul", "GELU_NO_MUL"},
    {"gelu_tanh_no_mul", "GELU_TANH_NO_MUL"},
    {"relu2_no_mul", "RELU2_NO_MUL"},
}};
constexpr std::string_view name(Activation activation) {
  return kActivationWords[static_cast<std::size_t>(activation)].name;
}
constexpr bool is_gated(Activation activation) { return !name(activation).ends_with("_no_mul"); }
static_assert(!is_gated(Activation::relu2_no_mul) && is_gated(Activation::relu2));
// Also under its alias gelu_pytorch_tanh.
std::optional<Activation> activation_from_name(std::string_view name);

enum class Routing : std::uint8_t {
  softmax_topk,  // "Default"
  renormalize,
  deepseek_v3,
  llama4,
  renormalize_naive,
  topk,
  sigmoid_renorm,
  minimax2,
  sigmoid,
  deepseek_v4,
  custom,
  simulated,
  unspecified,
};
struct RoutingWord {
  std::string_view name;
  int number;         // printed by the reference until April 2026; -1: it had no such method
  int august_number;  // and since
};
// clang-format off
inline constexpr std::array<RoutingWord, 13> kRoutingWords{{
    {"Default",          0,   0},
    {"Renormalize",      1,   1},
    {"DeepSeekV3",       2,   2},
    {"Llama4",           3,   3},
    {"RenormalizeNaive", 4,   4},
    {"TopK",             5,   5},
    {"SigmoidRenorm",   -1,   6},
    {"MiniMax2",        -1,   7},
    {"Sigmoid",         -1,   8},
    {"DeepseekV4",      -1, 100},
    {"Custom",           6, 101},
    {"Simulated",        7, 102},
    {"Unspecified",      8,   9},
}};
// clang-format on
constexpr std::string_view name(Routing routing) {
  return kRoutingWords[static_cast<std::size_t>(routing)].name;
}
std::optional<Routing> routing_from_name(std::string_view name);

// How activations are quantized before they meet the weights; `none`: they stay in 16 bits.
enum class ActivationKey : std::uint8_t {
  none,
  mxfp8,
  mxfp4,
  nvfp4,
  fp8_static_tensor,
  fp8_block128,
  fp8_token,
  nvfp4_token,  // the second scale is dynamic, one for each token
};
struct KeyWord {
  std::string_view name;
  std::string_view printed;  // {fp8} stands for the device's FP8 type
};
// clang-format off
inline constexpr std::array<KeyWord, 8> kKeyWords{{
    {"none",              "None"},
    {"mxfp8",             "QuantKey({fp8},scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)"},
    {"mxfp4",             "QuantKey(u8,scale(u8,dynamic,GroupShape(row=1, col=32)),symmetric)"},
    {"nvfp4",             "QuantKey(u8,scale({fp8},dynamic,GroupShape(row=1, col=16)),scale2(f32,static,per_tensor),symmetric)"},
    {"fp8_static_tensor", "QuantKey({fp8},scale(f32,static,per_tensor),symmetric)"},
    {"fp8_block128",      "QuantKey({fp8},scale(f32,dynamic,GroupShape(row=1, col=128)),symmetric)"},
    {"fp8_token",         "QuantKey({fp8},scale(f32,dynamic,per_token),symmetric)"},
    {"nvfp4_token",       "QuantKey(u8,scale({fp8},dynamic,GroupShape(row=1, col=16)),scale2(f32,dynamic,per_token),symmetric)"},
}};
inline constexpr std::array<std::string_view, 2> kWeightKeys{
    "QuantKey(u8,scale(u8,static,GroupShape(row=1, col=32)),symmetric)",
    "QuantKey(u8,scale({fp8},static,GroupShape(row=1, col=16)),scale2(f32,static,per_tensor),symmetric)",
};
// clang-format on
constexpr std::string_view name(ActivationKey key) {
  return kKeyWords[static_cast<std::size_t>(key)].name;
}
std::optional<ActivationKey> activation_key_from_name(std::string_view name);
// As the reference prints them; `gfx` decides which FP8 type the device has.
std::string printed(ActivationKey key, std::string_view gfx);
std::string printed(WeightFormat weights, std::string_view gfx);

// Tokens one after the other, or a fixed-size batch per expert.
enum class TokenFormat : std::uint8_t { standard, batched };
struct TokenFormatWord {
  std::string_view name;
  std::string_view printed;  // the reference declares them as tuples of one
};
inline constexpr std::array<TokenFormatWord, 2> kTokenFormatWords{{
    {"standard", "('standard',)"},
    {"batched_experts", "('batched_experts',)"},
}};
constexpr std::string_view name(TokenFormat format) {
  return kTokenFormatWords[static_cast<std::size_t>(format)].name;
}

// Types that activations and router logits come in.
enum class ScalarType : std::uint8_t { bfloat16, float16, float32 };
inline constexpr std::array<std::string_view, 3> kScalarNames{"bfloat16", "float16", "float32"};
constexpr std::string_view name(ScalarType type) {
  return kScalarNames[static_cast<std::size_t>(type)];
}
constexpr std::size_t bytes(ScalarType type) { return type == ScalarType::float32 ? 4 : 2; }
std::optional<ScalarType> scalar_from_name(std::string_view name);

}  // namespace fp4moe::oracle
