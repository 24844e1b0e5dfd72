#include "fp4moe/runtime/selection_request.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/oracle/layer_fields.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/findings.hpp"

namespace fp4moe::runtime {
namespace {

using oracle::Layer;
using platform::Device;
using platform::Library;
using platform::PlatformKind;

Error unknown_word(std::string_view option, std::string_view word,
                   std::span<const std::string_view> words) {
  const std::vector<std::string> names(words.begin(), words.end());
  return usage("question.word", fmt::format("{} does not know '{}'", option, printable(word)))
      .expects("one of " + join(names, ", "), "'" + printable(word) + "'")
      .try_this(did_you_mean(word, words));
}

// A word of a closed list, or a usage error that shows the list and the nearest spelling.
Result<std::size_t> find_word(std::string_view option, std::string_view word,
                              std::span<const std::string_view> words) {
  const auto found =
      std::ranges::find_if(words, [&](std::string_view each) { return is_same_word(each, word); });
  if (found == words.end()) return unknown_word(option, word, words);
  return static_cast<std::size_t>(found - words.begin());
}

// "flashinfer,+b12x,-aiter": names alone replace what the device has, signs change it.
Result<Done> change_libraries(const std::vector<std::string>& changes, Device& device) {
  const bool replaces = std::ranges::any_of(changes, [](const std::string& change) {
    return !change.starts_with('+') && !change.starts_with('-');
  });
  if (replaces) device.libraries = {};
  if (!changes.empty()) device.usual = false;
  for (const std::string& change : changes) {
    if (change == "none") continue;
    const bool sign = change.starts_with('+') || change.starts_with('-');
    const Result<std::size_t> which =
        find_word("--lib", std::string_view(change).substr(sign ? 1 : 0), platform::kLibraryNames);
    if (!which) return which.why();
    const auto library = static_cast<Library>(*which);
    change.starts_with('-') ? device.libraries.erase(library) : device.libraries.insert(library);
  }
  return Done{};
}

Result<Done> set_gfx(std::string_view gfx, Device& device) {
  const Result<platform::Capability> capability = platform::capability_from_gfx(gfx);
  if (!capability)
    return usage(capability.why().id, capability.why().message)
        .expects(capability.why().expected, capability.why().found);
  device.gfx = gfx;
  device.capability = *capability;
  device.kind = PlatformKind::rocm;
  return Done{};
}

// A device put together from single fields.
Result<Done> change_fields(const SelectionOptions& options, Device& device) {
  if (!options.platform.empty()) {
    const Result<std::size_t> kind =
        find_word("--platform", options.platform, platform::kPlatformNames);
    if (!kind) return kind.why();
    device.kind = static_cast<PlatformKind>(*kind);
    device.name = options.platform;
    device.capability.reset();
    device.gfx.clear();
    device.usual = false;
  }
  if (!options.gfx.empty())
    if (const Result<Done> set = set_gfx(options.gfx, device); !set) return set.why();
  if (options.capability.empty()) return Done{};
  device.capability = platform::capability_from_text(options.capability);
  if (!device.capability)
    return usage("question.capability", "--capability is not a compute capability")
        .expects("a pair such as 9.0", "'" + printable(options.capability) + "'");
  return Done{};
}

bool is_described(const SelectionOptions& options) {
  return options.device != "auto" || !options.platform.empty() || !options.gfx.empty();
}

std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

Result<std::optional<oracle::WeightFormat>> format_from(std::string_view word) {
  if (word.empty()) return std::optional<oracle::WeightFormat>{};
  const Result<std::size_t> which = find_word("--format", word, formats::kWeightFormatNames);
  if (!which) return which.why();
  return std::optional(static_cast<oracle::WeightFormat>(*which));
}

bool is_spelled_as_path(std::string_view word) {
  return word.starts_with('/') || word.starts_with("./") || word.starts_with("../") ||
         word.ends_with(".json") || word.ends_with(".gguf") || word.ends_with(".safetensors");
}

// A model's configuration, not the fields of a layer.
bool is_model_config(const Json& document) {
  return document.is_object() &&
         (document.contains("model_type") || document.contains("architectures") ||
          document.contains("quantization_config"));
}

// True if the model's maker publishes it in FP4; other models are quantized by third parties.
bool is_published_in_fp4(const checkpoint::ModelRow& row) {
  return row.model_type == "gpt_oss" || row.model_type == "deepseek_v4";
}

// The layer to ask about before single fields change it.
Result<Done> use_model(const SelectionOptions& options, SelectionRequest& request) {
  std::string source = options.model;
  if (source.empty() && !options.config.empty()) {
    const Result<Json> document = read_json_file(options.config);
    if (!document) return document.why();
    if (!is_model_config(*document)) {
      const auto format = format_from(options.format);
      if (!format) return format.why();
      request.model.shape.format = format->value_or(oracle::WeightFormat::mxfp4);
      return Done{};
    }
    source = options.config;
  }
  request.model_assumed = source.empty();
  const auto named = checkpoint::require_named(source);
  request.format_assumed = options.format.empty() && named && !named->format &&
                           at_path(source) == AtPath::nothing && !is_published_in_fp4(*named->row);
  Result<plan::Model> found =
      find_model(source.empty() ? options.assumed_model : source, options.format);
  if (!found) return found.why();
  request.model = *std::move(found);
  request.request.layer = request.model.layer;
  for (const std::string& note : request.model.notes) request.notes.push_back(note);
  return Done{};
}

Result<Done> use_options(const SelectionOptions& options, Layer& layer) {
  if (!options.config.empty()) {
    const Result<Json> config = read_json_file(options.config);
    if (!config) return config.why();
    const Json& fields = config->contains("config") ? config->at("config") : *config;
    if (!is_model_config(*config))
      if (const Result<Done> set = oracle::set_fields(layer, fields); !set)
        return Error(set.why()).in(options.config);
  }
  if (!options.layer.is_null())
    if (const Result<Done> set = oracle::set_fields(layer, options.layer); !set) return set.why();
  for (const auto& [key, value] : options.fields)
    if (!value.empty())
      if (const Result<Done> set = oracle::set_field(layer, key, value); !set) return set.why();
  for (const auto& [key, is_on] : options.on)
    if (is_on)
      if (const Result<Done> set = oracle::set_field(layer, key, "true"); !set) return set.why();
  for (const auto& [key, is_off] : options.off)
    if (is_off)
      if (const Result<Done> set = oracle::set_field(layer, key, "false"); !set) return set.why();
  layer.gated = layer.gated && oracle::is_gated(layer.activation);
  return Done{};
}

// The word of vLLM's --moe-backend that was written or that leads to the backend that was named.
Result<Done> name_backend(const oracle::Policy& policy, SelectionRequest& request) {
  std::string& word = request.request.layer.backend;
  const auto is_it = [&](const oracle::NamedChoice& choice) {
    return is_same_word(choice.name, word);
  };
  if (is_same_word(word, "auto")) {
    word = "auto";
    return Done{};
  }
  if (const auto named = std::ranges::find_if(policy.names, is_it); named != policy.names.end()) {
    word = named->name;
    return Done{};
  }
  const oracle::Backend* backend = backends::find_by_any_name(policy, word);
  if (backend == nullptr) return backends::unknown_backend(std::span(&request.policy, 1), word);
  const std::vector<std::string_view> words = backends::words_for(policy, *backend);
  if (words.empty())
    return usage("question.word",
                 fmt::format("no name of policy {} selects {}", policy.name, backend->name))
        .expects(policy.names.empty() ? "no name: this policy takes none"
                                      : "a backend that a name of vLLM's --moe-backend selects",
                 backend->name)
        .try_this("It is reached automatically or by a variable: fp4moe explain -v");
  word = words.front();
  const auto chosen = std::ranges::find(policy.names, words.front(), &oracle::NamedChoice::name);
  if (chosen->backends.front() != backend)
    request.notes.push_back(fmt::format("vLLM's word for {} is {}, which tries {} first",
                                        backend->name, words.front(),
                                        chosen->backends.front()->name));
  return Done{};
}

Result<oracle::Deployment> deployment_of(const SelectionOptions& options,
                                         oracle::PolicyDate policy_date,
                                         std::vector<std::string>& notes) {
  oracle::Deployment deployment{
      .tp_size = static_cast<int>(options.tp),
      .pcp_size = static_cast<int>(options.pcp),
      .dp_size = static_cast<int>(options.dp),
      .sp_size = static_cast<int>(options.sp),
      .enable_expert_parallel = options.expert_parallel || (options.ep && *options.ep != 1),
      .enable_eplb = options.eplb,
  };
  if (options.ep && *options.ep > 1) {
    const std::uint64_t all = options.tp * options.pcp * options.dp;
    if (all != 1 && all != *options.ep)
      return usage("question.ranks", "experts are split over all ranks or not at all")
          .expects(fmt::format("--ep {}, as the other sizes make that many", all),
                   fmt::format("--ep {}", *options.ep))
          .try_this(fmt::format("Use --ep {}, or --ep {} alone", all, *options.ep));
    if (all == 1) deployment.tp_size = static_cast<int>(*options.ep);
  }
  if (!options.all2all.empty()) {
    const Result<oracle::AcceptedExchange> accepted =
        oracle::accept_exchange(options.all2all, policy_date);
    if (!accepted) return accepted.why();
    deployment.all2all_backend = accepted->name;
    if (!accepted->warning.empty()) notes.push_back(accepted->warning);
  }
  return deployment;
}

// Single fields speak of one rank's layer: what they change is changed in the whole one, too.
void follow_fields(const Layer& before, const Layer& after, SelectionRequest& request) {
  checkpoint::MoeShape& shape = request.model.shape;
  shape.hidden = after.hidden;
  shape.experts = after.num_experts;
  shape.has_bias = after.has_bias;
  if (after.intermediate != before.intermediate)
    shape.intermediate = after.intermediate * static_cast<std::uint64_t>(after.parallel.tp_size);
  if (after.gated != before.gated)
    shape.order = after.gated ? checkpoint::RowOrder::halves : checkpoint::RowOrder::single;
  request.model.layer = after;
  request.model.layer.parallel = {};
  request.model.layer.num_local_experts = shape.experts;
  request.model.layer.intermediate = shape.intermediate;
}

// A layer of single fields is gpt-oss's, as its defaults are.
backends::Entry asked_entry(const plan::Model& model) {
  const bool is_layer = model.name.empty() && model.family.empty();
  return is_layer ? backends::Entry::gpt_oss : plan::entry_of(model);
}

const oracle::Policy* entry_for(const plan::Model& model, oracle::PolicyDate policy_date) {
  const oracle::Policy *first = nullptr, *other = nullptr;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != model.shape.format || policy.policy_date != policy_date) continue;
    (policy.is_generic ? other : first) = &policy;
  }
  const bool wants_other = first == nullptr || asked_entry(model) == backends::Entry::generic;
  return other != nullptr && wants_other ? other : first;
}

