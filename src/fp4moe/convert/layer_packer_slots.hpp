// The tensors that hold an expert's matrices and biases, in the order of LayerPacker::tensors().
#pragma once
#include <cstddef>
#include <string_view>

namespace fp4moe::convert {

inline constexpr std::string_view kSlotNames[] = {"w13",      "w2",       "w13_scale",
                                                  "w2_scale", "w13_bias", "w2_bias"};
enum Slot : std::size_t { kW13, kW2, kW13Scale, kW2Scale, kW13Bias, kW2Bias };

}  // namespace fp4moe::convert
