// Scales of the layout native_sm90 (docs/layouts/native_sm90.*.md) and its generation, for packers
// on the CPU and on the device. A stored scale times an e2m1 code in the bits of a bf16 number must
// be a normal bf16 number. Scales are divided by a factor for that; accumulators are multiplied by
// it, in float32.
#pragma once
#include <cstdint>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::formats {

// Changes with every change of the layout, so that older packed weights are refused, not misread.
inline constexpr std::string_view kSm90Generation = "g3";

// MXFP4: the stored byte is the E8M0 byte + 126 - offset, the factor 2^offset. The offset of scales
// that lie between two bytes. Errors: scale.range, where no offset holds both.
Result<int> sm90_offset(std::uint8_t smallest, std::uint8_t largest);
// The offset that only E8M0's NaN, 255, leads to.
inline constexpr int kSm90NanOffset = 127;

// NVFP4: what is always taken out. The factor is this times the global scale.
inline constexpr float kSm90Nvfp4Factor = 0x1p20f;
// The byte that E4M3's NaN becomes.
inline constexpr std::uint8_t kSm90Nvfp4Nan = 0x8F;
// Errors: scale.negative, where a sign bit was seen: there is none in the stored byte.
Result<Done> check_sm90_sign(bool has_negative);

}  // namespace fp4moe::formats