// Release 0.33.0 does not ask its oracle about MXFP4 of compressed-tensors.
void note_own_way(SelectionRequest& request) {
  const plan::Model& model = request.model;
  const oracle::ActivationKey asked =
      plan::layer_for(model, request.policy->policy_date).activation_key;
  if (model.quark_input && asked != oracle::ActivationKey::none)
    request.notes.push_back(fmt::format(
        "Quark's configuration asks for activations {}: --activation-quant changes that",
        oracle::name(asked)));
  if (model.names == oracle::BufferNames::compressed_tensors &&
      model.shape.format == oracle::WeightFormat::mxfp4 &&
      request.policy->policy_date == oracle::PolicyDate::vllm_033)
    request.notes.emplace_back(
        "vLLM takes MXFP4 of compressed-tensors past its oracle: CUTLASS_MXFP4_MXFP4 on "
        "capability 10.x and 11.x, XPU on Intel GPUs, else MARLIN; --moe-backend b12x alone "
        "changes that");
}

Result<Done> use_policy(const SelectionOptions& options, SelectionRequest& request) {
  request.policy_assumed = options.policy.empty() && options.vllm.empty();
  if (request.policy_assumed && (request.is_described || options.prefers_vllm)) {
    request.policy = &newest_vllm(request.model);
    return Done{};
  }
  const Result<std::string> word = policy_word(options.policy, options.vllm);
  if (!word) return word.why();
  Result<backends::PolicyChoice> chosen =
      backends::choose_policy(word->empty() ? backends::kNative : std::string_view(*word),
                              request.model.shape.format, asked_entry(request.model));
  if (!chosen) return chosen.why();
  request.policy = chosen->policy;
  request.release = std::move(chosen->release);
  if (request.release && !request.release->note.empty())
    request.notes.push_back(request.release->note);
  const oracle::Policy* own = entry_for(request.model, request.policy->policy_date);
  if (own != request.policy && !request.model.name.empty())
    request.notes.push_back(
        fmt::format("vLLM asks another entry for this model: --policy {}", own->name));
  return Done{};
}

