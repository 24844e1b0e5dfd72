#include "fp4moe/oracle/explain/record.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/capability_words.hpp"
#include "fp4moe/oracle/layer_fields.hpp"

namespace fp4moe::oracle {
namespace {

bool is_listed(const Policy& policy, const Request& request, const Backend* backend) {
  const AutomaticList* list = find_list(policy, request);
  return list != nullptr && std::ranges::find(list->backends, backend) != list->backends.end();
}

// How far a kernel is from running: what is asked of the hardware counts most.
std::pair<std::ptrdiff_t, std::size_t> distance(const Verdict& verdict) {
  const auto of_hardware = std::ranges::count_if(verdict.refusals, [&](const Refusal& refusal) {
    return cause(verdict, refusal) == Cause::hardware;
  });
  return {of_hardware, verdict.refusals.size()};
}

std::vector<BackendRow> make_rows(const Policy& policy, const Request& request,
                                  const std::vector<Verdict>& survey) {
  std::vector<BackendRow> rows;
  for (const Verdict& verdict : survey) {
    if (rows.empty() || rows.back().backend != verdict.backend)
      rows.push_back(
          {.backend = verdict.backend, .automatic = is_listed(policy, request, verdict.backend)});
    BackendRow& row = rows.back();
    row.verdicts.push_back(&verdict);
    if (row.nearest == nullptr || distance(verdict) < distance(*row.nearest))
      row.nearest = &verdict;
  }
  return rows;
}

Consequences follow(const Policy& policy, Mode mode, const Request& request,
                    const Selection& selection) {
  const Backend& backend = *selection.backend;
  const Layer& layer = request.layer;
  Consequences result;
  result.sizes =
      layer_sizes(backend, request.device, rounding_activation(policy, layer), layer.parallel,
                  policy.policy_date, layer.in_dtype, {layer.hidden, layer.intermediate});
  if (result.sizes)
    result.buffers = weight_buffers(
        {.format = policy.format,
         .sizes = *result.sizes,
         .local_experts = layer.num_local_experts,
         .experts = layer.num_experts,
         .gated = layer.gated,
         .has_bias = layer.has_bias,
         .global_activation_scales = backend.global_activation_scales,
         .always_two_halves = has_two_halves_always(policy.format, policy.policy_date, mode)});
  else
    result.buffers = result.sizes.why();
  result.quant = quant_config(backend, policy.policy_date, mode, layer, BufferNames::modelopt,
                              form_from_layer(policy, request).activations);
  result.kernel = assemble(policy, mode, request, &backend, selection.experts);
  return result;
}

// A side effect of a choice in the reference.
struct Remark {
  EnumSet<PolicyDate> policy_dates{};
  std::string_view family{};  // of the chosen backend
  bool (*when)(const Record& record);
  std::string_view text{};
};
constexpr Remark kRemarks[] = {
    {kVllm033, "emulation",
     [](const Record& record) {
       return record.request.environment.is_true(Variable::emulation_dequant_at_load);
     },
     "vLLM expands weights to BF16 once, when they are loaded "
     "(VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD)"},
    {kVllm033, "humming",
     [](const Record& record) {
       return record.request.environment.is_set(Variable::humming_input_quant_config);
     },
     "VLLM_HUMMING_INPUT_QUANT_CONFIG decides how activations are quantized, whatever is said "
     "here"},
    {kVllm033, "aiter",
     [](const Record& record) {
       return record.request.environment.text(Variable::rocm_aiter_a4w4_dsv4) == "1";
     },
     "vLLM refuses VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4=1 for models other than DeepSeek-V4.1"},
    {kVllm033, "vllm_cutlass",
     [](const Record& record) {
       const Policy& policy = *record.selection.policy;
       return policy.format == WeightFormat::mxfp4 && !policy.is_generic;
     },
     "vLLM has no conversion of gpt-oss weights for this backend and stops while it loads them "
     "(Unsupported mxfp4_backend: Mxfp4MoeBackend.CUTLASS_MXFP4_MXFP4: should be one of: ...); "
     "fp4moe convert has"},
    {kVllm033, "aiter",
     [](const Record& record) {
       const Layer& layer = record.request.layer;
       return record.selection.policy->is_generic && layer.activation == Activation::situ &&
              layer.situ_linear_beta.has_value();
     },
     "vLLM takes AITER_MXFP4_BF16 for SiTU layers on gfx950 without any check"},
};

void remark(Record& record) {
  const Selection& selection = record.selection;
  for (const Remark& one : kRemarks)
    if (one.policy_dates.contains(selection.policy->policy_date) &&
        one.family == selection.backend->family && one.when(record))
      record.warnings.emplace_back(one.text);
}

void warn(Record& record) {
  const Selection& selection = record.selection;
  const Layer& layer = record.request.layer;
  for (const std::string& warned : selection.warned) record.warnings.push_back(warned);
  for (std::string& check : checks_before(*selection.policy, record.request))
    record.warnings.push_back("vLLM refuses this before it selects: " + std::move(check));
  if (selection.policy->lora && layer.lora && layer.backend != "auto")
    record.warnings.push_back(fmt::format(
        "LoRA decides before names do: the request for '{}' is ignored", layer.backend));
  if (selection.outcome == Outcome::none)
    record.warnings.emplace_back(
        "weights stay as loaded and nothing computes them; the policy native has a kernel here");
  if (!record.consequences) return;
  remark(record);
  const Consequences& then = *record.consequences;
  if (!then.sizes)
    record.warnings.push_back("the sizes cannot be had: " + then.sizes.why().message);
  if (!then.kernel)
    record.warnings.push_back("the kernel cannot be put together: " + then.kernel.why().message);
  else
    for (const std::string& warning : then.kernel->warnings) record.warnings.push_back(warning);
}

Json to_json(const Error& why) {
  Json result{{"error", why.id}, {"message", why.message}};
  if (!why.expected.empty()) result["expected"] = why.expected;
  if (!why.found.empty()) result["found"] = why.found;
  return result;
}

Json to_json(const Record& record, const Verdict& verdict, const Refusal& refusal) {
  const Sentence words = sentence(record, verdict, refusal);
  Json result{
      {"code", name(refusal.reason)}, {"requirement", words.requirement}, {"fact", words.fact}};
  if (!words.remedy.empty()) result["remedy"] = words.remedy;
  return result;
}

Json to_json(const Record& record, const Verdict& verdict) {
  Json refusals = Json::array();
  for (const Refusal& refusal : by_cause(verdict))
    refusals.push_back(to_json(record, verdict, refusal));
  const ExpertsClass& experts = *verdict.experts;
  return {{"backend", verdict.backend->name},
          {"experts", experts.name.empty() ? Json() : Json(experts.name)},
          {"kind", experts.kind == Kind::monolithic ? "monolithic" : "modular"},
          {"token_format", name(experts.format)},
          {"activations", name(verdict.activation)},
          {"activation_type", key_words(verdict.activation)},
          {"accepted", verdict.accepted()},
          {"refusals", std::move(refusals)},
          {"reference_reason",
           verdict.accepted()
               ? Json()
               : Json(reference_reason(*record.selection.policy, record.request, verdict))}};
}

Json device_json(const platform::Device& device) {
  Json libraries = Json::array();
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
    if (device.libraries.contains(static_cast<Library>(i)))
      libraries.push_back(platform::kLibraryNames[i]);
  return {{"name", device.name},
          {"platform", platform::name(device.kind)},
          {"capability", device.capability ? Json(platform::text(*device.capability)) : Json()},
          {"gfx", device.gfx.empty() ? Json() : Json(device.gfx)},
          {"libraries", std::move(libraries)},
          {"cpu", platform::text(device.cpu)},
          {"memory_bytes", device.memory_bytes}};
}

Json environment_json(const platform::Environment& environment) {
  Json result = Json::object();
  for (const platform::VariableRow& row : platform::variables())
    if (const auto& text = environment.text(row.variable)) result[std::string(row.name)] = *text;
  return result;
}

Json quant_json(const QuantConfig& quant) {
  Json formulas = Json::object();
  for (const Formula& formula : quant.formulas)
    formulas[std::string(formula.what)] = formula.made_of;
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  return {{"scheme", name(quant.scheme)},
          {"activations", name(quant.activations)},
          {"activation_type", key_words(quant.activations)},
          {"weights", quant.weight_type},
          {"made_of", std::move(formulas)},
          {"global_activation_scales", quant.global_activation_scales},
          {"gemm1_alpha", number(quant.gate.alpha)},
          {"gemm1_beta", number(quant.gate.beta)},
          {"gemm1_clamp", number(quant.gate.clamp)},
          {"caller_pads_input", quant.caller_pads_input},
          {"notes", quant.notes}};
}

Json kernel_json(const Result<KernelPlan>& kernel) {
  if (!kernel) return to_json(kernel.why());
  const PrepareFinalize& prepare = kernel->prepare;
  return {{"has_kernel", kernel->has_kernel},
          {"monolithic", kernel->monolithic},
          {"prepare_finalize", prepare.name},
          {"token_format", name(prepare.format)},
          {"dispatchers", prepare.dispatchers},
          {"max_tokens_per_rank",
           prepare.max_tokens_per_rank ? Json(*prepare.max_tokens_per_rank) : Json()},
          {"async", prepare.is_async},
          {"output_is_reduced", prepare.output_is_reduced},
          {"index_type", prepare.index_type.empty() ? Json() : Json(prepare.index_type)},
          {"quantizes_input", kernel->quantizes_input},
          {"quantises_input", kernel->quantizes_input},  // the old spelling
          {"inplace", kernel->inplace},
          {"holds_shared_experts", kernel->holds_shared_experts},
          {"passes_expert_map", kernel->passes_expert_map},
          {"routing_tables", kernel->routing_tables},
          {"note", kernel->note},
          {"log", kernel->log}};
}

Json buffers_json(const Result<std::vector<Buffer>>& buffers) {
  if (!buffers) return to_json(buffers.why());
  Json result = Json::array();
  for (const Buffer& buffer : *buffers)
    result.push_back({{"name", buffer.name},
                      {"shape", buffer.shape},
                      {"dtype", buffer.dtype},
                      {"initial", buffer.initial},
                      {"bytes", buffer.bytes}});
  return result;
}

Json consequences_json(const Record& record) {
  const Consequences& result = *record.consequences;
  const Layer& layer = record.request.layer;
  Json sizes{{"hidden", layer.hidden}, {"intermediate", layer.intermediate}};
  if (result.sizes)
    sizes["rounded"] = {{"hidden", result.sizes->hidden},
                        {"intermediate", result.sizes->intermediate}};
  else
    sizes["rounded"] = to_json(result.sizes.why());
  return {{"sizes", std::move(sizes)},
          {"layout", record.selection.backend->layout},
          {"weights", buffers_json(result.buffers)},
          {"quant_config", quant_json(result.quant)},
          {"kernel", kernel_json(result.kernel)}};
}

}  // namespace

std::string decisive_reason(const Request& request, const Verdict& verdict) {
  if (verdict.accepted()) return {};
  const Sentence words = sentence(request, verdict, by_cause(verdict).front());
  return words.requirement + "; " + words.fact;
}

Sentence sentence(const Record& record, const Verdict& verdict, const Refusal& refusal) {
  Sentence words = sentence(record.request, verdict, refusal);
  const auto own = std::ranges::find(record.rows, verdict.backend, &BackendRow::backend);
  if (own != record.rows.end() && own->remedy) {
    words.remedy = join(own->remedy->steps, ", ");
    return words;
  }
  std::vector<std::string> others;
  for (const BackendRow& row : record.rows)
    if (row.would_run()) others.emplace_back(row.backend->name);
  words.remedy = others.empty() ? "no backend of this policy runs here; see the policy native"
                                : join(others, ", ") + " would run";
  return words;
}

std::vector<std::string> checks_before(const Policy& policy, const Request& request) {
  std::vector<std::string> found;
  if (policy.policy_date == PolicyDate::native) return found;
  const bool mxfp4 = policy.format == WeightFormat::mxfp4;
  const std::string_view method = !mxfp4                                       ? "modelopt_fp4"
                                  : policy.policy_date == PolicyDate::april_24 ? "gpt_oss_mxfp4"
                                                                               : "mxfp4";
  const int min = mxfp4 ? 80 : 75;
  if (const auto& capability = request.device.capability) {
    const int number = capability->major * 10 + capability->minor;
    if (number < min)
      found.push_back(fmt::format(
          "The quantization method {} is not supported for the current GPU. Minimum capability: "
          "{}. Current capability: {}.",
          method, min, number));
  }
  if (mxfp4 && request.layer.in_dtype != ScalarType::bfloat16)
    found.push_back(fmt::format(
        "torch.{} is not supported for quantization method {}. Supported dtypes: [torch.bfloat16]",
        name(request.layer.in_dtype), method));
  return found;
}

Record make_record(const Policy& policy, Mode mode, const Request& request) {
  Record record;
  record.request = request;
  record.selection = select(policy, mode, request);
  record.survey = survey(policy, mode, request);
  record.rows = make_rows(policy, request, record.survey);
  if (record.selection.outcome == Outcome::selected)
    record.consequences = follow(policy, mode, request, record.selection);
  warn(record);
  return record;
}

Json to_json(const Record& record) {
  const Selection& selection = record.selection;
  const Policy& policy = *selection.policy;
  const Request& request = record.request;
  constexpr std::array<std::string_view, 3> kOutcomes{"selected", "none", "error"};
  const bool is_class = selection.experts != nullptr && !selection.experts->name.empty();
  Json evaluated = Json::array(), candidates = Json::array(), would_run = Json::array();
  for (const Verdict& verdict : selection.evaluated) evaluated.push_back(to_json(record, verdict));
  for (const Verdict& verdict : record.survey) candidates.push_back(to_json(record, verdict));
  for (const BackendRow& row : record.rows)
    if (row.would_run()) would_run.push_back(row.backend->name);
  Json layer = Json::object();
  for (const LayerField& field : layer_fields())
    layer[std::string(field.key)] = field.show(request.layer);
  layer["parallel"] = printed(request.layer.parallel, policy.policy_date);

  Json result{
      {"policy", policy.name},
      {"mode", kModeNames[static_cast<std::size_t>(selection.mode)]},
      {"format", formats::name(policy.format)},
      {"device", device_json(request.device)},
      {"environment", environment_json(request.environment)},
      {"layer", std::move(layer)},
      {"outcome", kOutcomes[static_cast<std::size_t>(selection.outcome)]},
      {"backend", selection.backend == nullptr ? Json() : Json(selection.backend->name)},
      {"experts", is_class ? Json(selection.experts->name) : Json()},
      {"monolithic", is_class ? Json(selection.experts->kind == Kind::monolithic) : Json()},
      {"activation_format", is_class ? Json(name(selection.experts->format)) : Json()},
      {"activations", name(selection.activation)},
      {"activation_type", key_words(selection.activation)},
  };
  if (selection.outcome == Outcome::error) {
    result["error_type"] = name(selection.error);
    result["message"] = selection.message;
  }
  result["log"] = selection.log;
  result["warnings"] = record.warnings;
  result["would_run"] = std::move(would_run);
  result["evaluated"] = std::move(evaluated);
  result["candidates"] = std::move(candidates);
  if (record.consequences) result["consequences"] = consequences_json(record);
  return result;
}

}  // namespace fp4moe::oracle
