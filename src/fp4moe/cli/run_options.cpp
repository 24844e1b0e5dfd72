#include "fp4moe/cli/run_options.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/selection_options.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {
namespace {

Error wrong_option(std::string_view option, std::string_view expected, std::string_view given) {
  return usage("run.option", fmt::format("{} does not take this value", option))
      .expects(expected, "'" + printable(given) + "'");
}

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

constexpr std::uint64_t kMaxThreadRanks = 64;

// How many ranks an option names: 1 to 64, or "mpi", which stands for 1 here.
Result<std::uint64_t> parse_ranks(std::string_view option, const std::string& given) {
  if (given == "mpi") return std::uint64_t{1};
  const auto count = parse_count(given);
  if (!count || *count == 0 || *count > kMaxThreadRanks)
    return wrong_option(option, fmt::format("1 to {}, or mpi", kMaxThreadRanks), given);
  return *count;
}

Result<runtime::InputScale> parse_scales(const std::string& given) {
  runtime::InputScale scale;
  const std::size_t comma = given.find(',');
  const auto parse = [&](std::string_view part, float& value) {
    const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), value);
    return code == std::errc() && end == part.data() + part.size() && value > 0;
  };
  const std::string_view text(given);
  if (comma == std::string::npos || !parse(text.substr(0, comma), scale.input) ||
      !parse(text.substr(comma + 1), scale.hidden))
    return wrong_option("--input-scale", "two positive numbers, X,H", given);
  return scale;
}

}  // namespace

Result<runtime::RunOptions> run_options(const RunArgs& words, std::size_t threads) {
  runtime::RunOptions result;
  runtime::LayerOptions& layer = result.layer;
  Result<std::string> policy = runtime::policy_word(words.policy, words.vllm);
  if (!policy) return policy.why();
  layer.backend_request = {.policy = *std::move(policy), .backend = words.backend};
  SelectionOptions request;
  request.device = words.device;
  Result<platform::Device> device = resolve_device(request);
  if (!device) return device.why();
  layer.backend_request.device = *std::move(device);
  layer.backend_request.environment = runtime::environment_for(request);
  const auto read = runtime::read_words({.engine = words.engine,
                                         .weights = words.weights,
                                         .numerics = words.numerics,
                                         .activations = words.activations},
                                        layer);
  if (!read) return read.why();
  layer.threads = words.threads == 0 ? threads : words.threads;
  layer.chunk = words.batch;
  result.adapters = words.adapters;
  const bool is_linear = is_same_word(words.placement, "linear");
  if (!is_linear && !is_same_word(words.placement, "round-robin"))
    return wrong_option("--placement", "linear or round-robin", words.placement);
  layer.slice.placement =
      is_linear ? checkpoint::Placement::linear : checkpoint::Placement::round_robin;
  const Result<std::uint64_t> tp = parse_ranks("--tp", words.tp);
  if (!tp) return tp.why();
  const Result<std::uint64_t> ep = parse_ranks("--ep", words.ep);
  if (!ep) return ep.why();
  const bool splits_tensors = *tp > 1 || words.tp == "mpi";
  const bool splits_experts = *ep > 1 || words.ep == "mpi";
  if (splits_tensors && splits_experts)
    return wrong_option("--tp and --ep", "one of them: experts are either split or sharded",
                        fmt::format("{} and {}", words.tp, words.ep));
  result.split = splits_experts   ? runtime::Split::expert
                 : splits_tensors ? runtime::Split::tensor
                                  : runtime::Split::none;
  result.ranks = std::max(*tp, *ep);
  if (!words.exchange.empty() && words.exchange != "local" &&
      result.split != runtime::Split::expert)
    return wrong_option("--exchange", "local, unless experts are sharded (--ep)", words.exchange);
  const auto exchange = runtime::read_words({.exchange = words.exchange}, layer);
  if (!exchange) return exchange.why();
  if (!words.input_scale.empty()) {
    const Result<runtime::InputScale> scale = parse_scales(words.input_scale);
    if (!scale) return scale.why();
    layer.input_scale = *scale;
  }
  return result;
}