// Backends that exchange tokens themselves fix the exchange.
Result<Done> bind(const SelectionOptions& options, SelectionRequest& request) {
  oracle::Layer& layer = request.request.layer;
  const std::string_view family =
      request.model_assumed ? std::string_view() : std::string_view(request.model.family);
  const Result<oracle::Binding> bound = oracle::bind_exchange(
      {.backend = layer.backend,
       .all2all = options.all2all.empty() ? std::string_view() : layer.parallel.all2all_backend,
       .architecture = family.starts_with("deepseek_v4") ? "DeepseekV4ForCausalLM" : family},
      request.policy->policy_date);
  if (!bound) return bound.why();
  if (!bound->log.empty()) request.notes.push_back(bound->log);
  if (bound->all2all.empty()) return Done{};
  layer.parallel.all2all_backend = bound->all2all;
  if (request.deployment) request.deployment->all2all_backend = bound->all2all;
  return Done{};
}

Result<Done> use_layer(const SelectionOptions& options, SelectionRequest& request) {
  Layer& layer = request.request.layer;
  const Result<oracle::Deployment> deployment =
      deployment_of(options, request.policy->policy_date, request.notes);
  if (!deployment) return deployment.why();
  const bool has_model = !request.model.name.empty();
  if (has_model) {
    layer.activation_key =
        plan::layer_for(request.model, request.policy->policy_date).activation_key;
    deploy(*deployment, request);
  } else {
    layer.parallel = oracle::derive(*deployment);
  }
  if (!has_model && request.model.shape.format == oracle::WeightFormat::nvfp4)
    layer.activation_key = oracle::ActivationKey::nvfp4;
  const Layer before = layer;
  if (const Result<Done> done = use_options(options, layer); !done) return done.why();
  if (const Result<Done> done = name_backend(*request.policy, request); !done) return done.why();
  if (!has_model) {
    request.deployment.reset();
    return Done{};
  }
  const Layer after = layer;
  follow_fields(before, after, request);
  const oracle::PolicyDate policy_date = request.policy->policy_date;
  if (printed(before.parallel, policy_date) != printed(after.parallel, policy_date)) {
    request.deployment.reset();
    request.split.reset();
    return Done{};
  }
  deploy(*deployment, request);
  if (after.num_local_experts != before.num_local_experts)
    request.request.layer.num_local_experts = after.num_local_experts;
  return Done{};
}

}  // namespace

