#include "fp4moe/runtime/question.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/layer_fields.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/findings.hpp"
#include "fp4moe/weights/models.hpp"

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
Result<Done> change_fields(const QuestionOptions& options, Device& device) {
  if (!options.platform.empty()) {
    const Result<std::size_t> kind =
        find_word("--platform", options.platform, platform::kPlatformNames);
    if (!kind) return kind.why();
    device.kind = static_cast<PlatformKind>(*kind);
    device.name = options.platform;
    device.capability.reset();
    device.gfx.clear();
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

Result<platform::Environment> resolve_environment(const QuestionOptions& options, bool real) {
  platform::Environment environment = real ? platform::read_environment() : platform::Environment();
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

std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// The model's own sizes, cut for one rank.
Result<Done> use_model(const weights::ModelRow& model, Layer& layer) {
  layer.num_experts = model.experts;
  layer.num_local_experts =
      ceil_divide(model.experts, static_cast<std::uint64_t>(layer.parallel.ep_size));
  layer.experts_per_token = model.top_k;
  layer.hidden = model.hidden;
  layer.intermediate =
      ceil_divide(model.intermediate, static_cast<std::uint64_t>(layer.parallel.tp_size));
  layer.has_bias = model.bias;
  layer.gated = model.order != weights::RowOrder::single;
  const std::string activation = std::string(model.activation) + (layer.gated ? "" : "_no_mul");
  const Result<Done> set = oracle::set_field(layer, "activation", activation);
  return set ? oracle::set_field(layer, "routing_method", model.routing) : set;
}

Result<Done> use_options(const QuestionOptions& options, Layer& layer) {
  if (!options.config.empty()) {
    const Result<Json> config = read_json_file(options.config);
    if (!config) return config.why();
    const Json& fields = config->contains("config") ? config->at("config") : *config;
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
Result<Done> name_backend(const oracle::Policy& policy, Question& question) {
  std::string& word = question.request.layer.backend;
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
  if (backend == nullptr) return backends::unknown_backend(std::span(&question.policy, 1), word);
  const std::vector<std::string_view> words = backends::words_for(policy, *backend);
  if (words.empty())
    return usage("question.word",
                 fmt::format("no word of policy {} leads to {}", policy.name, backend->name))
        .expects(policy.names.empty() ? "no name: this policy takes none"
                                      : "a backend that a word of vLLM's --moe-backend leads to",
                 backend->name)
        .try_this("It is reached automatically or by a variable: fp4moe explain -v");
  word = words.front();
  const auto chosen = std::ranges::find(policy.names, words.front(), &oracle::NamedChoice::name);
  if (chosen->backends.front() != backend)
    question.notes.push_back(fmt::format("vLLM's word for {} is {}, which tries {} first",
                                         backend->name, words.front(),
                                         chosen->backends.front()->name));
  return Done{};
}

Result<Done> use_deployment(const QuestionOptions& options, oracle::Era era, Question& question) {
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
    const Result<oracle::AcceptedExchange> accepted = oracle::accept_exchange(options.all2all, era);
    if (!accepted) return accepted.why();
    deployment.all2all_backend = accepted->name;
    if (!accepted->warning.empty()) question.notes.push_back(accepted->warning);
  }
  question.request.layer.parallel = oracle::derive(deployment);
  return Done{};
}

}  // namespace

Result<Device> resolve_device(const QuestionOptions& options) {
  const bool described = !options.platform.empty() || !options.gfx.empty();
  Device device;
  if (options.device != "auto") {
    Result<Device> found = platform::describe_device(options.device);
    if (!found) return found.why();
    device = *std::move(found);
  } else if (!described) {
    device = platform::detect_device();
  }
  if (const Result<Done> changed = change_fields(options, device); !changed) return changed.why();
  if (const Result<Done> changed = change_libraries(options.libraries, device); !changed)
    return changed.why();
  return device;
}

Result<Question> resolve(const QuestionOptions& options) {
  Question question;
  const weights::ModelRow* model = nullptr;
  if (!options.model.empty() || options.config.empty()) {
    const Result<const weights::ModelRow*> found =
        weights::require_model(options.model.empty() ? "gpt-oss-20b" : options.model);
    if (!found) return found.why();
    model = *found;
  }
  const Result<std::size_t> mode = find_word("--mode", options.mode, oracle::kModeNames);
  if (!mode) return mode.why();
  question.mode = static_cast<oracle::Mode>(*mode);
  oracle::WeightFormat format = model != nullptr ? model->format : oracle::WeightFormat::mxfp4;
  if (!options.format.empty()) {
    const Result<std::size_t> word =
        find_word("--format", options.format, formats::kWeightFormatNames);
    if (!word) return word.why();
    format = static_cast<oracle::WeightFormat>(*word);
  }
  const Result<const oracle::Policy*> policy = backends::require_policy(options.policy, format);
  if (!policy) return policy.why();
  question.policy = *policy;

  Result<Device> device = resolve_device(options);
  if (!device) return device.why();
  question.request.device = *std::move(device);
  const bool real = options.device == "auto" && options.platform.empty() && options.gfx.empty();
  Result<platform::Environment> environment = resolve_environment(options, real);
  if (!environment) return environment.why();
  question.request.environment = *std::move(environment);

  Layer& layer = question.request.layer;
  Result<Done> done = use_deployment(options, (*policy)->era, question);
  if (done && model != nullptr) done = use_model(*model, layer);
  if (format == oracle::WeightFormat::nvfp4) layer.activation_key = oracle::ActivationKey::nvfp4;
  if (done) done = use_options(options, layer);
  if (done) done = name_backend(**policy, question);
  if (!done) return done.why();

  if (real) {
    const platform::PolicyVariables reads{(*policy)->name, oracle::variables_read(**policy)};
    const std::vector<std::string> names = platform::environment_names();
    for (const platform::Finding& finding :
         platform::environment_findings(names, question.request.environment, &reads))
      question.notes.push_back(text(finding));
  }
  return question;
}

}  // namespace fp4moe::runtime
