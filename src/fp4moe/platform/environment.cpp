#include "fp4moe/platform/environment.hpp"

#include <algorithm>
#include <cctype>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::string_view kNumber = "a whole number; 0 means no";
constexpr std::string_view kWord = "true or 1 for yes, anything else for no";

// clang-format off
constexpr VariableRow kRows[kVariables] = {
    {Variable::flashinfer_mxfp4_bf16,          "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16",          Parsing::integer, false, kNumber, "MXFP4: 1 forces FlashInfer with BF16 activations (CUTLASS on 9.0, TRTLLM on 10.x), 0 takes both out of the automatic list"},
    {Variable::flashinfer_mxfp4_mxfp8,         "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",         Parsing::integer, false, kNumber, "MXFP4: 1 forces FlashInfer TRTLLM with MXFP8 activations"},
    {Variable::flashinfer_mxfp4_mxfp8_cutlass, "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", Parsing::integer, false, kNumber, "MXFP4: 1 forces FlashInfer CUTLASS with MXFP8 activations"},
    {Variable::mxfp4_use_marlin,               "VLLM_MXFP4_USE_MARLIN",                       Parsing::integer, false, kNumber, "MXFP4: 1 forces MARLIN; 0 lets LoRA deployments use Triton"},
    {Variable::rocm_use_aiter,                 "VLLM_ROCM_USE_AITER",                         Parsing::word,    false, kWord,   "ROCm: the master switch of AITER"},
    {Variable::rocm_use_aiter_moe,             "VLLM_ROCM_USE_AITER_MOE",                     Parsing::word,    true,  kWord,   "ROCm: AITER for MoE layers, where the master switch is on"},
    {Variable::batch_invariant,                "VLLM_BATCH_INVARIANT",                        Parsing::integer, false, kNumber, "1 admits only kernels whose results do not depend on the batch"},
    {Variable::flashinfer_fp4,                 "VLLM_USE_FLASHINFER_MOE_FP4",                 Parsing::integer, false, kNumber, "NVFP4: 1 admits only FlashInfer backends, 0 none of them"},
    {Variable::flashinfer_moe_backend,         "VLLM_FLASHINFER_MOE_BACKEND",                 Parsing::choice,  false, "throughput, latency or masked_gemm", "NVFP4: which FlashInfer backend VLLM_USE_FLASHINFER_MOE_FP4=1 means"},
    {Variable::test_force_fp8_marlin,          "VLLM_TEST_FORCE_FP8_MARLIN",                  Parsing::trimmed_word, false, kWord,   "NVFP4: forces MARLIN"},
    {Variable::marlin_input_dtype,             "VLLM_MARLIN_INPUT_DTYPE",                     Parsing::choice,  false, "int8 or fp8", "MARLIN: activations of eight bits; refused for MXFP4 (int8) and NVFP4 (both)"},
    {Variable::use_deep_gemm,                  "VLLM_USE_DEEP_GEMM",                          Parsing::integer, true,  kNumber, "DeepGEMM, where it is installed"},
    {Variable::b12x_force_a16,                 "VLLM_B12X_MOE_FP4_FORCE_A16",                 Parsing::integer, false, kNumber, "B12X: 1 keeps activations in 16 bits"},
    {Variable::humming_gemm_type,              "VLLM_HUMMING_MOE_GEMM_TYPE",                  Parsing::text,    false, "auto, indexed, grouped, grouped_contiguous or grouped_masked", "HUMMING: which of its kernels"},
    {Variable::humming_input_quant_config,     "VLLM_HUMMING_INPUT_QUANT_CONFIG",             Parsing::text,    false, "JSON", "HUMMING: how activations are quantized, whatever else was asked for"},
    {Variable::emulation_dequant_at_load,      "VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD",        Parsing::word,    false, kWord,   "MXFP4 EMULATION: 1 expands weights to BF16 once, when they are loaded"},
    {Variable::rocm_aiter_situv2,              "VLLM_ROCM_USE_AITER_MOE_SITUV2",              Parsing::choice,  false, "auto, a4w4, a8w4, a16w4, 0 or 1", "AITER: activations of its SiTU kernels (auto and 1: a4w4, 0: a16w4)"},
    {Variable::rocm_aiter_a4w4_dsv4,           "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4",           Parsing::choice,  false, "0 or 1", "AITER: 1 runs DeepSeek-V4.1 with MXFP4 activations; other models refuse it"},
    {Variable::flashinfer_low_precision_combine, "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE", Parsing::integer, false, kNumber, "FlashInfer's exchange: 1 sends results back in FP8"},
};
// clang-format on

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return result;
}

bool is_yes(std::string_view text) {
  const std::string word = lower(text);
  return word == "true" || word == "1";
}

// A whole number as Python writes it: signs, and underscores between digits.
std::optional<bool> integer_is_true(std::string_view text) {
  text = trimmed(text);
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  bool any = false, after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    any = any || c != '0';
    after_digit = true;
  }
  if (!after_digit) return std::nullopt;
  return any;
}

bool is_choice(Variable variable, std::string_view text) {
  switch (variable) {
    case Variable::flashinfer_moe_backend:
      return text == "throughput" || text == "latency" || text == "masked_gemm";
    case Variable::marlin_input_dtype:
      return text == "int8" || text == "fp8";
    case Variable::rocm_aiter_a4w4_dsv4:
      return text == "0" || text == "1";
    default: {
      constexpr std::string_view kSitu[] = {"auto", "a4w4", "a8w4", "a16w4", "0", "1"};
      return std::ranges::find(kSitu, lower(text)) != std::end(kSitu);
    }
  }
}

std::optional<bool> parse(Variable variable, std::string_view text) {
  switch (row(variable).parsing) {
    case Parsing::integer:
      return integer_is_true(text);
    case Parsing::word:
      return is_yes(text);
    case Parsing::trimmed_word:
      return is_yes(trimmed(text));
    case Parsing::text:
      return true;
    case Parsing::choice:
      break;
  }
  return is_choice(variable, text) ? std::optional<bool>(true) : std::nullopt;
}

}  // namespace

std::span<const VariableRow, kVariables> variables() { return kRows; }

const VariableRow& row(Variable variable) { return kRows[static_cast<std::size_t>(variable)]; }

const VariableRow* find_variable(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &VariableRow::name);
  return found == std::end(kRows) ? nullptr : &*found;
}

Result<bool> Environment::flag(Variable variable) const {
  const VariableRow& about = row(variable);
  if (!is_set(variable)) return about.when_unset;
  const std::optional<bool> value = parse(variable, *text(variable));
  if (value) return *value;
  return usage("environment.value", std::string(about.name) + " has no meaning")
      .expects(about.accepted, "'" + printable(*text(variable)) + "'")
      .try_this("unset it, or give it one of these values");
}

bool Environment::is_true(Variable variable) const {
  return is_set(variable) && parse(variable, *text(variable)) == true;
}

bool Environment::is_false(Variable variable) const {
  return is_set(variable) && parse(variable, *text(variable)) == false;
}

Environment read_environment(const Lookup& lookup) {
  Environment result;
  for (const VariableRow& about : kRows)
    if (const std::optional<std::string> value = lookup(about.name))
      result.set(about.variable, *value);
  return result;
}

Result<Done> check_environment(const Environment& environment) {
  for (const VariableRow& about : kRows)
    if (const Result<bool> value = environment.flag(about.variable); !value) return value.why();
  return Done{};
}

}  // namespace fp4moe::platform