platform::Environment environment_for(const SelectionOptions& options) {
  return is_described(options) ? platform::Environment() : platform::read_environment();
}

Result<platform::Environment> resolve_environment(const SelectionOptions& options) {
  platform::Environment environment = environment_for(options);
  for (const std::string& pair : options.variables) {
    const std::size_t sign = pair.find('=');
    const std::string_view name = std::string_view(pair).substr(0, sign);
    const platform::VariableRow* row = platform::find_variable(name);
    if (row == nullptr || sign == pair.npos) {
      std::vector<std::string_view> names;
      for (const platform::VariableRow& known : platform::variables()) names.push_back(known.name);
      if (row == nullptr) return unknown_word("--env", name, names);
      return usage("question.variable", "--env needs a value")
          .expects("NAME=VALUE", "'" + printable(pair) + "'");
    }
    environment.set(row->variable, std::string_view(pair).substr(sign + 1));
  }
  if (const Result<Done> good = platform::check_environment(environment); !good) return good.why();
  return environment;
}

Result<std::string> policy_word(std::string_view policy, std::string_view vllm) {
  if (vllm.empty()) return std::string(policy);
  if (policy.empty() || policy == backends::kNative) return backends::vllm_word(vllm);
  return usage("question.policy", "a version of vLLM has its policy")
      .expects("either --policy or --vllm",
               fmt::format("--policy {} and --vllm {}", printable(policy), printable(vllm)));
}

