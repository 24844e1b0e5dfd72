// Element types of the files we read and write, one row each. A type is stored in blocks: one
// element for plain types, two for packed FP4, 32 with their scale for GGUF's MXFP4.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fp4moe::tensor {

// clang-format off
enum class DType : std::uint8_t {
  boolean, f4, f6_e2m3, f6_e3m2, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64,
  gguf_mxfp4, gguf_nvfp4, gguf_q8_0,
  gguf_q4_0, gguf_q4_1, gguf_q5_0, gguf_q5_1, gguf_q2_k, gguf_q3_k, gguf_q4_k, gguf_q5_k, gguf_q6_k,
  gguf_iq4_nl, gguf_iq4_xs,
};

struct DTypeRow {
  DType dtype;
  std::string_view name;         // as safetensors spells it; GGUF block types as ggml spells them
  bool in_safetensors;
  int ggml_type;                 // the number in a GGUF file, -1 if it has none
  std::uint32_t block_elements;
  std::uint32_t block_bytes;
};

inline constexpr std::array<DTypeRow, 36> kDTypes{{
    {DType::boolean,     "BOOL",         true,  -1, 1,  1},
    {DType::f4,          "F4",           true,  -1, 2,  1},
    {DType::f6_e2m3,     "F6_E2M3",      true,  -1, 4,  3},
    {DType::f6_e3m2,     "F6_E3M2",      true,  -1, 4,  3},
    {DType::u8,          "U8",           true,  -1, 1,  1},
    {DType::i8,          "I8",           true,  24, 1,  1},
    {DType::f8_e5m2,     "F8_E5M2",      true,  -1, 1,  1},
    {DType::f8_e4m3,     "F8_E4M3",      true,  -1, 1,  1},
    {DType::f8_e8m0,     "F8_E8M0",      true,  -1, 1,  1},
    {DType::f8_e4m3fnuz, "F8_E4M3FNUZ",  true,  -1, 1,  1},
    {DType::f8_e5m2fnuz, "F8_E5M2FNUZ",  true,  -1, 1,  1},
    {DType::i16,         "I16",          true,  25, 1,  2},
    {DType::u16,         "U16",          true,  -1, 1,  2},
    {DType::f16,         "F16",          true,   1, 1,  2},
    {DType::bf16,        "BF16",         true,  30, 1,  2},
    {DType::i32,         "I32",          true,  26, 1,  4},
    {DType::u32,         "U32",          true,  -1, 1,  4},
    {DType::f32,         "F32",          true,   0, 1,  4},
    {DType::c64,         "C64",          true,  -1, 1,  8},
    {DType::f64,         "F64",          true,  28, 1,  8},
    {DType::i64,         "I64",          true,  27, 1,  8},
    {DType::u64,         "U64",          true,  -1, 1,  8},
    {DType::gguf_mxfp4,  "MXFP4",        false, 39, 32, 17},
    {DType::gguf_nvfp4,  "NVFP4",        false, 40, 64, 36},
    {DType::gguf_q8_0,   "Q8_0",         false,  8, 32, 34},
    // Attention and embeddings of GGUF models come in these: carried along, never computed with.
    {DType::gguf_q4_0,   "Q4_0",         false,  2, 32, 18},
    {DType::gguf_q4_1,   "Q4_1",         false,  3, 32, 20},
    {DType::gguf_q5_0,   "Q5_0",         false,  6, 32, 22},
    {DType::gguf_q5_1,   "Q5_1",         false,  7, 32, 24},
    {DType::gguf_q2_k,   "Q2_K",         false, 10, 256, 84},
    {DType::gguf_q3_k,   "Q3_K",         false, 11, 256, 110},
    {DType::gguf_q4_k,   "Q4_K",         false, 12, 256, 144},
    {DType::gguf_q5_k,   "Q5_K",         false, 13, 256, 176},
    {DType::gguf_q6_k,   "Q6_K",         false, 14, 256, 210},
    {DType::gguf_iq4_nl, "IQ4_NL",       false, 20, 32, 18},
    {DType::gguf_iq4_xs, "IQ4_XS",       false, 23, 256, 136},
}};
// clang-format on

constexpr const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }
constexpr std::string_view name(DType dtype) { return row(dtype).name; }
std::optional<DType> dtype_from_safetensors(std::string_view name);
std::optional<DType> dtype_from_ggml(std::uint32_t type);

}  // namespace fp4moe::tensor
