// Which class carries tokens between ranks, as a table of exchanges and times.
#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/oracle/vllm/assembly.hpp"

namespace fp4moe::oracle {
namespace {

constexpr EnumSet<PolicyDate> kBeforeAugust2026AndOurs{PolicyDate::march_20, PolicyDate::march_27,
                                                       PolicyDate::april_24, PolicyDate::native};

enum class Dispatchers : std::uint8_t { one, world, world_without_tensor_parallel };

struct PrepareRow {
  Exchange exchange;
  EnumSet<PolicyDate> policy_dates;
  std::string_view modular, monolithic;  // no second name: there is only a modular one
  TokenFormat format;
  bool bounded;  // has a maximum number of tokens per rank
  Dispatchers dispatchers;
  bool is_async, reduced;
  std::string_view index_type;
};

constexpr auto kStandard = TokenFormat::standard;
constexpr auto kBatched = TokenFormat::batched;
constexpr auto kWorld = Dispatchers::world;

// clang-format off
constexpr PrepareRow kRows[] = {
    {Exchange::none,                 kJanuary2026,    "MoEPrepareAndFinalizeNoEP",                  "",                                          kStandard, false, Dispatchers::one, false, false, ""},
    {Exchange::none,                 kSinceMarch2026, "MoEPrepareAndFinalizeNoDPEPModular",         "MoEPrepareAndFinalizeNoDPEPMonolithic",     kStandard, false, Dispatchers::one, false, false, ""},
    {Exchange::gather,               kJanuary2026,    "MoEPrepareAndFinalizeNaiveEP",               "",                                          kStandard, false, kWorld,           false, false, ""},
    {Exchange::gather,               kSinceMarch2026, "MoEPrepareAndFinalizeNaiveDPEPModular",      "MoEPrepareAndFinalizeNaiveDPEPMonolithic",  kStandard, false, kWorld,           false, false, ""},
    {Exchange::pplx,                 kJanuary2026,    "PplxPrepareAndFinalize",                     "",                                          kBatched,  true,  Dispatchers::world_without_tensor_parallel, true, true, "u32"},
    {Exchange::deepep_ht,            kAllDates,     "DeepEPHTPrepareAndFinalize",                 "",                                          kStandard, false, kWorld,           true,  true,  "i64"},
    {Exchange::deepep_ll,            kAllDates,     "DeepEPLLPrepareAndFinalize",                 "",                                          kBatched,  true,  kWorld,           true,  true,  "i64"},
    {Exchange::deepep_v2,            kSinceAugust2026,     "DeepEPV2PrepareAndFinalize",                 "",                                          kStandard, false, kWorld,           true,  true,  "i64"},
    {Exchange::mori,                 kAllDates,     "MoriPrepareAndFinalize",                     "",                                          kStandard, true,  kWorld,           false, true,  "i32"},
    {Exchange::flashinfer_two_sided, kJanuary2026,    "FlashInferA2APrepareAndFinalize",            "",                                          kStandard, false, kWorld,           false, false, ""},
    {Exchange::flashinfer_two_sided, kBeforeAugust2026AndOurs, "FlashInferNVLinkTwoSidedPrepareAndFinalize", "",                                       kStandard, false, kWorld,           false, false, ""},
    {Exchange::flashinfer_two_sided, kSinceAugust2026,     "FlashInferNVLinkTwoSidedPrepareAndFinalize", "",                                          kStandard, false, kWorld,           false, true,  ""},
    {Exchange::flashinfer_one_sided, kBeforeAugust2026AndOurs, "FlashInferNVLinkOneSidedPrepareAndFinalize", "",                                       kStandard, false, kWorld,           false, false, "i32"},
    {Exchange::flashinfer_one_sided, kSinceAugust2026,     "FlashInferNVLinkOneSidedPrepareAndFinalize", "",                                          kStandard, false, kWorld,           false, true,  "i32"},
    {Exchange::nixl,                 kSinceMarch2026, "NixlEPPrepareAndFinalize",                   "",                                          kBatched,  true,  kWorld,           true,  true,  "i64"},
    {Exchange::moonep,               kVllm033,    "MoonEPPrepareAndFinalize",                   "",                                          kStandard, true,  kWorld,           false, true,  "i32"},
    {Exchange::passthrough,          kVllm033,    "PassThroughPrepareAndFinalize",              "",                                          kStandard, false, Dispatchers::one, false, true,  ""},
};
// clang-format on

std::uint64_t dispatchers(const PrepareRow& row, const Parallel& parallel) {
  const auto size = [](int number) { return static_cast<std::uint64_t>(std::max(number, 1)); };
  switch (row.dispatchers) {
    case Dispatchers::one:
      return 1;
    case Dispatchers::world:
      return size(parallel.ep_size) * size(parallel.tp_size);
    case Dispatchers::world_without_tensor_parallel:
      return size(parallel.dp_size) * size(parallel.pcp_size);
  }
  return 1;
}

// A type of activations as Python prints it, and the facts that August's message adds.
struct QuantWord {
  ActivationKey key;
  std::string_view printed;
  std::string_view fp8, blocks;
};
constexpr QuantWord kQuantWords[] = {
    {ActivationKey::none, "None", "False", "None"},
    {ActivationKey::mxfp8, "'mxfp8'", "False", "None"},
    {ActivationKey::mxfp4, "'mxfp4'", "False", "None"},
    {ActivationKey::nvfp4, "'nvfp4'", "False", "None"},
    {ActivationKey::fp8_static_tensor, "torch.float8_e4m3fn", "True", "None"},
    {ActivationKey::fp8_block128, "torch.float8_e4m3fn", "True", "[128, 128]"},
    {ActivationKey::fp8_token, "torch.float8_e4m3fn", "True", "None"},
    {ActivationKey::nvfp4_token, "'nvfp4'", "False", "None"},
};

const QuantWord& word(ActivationKey key) {
  return *std::ranges::find(kQuantWords, key, &QuantWord::key);
}

Error one_sided(const std::string& message) {
  return error(ErrorCode::no_backend, "assembly.one_sided", message)
      .try_this("Use flashinfer_nvlink_two_sided or allgather_reducescatter");
}

Result<Done> check_one_sided(const PrepareRequest& request) {
  const QuantWord& quant = word(request.activations);
  if (!kSinceAugust2026.contains(request.policy_date)) {
    // Spring's first versions did not look.
    if (!kSinceApril2026.contains(request.policy_date) || quant.key == ActivationKey::nvfp4)
      return Done{};
    return one_sided(fmt::format(
        "The 'flashinfer_nvlink_one_sided' all2all backend only supports nvfp4 activation "
        "quantization, but got quant_dtype={}. Use a different all2all backend (e.g. "
        "'flashinfer_nvlink_two_sided' or 'allgather_reducescatter') for non-nvfp4 models.",
        quant.printed));
  }
  constexpr EnumSet<ActivationKey> kCarried{ActivationKey::none, ActivationKey::nvfp4,
                                            ActivationKey::mxfp8};
  if (kCarried.contains(quant.key)) return Done{};
  if (quant.key == ActivationKey::nvfp4_token) {
    // With a scale for each token they travel in 16 bits.
    if (request.tokens != ScalarType::float32) return Done{};
    return error(ErrorCode::no_backend, "assembly.unpacked",
                 fmt::format("flashinfer_nvlink_one_sided unpacked inputs must be float16 or "
                             "bfloat16, got torch.{}",
                             name(request.tokens)))
        .try_this("Use flashinfer_nvlink_two_sided or allgather_reducescatter");
  }
  if (quant.key == ActivationKey::fp8_block128) {
    if (request.hidden % 128 == 0) return Done{};
    return one_sided(fmt::format(
        "flashinfer_nvlink_one_sided DeepSeek Blockwise FP8 dispatch requires hidden_dim "
        "divisible by 128; got {}",
        request.hidden));
  }
  return one_sided(fmt::format(
      "flashinfer_nvlink_one_sided dispatch supports nvfp4, mxfp8, DeepSeek Blockwise FP8 (E4M3 "
      "with FP32 1x128 scales), and bf16 (quant_dtype=None) today; got quant_dtype={}, "
      "use_fp8_w8a8={}, block_shape={}",
      quant.printed, quant.fp8, quant.blocks));
}

}  // namespace

Result<PrepareFinalize> prepare_finalize(const PrepareRequest& request) {
  const Parallel& parallel = request.parallel;
  Exchange used = exchange(parallel, request.policy_date);
  PrepareFinalize result;
  if (used == Exchange::none && parallel.dp_size > 1) {
    used = Exchange::gather;
    result.log.emplace_back(
        "Detected DP deployment with no --enable-expert-parallel. Falling back to "
        "AllGather+ReduceScatter dispatch/combine.");
  }
  const auto* row = std::ranges::find_if(kRows, [&](const PrepareRow& candidate) {
    return candidate.exchange == used && candidate.policy_dates.contains(request.policy_date);
  });
  if (row == std::end(kRows))
    return error(ErrorCode::no_backend, "assembly.exchange",
                 "no class of this version carries tokens by this exchange")
        .expects(fmt::format("one of {}", fmt::join(exchange_names(request.policy_date), ", ")),
                 parallel.all2all_backend);
  if (used == Exchange::flashinfer_one_sided)
    if (const auto carried = check_one_sided(request); !carried) return carried.why();

  result.monolithic = request.monolithic && !row->monolithic.empty();
  result.name = result.monolithic ? row->monolithic : row->modular;
  result.format = row->format;
  if (row->bounded) result.max_tokens_per_rank = request.max_num_tokens;
  result.dispatchers = dispatchers(*row, parallel);
  result.is_async = row->is_async;
  result.output_is_reduced = row->reduced;
  result.index_type = row->index_type;
  result.log.push_back(fmt::format("Using {}", result.name));
  return result;
}

}  // namespace fp4moe::oracle