Result<Device> resolve_device(const SelectionOptions& options, const oracle::Policy* policy) {
  Device device;
  if (options.device != "auto") {
    Result<Device> found = platform::describe_device(options.device);
    if (!found) return found.why();
    device = *std::move(found);
  } else if (!is_described(options)) {
    device = platform::detect_device();
  }
  if (const Result<Done> changed = change_fields(options, device); !changed) return changed.why();
  if (policy != nullptr) device = oracle::installed(*policy, std::move(device));
  if (const Result<Done> changed = change_libraries(options.libraries, device); !changed)
    return changed.why();
  return device;
}

void deploy(const oracle::Deployment& deployment, SelectionRequest& request) {
  const oracle::Parallel parallel = oracle::derive(deployment);
  Layer& layer = request.request.layer;
  const plan::Model& model = request.model;
  layer.parallel = parallel;
  request.deployment = deployment;
  request.split = plan::plan_split(model, parallel, request.policy->policy_date);
  if (*request.split) {
    layer.num_local_experts = (*request.split)->max_experts;
    layer.intermediate = (*request.split)->divided;
  } else {
    layer.num_local_experts =
        ceil_divide(model.shape.experts, static_cast<std::uint64_t>(parallel.ep_size));
    layer.intermediate =
        ceil_divide(model.shape.intermediate, static_cast<std::uint64_t>(parallel.tp_size));
  }
}

const oracle::Policy& newest_vllm(const plan::Model& model) {
  return backends::newest_vllm_policy(model.shape.format, asked_entry(model));
}

Result<plan::Model> find_model(const std::string& name_or_path, std::string_view format) {
  const auto wanted = format_from(format);
  if (!wanted) return wanted.why();
  const auto is_there = [&] {
    const AtPath found = at_path(name_or_path);
    return found == AtPath::folder || found == AtPath::file;
  };
  const bool is_path = checkpoint::find_model(name_or_path) == nullptr &&
                       (is_spelled_as_path(name_or_path) || is_there());
  if (is_path) return plan::model_from_path(name_or_path, *wanted);
  const Result<checkpoint::NamedModel> named = checkpoint::require_named(name_or_path);
  if (!named) return named.why();
  return plan::model_from_row(*named->row, *wanted ? *wanted : named->format);
}

Result<SelectionRequest> resolve(const SelectionOptions& options) {
  SelectionRequest request;
  const Result<std::size_t> mode = find_word("--mode", options.mode, oracle::kModeNames);
  if (!mode) return mode.why();
  request.mode = static_cast<oracle::Mode>(*mode);
  request.is_described = is_described(options);
  request.packages_assumed = request.is_described && options.libraries.empty();
  request.variables_assumed = request.is_described && options.variables.empty();
  if (const Result<Done> done = use_model(options, request); !done) return done.why();
  if (const Result<Done> done = use_policy(options, request); !done) return done.why();
  note_own_way(request);

  Result<Device> device = resolve_device(options, request.policy);
  if (!device) return device.why();
  request.request.device = *std::move(device);
  Result<platform::Environment> environment = resolve_environment(options);
  if (!environment) return environment.why();
  request.request.environment = *std::move(environment);
  if (const Result<Done> done = use_layer(options, request); !done) return done.why();
  if (const Result<Done> done = bind(options, request); !done) return done.why();

  if (!request.is_described) {
    const platform::PolicyVariables reads{request.policy->name,
                                          oracle::variables_read(*request.policy)};
    const std::vector<std::string> names = platform::environment_names();
    for (const platform::Finding& finding :
         platform::environment_findings(names, request.request.environment, &reads))
      request.notes.push_back(text(finding));
  }
  return request;
}

}  // namespace fp4moe::runtime
