// The tensors that hold an expert's matrices and biases, in the order of LayerPacker::tensors().
#pragma once
#include <cstddef>
#include <string_view>

namespace fp4moe::convert {

inline constexpr std::string_view kTensorNames[] = {"w13",      "w2",       "w13_scale",
                                                    "w2_scale", "w13_bias", "w2_bias"};
inline constexpr std::size_t kW13 = 0, kW2 = 1, kW13Scale = 2, kW2Scale = 3, kW13Bias = 4;

}  // namespace fp4moe::convert
