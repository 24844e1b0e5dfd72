// Values that the columns of several families share.
#pragma once
#include "fp4moe/oracle/backend.hpp"

namespace fp4moe::backends {

using enum oracle::Activation;
using enum oracle::PolicyDate;
using oracle::ActivationKey;
using oracle::at_least;
using oracle::Backend;
using oracle::CapabilityRange;
using oracle::DeviceNeed;
using oracle::exactly;
using oracle::ExpertsClass;
using oracle::family;
using oracle::kAugust2026;
using oracle::kBeforeAugust2026;
using oracle::Kind;
using oracle::kJanuary2026;
using oracle::kMarch2026;
using oracle::kSinceAugust2026;
using oracle::kVllm033;
using oracle::Library;
using oracle::LogitsRule;
using oracle::ParallelLimit;
using oracle::PlatformKind;
using oracle::QuantScheme;
using oracle::Rounding;
using oracle::Routing;
using oracle::ScaleLayout;
using oracle::Scheme;
using oracle::TokenFormat;
using oracle::Variable;
using oracle::WeightFormat;

using Activations = EnumSet<oracle::Activation>;
using PolicyDates = EnumSet<oracle::PolicyDate>;
using Keys = EnumSet<ActivationKey>;
using Limits = EnumSet<ParallelLimit>;
using Routings = EnumSet<Routing>;

inline constexpr EnumSet<PlatformKind> kCuda{PlatformKind::cuda};
inline constexpr EnumSet<PlatformKind> kRocm{PlatformKind::rocm};
inline constexpr EnumSet<PlatformKind> kXpu{PlatformKind::xpu};
inline constexpr EnumSet<PlatformKind> kCpu{PlatformKind::cpu};

inline constexpr PolicyDates kApril2026{april_24};
inline constexpr PolicyDates kReferenceSinceApril2026{april_24, august_22, vllm_033};

// The activations of the reference's generic function, before and since August 2026.
inline constexpr Activations kGenericActivationsBeforeAugust2026{
    silu, gelu, swigluoai, swiglustep, silu_no_mul, gelu_no_mul, relu2_no_mul};
inline constexpr Activations kGenericActivationsSinceAugust2026{silu,        gelu,
                                                                gelu_tanh,   situ,
                                                                swigluoai,   swigluoai_uninterleave,
                                                                swiglustep,  silu_no_mul,
                                                                gelu_no_mul, gelu_tanh_no_mul,
                                                                relu2_no_mul};

inline constexpr Keys kSixteenBit{ActivationKey::none};
inline constexpr Keys kAnyKey{ActivationKey::none,
                              ActivationKey::mxfp8,
                              ActivationKey::mxfp4,
                              ActivationKey::nvfp4,
                              ActivationKey::fp8_static_tensor,
                              ActivationKey::fp8_block128,
                              ActivationKey::fp8_token,
                              ActivationKey::nvfp4_token};

// Limits of monolithic kernels, and of kernels that do not work with FlashInfer's exchanges.
inline constexpr Limits kMonolithicLimits{ParallelLimit::no_all2all, ParallelLimit::no_eplb,
                                          ParallelLimit::no_data_parallel};
inline constexpr Limits kNoFlashinferExchange{ParallelLimit::no_flashinfer_two_sided,
                                              ParallelLimit::no_flashinfer_one_sided};
// And of those that do not work with DeepEP's high-throughput exchange either.
inline constexpr Limits kNoFlashinferNoDeepepHt{ParallelLimit::no_flashinfer_two_sided,
                                                ParallelLimit::no_flashinfer_one_sided,
                                                ParallelLimit::no_deepep_high_throughput};
inline constexpr Routings kRenormalizing{Routing::renormalize, Routing::renormalize_naive};

// Sizes of backends without a rule of their own.
inline constexpr Rounding kOtherRounding[] = {
    {.kinds = kRocm, .intermediate = 256, .hidden = 256},
    {.intermediate = 64},
};
inline constexpr Rounding kOtherRoundingMarch20[] = {
    {.kinds = kRocm, .gfx = "gfx950", .intermediate = 256, .hidden = 256},
    {.kinds = kRocm, .intermediate = 128, .hidden = 128},
    {.intermediate = 64},
};

// Scales swizzled in tiles of 128 rows: gate and up together must fill them, up alone is padded.
inline constexpr oracle::ConversionPadding kSwizzlePadding[] = {
    {.not_gated = 128, .gated_needs = 64}};

}  // namespace fp4moe::backends