Result<RunArgs> parse_specification(std::string_view text) {
  RunArgs words;
  struct Key {
    std::string_view name;
    std::string* value;
  };
  const Key keys[] = {{"backend", &words.backend},
                      {"policy", &words.policy},
                      {"vllm", &words.vllm},
                      {"device", &words.device},
                      {"engine", &words.engine},
                      {"numerics", &words.numerics},
                      {"activations", &words.activations},
                      {"tp", &words.tp},
                      {"weights", &words.weights},
                      {"ep", &words.ep},
                      {"exchange", &words.exchange},
                      {"placement", &words.placement}};
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      if (part == "exact")
        words.numerics = "exact", words.engine = "reference";  // the truth, unless told otherwise
      else
        words.backend = part;
      continue;
    }
    const std::string_view name = part.substr(0, equals), value = part.substr(equals + 1);
    if (name == "batch" || name == "threads") {
      const std::uint64_t max = name == "batch" ? kMaxTokens : platform::kMaxThreads;
      const auto count = parse_count(value);
      if (!count || *count == 0 || *count > max)
        return wrong_option(name, fmt::format("a whole number from 1 to {}", max), value);
      (name == "batch" ? words.batch : words.threads) = *count;
      continue;
    }
    if (name == "adapter") {
      words.adapters.emplace_back(value);
      continue;
    }
    const auto key = std::ranges::find(keys, name, &Key::name);
    if (key == std::end(keys))
      return wrong_option(
          "a specification",
          "a backend or exact, then backend=, policy=, vllm=, device=, engine=, weights=, "
          "numerics=, activations=, tp=, ep=, exchange=, placement=, adapter=, batch=, threads=",
          part);
    *key->value = value;
  }
  return words;
}

Result<std::vector<std::size_t>> choose_layers(const runtime::Model& model,
                                               const std::string& which) {
  std::vector<std::size_t> chosen;
  const auto wanted = parse_count(which);
  for (std::size_t number = 0; number < model.layers(); ++number)
    if (which == "all" || (which.empty() && number == 0) ||
        (wanted && model.layer_index(number) == *wanted))
      chosen.push_back(number);
  if (!chosen.empty()) return chosen;
  std::vector<std::uint64_t> all;
  for (std::size_t number = 0; number < model.layers(); ++number)
    all.push_back(model.layer_index(number));
  return wrong_option("--layer", fmt::format("all, or one of {}", fmt::join(all, ", ")), which);
}

std::string activations_of(const runtime::LayerRun& run) {
  return run.quantizes == "none" ? "bf16" : run.quantizes;
}

Json to_json(const runtime::LayerRun& run) {
  Json result{{"layer", run.index},
              {"backend", run.backend},
              {"policy", run.policy},
              {"vllm", run.release ? oracle::to_json(*run.release) : Json()},
              {"why", run.why},
              {"layout", run.layout},
              {"engine", run.engine},
              {"kernel", run.kernel},
              {"numerics", run.numerics},
              {"activations", activations_of(run)},
              {"routing", run.routing},
              {"monolithic", run.is_monolithic},
              {"tokens", run.tokens},
              {"hidden", run.hidden},
              {"top_k", run.top_k},
              {"weight_bytes", run.bytes},
              {"load_seconds", run.load_seconds},
              {"us", run.seconds * 1e6}};
  result["allowed"] = {{"rel_error", run.tolerance.of_largest}, {"cosine", run.tolerance.cosine}};
  if (!run.exact.empty()) {
    const std::vector<double> out(run.out.begin(), run.out.end());
    const runtime::Comparison found = runtime::compare(run.exact, out);
    result["rel_error"] = found.of_largest();
    result["cosine"] = found.cosine;
    result["within_numerics"] = found.is_within(run.tolerance);
  }
  result["warnings"] = run.warnings;
  return result;
}

Json to_json(const runtime::Comparison& comparison, std::uint64_t columns) {
  Json result{{"elements", comparison.elements},      {"unequal", comparison.unequal},
              {"largest_value", comparison.largest},  {"largest_difference", comparison.difference},
              {"rel_error", comparison.of_largest()}, {"rms_error", comparison.rms},
              {"cosine", comparison.cosine},          {"one_has_nan", comparison.has_nan}};
  const auto place = [&](std::size_t at) {
    return Json{{"token", at / columns}, {"column", at % columns}};
  };
  if (comparison.first) result["first"] = place(*comparison.first);
  if (comparison.farthest) result["farthest"] = place(*comparison.farthest);
  return result;
}

}  // namespace fp4moe::cli
