#include "fp4moe/runtime/vllm_log.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/detect.hpp"

namespace fp4moe::runtime {
namespace {

constexpr std::uint64_t kMaxLogRanks = 1u << 16;

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// The value at the front of `rest`: in quotes, or up to what ends one.
std::string value_at(std::string_view rest) {
  if (rest.starts_with('\'') || rest.starts_with('"')) {
    const std::size_t end = rest.find(rest.front(), 1);
    return end == rest.npos ? std::string() : std::string(rest.substr(1, end - 1));
  }
  return std::string(rest.substr(0, rest.find_first_of(" ,;)}]\t\r\n'\"")));
}

// key=value, 'key': value, "key": value, --key value; nothing where the key is not there.
std::optional<std::string> find_value(std::string_view line, std::string_view key) {
  for (std::size_t at = line.find(key); at != line.npos; at = line.find(key, at + 1)) {
    std::string_view rest = line.substr(at + key.size());
    const bool is_flag = at >= 2 && line.substr(at - 2, 2) == "--";
    if (at > 0 && is_word_character(line[at - 1]) && !is_flag) continue;
    if (rest.starts_with('\'') || rest.starts_with('"')) rest.remove_prefix(1);
    const std::string_view spaces = " \t";
    const std::size_t begin = std::min(rest.find_first_not_of(spaces), rest.size());
    const bool has_sign = begin < rest.size() && (rest[begin] == '=' || rest[begin] == ':');
    if (!has_sign && (!is_flag || (begin == 0 && !rest.empty()))) continue;
    rest.remove_prefix(has_sign ? begin + 1 : begin);
    rest.remove_prefix(std::min(rest.find_first_not_of(spaces), rest.size()));
    std::string value = value_at(rest);
    if (is_flag && !has_sign && (value.empty() || value.starts_with("--"))) value = "True";
    return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value >= 1 && value <= kMaxLogRanks ? std::optional(value) : std::nullopt;
}

// UTF-16 (what PowerShell's ">" writes) as ASCII, with '?' for the rest; other text as it is.
std::string decoded(std::string_view text) {
  const bool little = text.starts_with("\xff\xfe"), big = text.starts_with("\xfe\xff");
  if (!little && !big) return std::string(text);
  std::string result;
  for (std::size_t at = 2; at + 1 < text.size(); at += 2) {
    const auto low = static_cast<unsigned char>(text[little ? at : at + 1]);
    const char high = text[little ? at + 1 : at];
    result += high == 0 && low < 0x80 ? static_cast<char>(low) : '?';
  }
  return result;
}

// A line that is one JSON object, as collectors of logs write them, with its strings unescaped.
std::string unescaped(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == line.npos || line[begin] != '{') return std::string(line);
  std::string result;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] != '\\' || at + 1 == line.size()) {
      result += line[at];
      continue;
    }
    const char letter = line[++at];
    if (letter == 'u') {
      result += line.substr(at, 5) == "u001b" || line.substr(at, 5) == "u001B" ? '\x1b' : '?';
      at += std::min<std::size_t>(4, line.size() - at - 1);
    } else {
      result += letter == 'n' || letter == 'r' ? '\n' : letter == 't' ? '\t' : letter;
    }
  }
  return result;
}

// Without the colors of terminals (ESC [ ... letter) and without the end of a line of Windows.
std::string uncolored(std::string_view line) {
  std::string result;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] != '\x1b') {
      if (line[at] != '\r') result += line[at];
      continue;
    }
    if (at + 1 >= line.size() || line[at + 1] != '[') continue;
    for (at += 2; at < line.size() && (line[at] < '@' || line[at] > '~');) ++at;
  }
  return result;
}

// The model's name in a path of another machine: ".../models--openai--gpt-oss-20b/snapshots/6cee5e"
// of the hub's cache, or the last folder. What is no path is a name already.
std::string name_of_path(std::string path) {
  constexpr std::string_view kCached = "models--";
  if (const std::size_t at = path.find(kCached); at != path.npos) {
    std::string name = path.substr(at + kCached.size());
    name = name.substr(0, name.find('/'));
    if (const std::size_t dashes = name.find("--"); dashes != name.npos)
      return name.replace(dashes, 2, "/");
    return name;
  }
  if (!path.starts_with('/') && !path.starts_with('.') && !path.starts_with('~')) return path;
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

// Reasons for a refusal that show LoRA.
constexpr std::string_view kLoraReasons[] = {"kernel does not support LoRA",
                                             "expert LoRA is not supported"};
constexpr std::string_view kInvarianceReason = "kernel does not support batch invariance";
// Advice, which tells nothing.
constexpr std::string_view kAdvice = "use moe_backend=";

// A fact that a line may hold: names as in vLLM's arguments and as on its command line.
struct FactRow {
  std::string_view key, flag;
  std::uint64_t SelectionOptions::*count = nullptr;
  bool SelectionOptions::*on = nullptr;
  std::string SelectionOptions::*text = nullptr;
  std::string_view field{};  // of the layer
};
constexpr FactRow kFacts[] = {
    {.key = "model", .flag = "model", .text = &SelectionOptions::model},
    {.key = "tensor_parallel_size", .flag = "tensor-parallel-size", .count = &SelectionOptions::tp},
    {.key = "data_parallel_size", .flag = "data-parallel-size", .count = &SelectionOptions::dp},
    {.key = "prefill_context_parallel_size",
     .flag = "prefill-context-parallel-size",
     .count = &SelectionOptions::pcp},
    {.key = "enable_expert_parallel",
     .flag = "enable-expert-parallel",
     .on = &SelectionOptions::expert_parallel},
    {.key = "enable_eplb", .flag = "enable-eplb", .on = &SelectionOptions::eplb},
    {.key = "all2all_backend", .flag = "all2all-backend", .text = &SelectionOptions::all2all},
    {.key = "moe_backend", .flag = "moe-backend", .field = "moe_backend"},
    {.key = "enable_lora", .flag = "enable-lora", .field = "is_lora_enabled"},
};

constexpr std::string_view kVersionMarks[] = {"vLLM API server version ",
                                              "LLM engine (v",
                                              "vLLM version ",
                                              "vLLM Version",
                                              "vllm==",
                                              "vllm version "};

// The beginnings of accelerators' names.
constexpr std::string_view kDeviceMarks[] = {"NVIDIA ", "AMD Instinct ", "AMD Radeon ", "Tesla "};

std::string version_in(std::string_view line) {
  for (const std::string_view mark : kVersionMarks) {
    const std::size_t at = line.find(mark);
    if (at == line.npos) continue;
    std::string_view rest = line.substr(at + mark.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t:v"), rest.size()));
    const std::string_view version = rest.substr(0, rest.find_first_not_of("0123456789."));
    if (version.find('.') != version.npos)
      return std::string(version.substr(0, version.find_last_not_of('.') + 1));
  }
  return {};
}

// The described device whose name stands in the line: as many words of it as make one.
std::string device_in(std::string_view line) {
  for (const std::string_view mark : kDeviceMarks) {
    const std::size_t at = line.find(mark);
    if (at == line.npos) continue;
    std::string_view words = line.substr(at, 64);
    words = words.substr(0, words.find_first_of(",;()[]{}'\"|\t\r\n"));
    for (std::size_t end = words.size(); end != words.npos && end > mark.size();
         end = words.find_last_of(" -", end - 1)) {
      const auto found = platform::describe_device(words.substr(0, end));
      if (found) return found->name;
      if (end == 0) break;
    }
  }
  return {};
}

class LogReader {
 public:
  explicit LogReader(const SelectionOptions& asked) : asked_(asked) { result_.options = asked; }

  void read(std::string_view line, std::size_t number) {
    line_ = number;
    if (const std::string version = version_in(line); !version.empty()) {
      result_.version = version;
      fact("vLLM", version);
    }
    if (const std::string device = device_in(line); !device.empty()) read_device(device);
    for (const FactRow& row : kFacts) read_fact(line, row);
    if (const std::size_t at = line.find("vllm serve "); at != line.npos)
      set_model(value_at(line.substr(at + 11)));
    // A refusal's advice is no fact.
    if (line.find("to enable it") == line.npos) read_variables(line);
    read_platform(line);
    read_message(line);
  }

  Result<LogReading> finish(bool mentions_vllm) {
    const bool is_vllms =
        result_.message || !result_.version.empty() || (!result_.facts.empty() && mentions_vllm);
    if (!is_vllms)
      return usage("log.none", "no line of vLLM in the text")
          .expects("a message about MoE backends, or lines of vLLM's log", "neither")
          .try_this("the sentences that are known: fp4moe explain --messages");
    if (const Result<Done> done = choose_device(); !done) return done.why();
    result_.options.prefers_vllm = true;
    if (result_.options.policy.empty() && result_.options.vllm.empty())
      result_.options.vllm = result_.version;
    name_backend();
    return std::move(result_);
  }

 private:
  // The last value counts; others are kept beside it, as of several engines.
  void fact(std::string_view name, const std::string& value) {
    const auto known = std::ranges::find(result_.facts, name, &LogFact::name);
    if (known == result_.facts.end()) {
      result_.facts.push_back({std::string(name), printable(value), line_});
      return;
    }
    LogFact next{known->name, printable(value), line_, std::move(known->also)};
    std::erase(next.also, next.value);
    if (known->value != next.value) next.also.push_back(std::move(known->value));
    *known = std::move(next);
  }

  // The first one counts: ranks of one engine are told in order.
  void read_device(const std::string& device) {
    if (device_.empty()) {
      device_ = device;
      return fact("device", device);
    }
    const auto known = std::ranges::find(result_.facts, "device", &LogFact::name);
    if (device != device_ && std::ranges::find(known->also, device) == known->also.end())
      known->also.push_back(device);
  }

  void set_model(const std::string& value) {
    if (value.empty() || value.starts_with('-') || !asked_.model.empty() || !asked_.config.empty())
      return;
    result_.options.model = at_path(value) == AtPath::nothing ? name_of_path(value) : value;
    fact("model", value);
  }

  void read_fact(std::string_view line, const FactRow& row) {
    std::optional<std::string> value = find_value(line, row.key);
    if (!value) value = find_value(line, row.flag);
    if (row.field == "moe_backend" && line.find(kAdvice) != line.npos) return;
    if (!value || value->empty() || *value == "None") return;
    if (row.text == &SelectionOptions::model) return set_model(*value);
    SelectionOptions& into = result_.options;
    const bool is_yes = *value == "True" || *value == "true" || *value == "1";
    const bool is_no = *value == "False" || *value == "false" || *value == "0";
    if (row.count != nullptr) {
      const auto number = number_of(*value);
      if (!number || asked_.*row.count != 1) return;
      into.*row.count = *number;
    } else if (row.on != nullptr) {
      if ((!is_yes && !is_no) || asked_.*row.on) return;
      into.*row.on = is_yes;
    } else if (row.text != nullptr) {
      if (!(asked_.*row.text).empty()) return;
      into.*row.text = *value;
    } else if (row.field == "is_lora_enabled") {
      if (!is_yes && !is_no) return;
      into.on[row.field] = is_yes;
    } else {
      const auto given = asked_.fields.find(row.field);
      if (given != asked_.fields.end() && !given->second.empty()) return;
      into.fields[row.field] = *value;
    }
    fact(row.key, *value);
  }

  void read_variables(std::string_view line) {
    for (const platform::VariableRow& row : platform::variables())
      if (const auto value = find_value(line, row.name); value && !value->empty())
        set_variable(row.name, *value);
  }

  void set_variable(std::string_view name, const std::string& value) {
    const auto is_given = [&](const std::string& given) {
      return given.starts_with(std::string(name) + "=");
    };
    if (std::ranges::any_of(asked_.variables, is_given)) return;
    std::erase_if(result_.options.variables, is_given);
    result_.options.variables.push_back(fmt::format("{}={}", name, value));
    fact(name, value);
  }

  void read_reasons(std::string_view line) {
    const auto says = [&](std::string_view reason) { return line.find(reason) != line.npos; };
    const auto is_off = asked_.off.find("is_lora_enabled");
    if (std::ranges::any_of(kLoraReasons, says) &&
        (is_off == asked_.off.end() || !is_off->second)) {
      result_.options.on["is_lora_enabled"] = true;
      fact("enable_lora", "True");
    }
    if (says(kInvarianceReason))
      set_variable(platform::row(platform::Variable::batch_invariant).name, "1");
  }

  void read_platform(std::string_view line) {
    for (const std::string_view mark :
         {"Automatically detected platform ", "current device ", "device_config="}) {
      const std::size_t at = line.find(mark);
      if (at == line.npos) continue;
      const std::string_view rest = line.substr(at + mark.size());
      for (const std::string_view name : platform::kPlatformNames)
        if (rest.starts_with(name)) platform_ = name;
    }
  }

  void read_message(std::string_view line) {
    std::optional<FoundMessage> found = find_message(line);
    if (!found) return;
    const bool is_error = found->row->level == MessageLevel::error;
    if (found->row->id == "using" || found->row->id == "using-lora") {
      result_.chosen = found->value("backend");
      fact("backend in use", result_.chosen);
    }
    if (found->row->id == "using-lora") result_.options.on["is_lora_enabled"] = true;
    if (const std::string number = found->value("capability"); number.size() >= 2)
      capability_ = number;
    if (const std::size_t at = line.find("FusedMoEParallelConfig("); at != line.npos && is_error)
      read_parallel(line.substr(at));
    const bool is_nvfp4 = found->row->form.find("NvF") != std::string_view::npos ||
                          found->row->form.find("NVFP4 MoE") != std::string_view::npos;
    if (is_nvfp4) result_.options.assumed_model = "deepseek-v3";
    const bool had_error = result_.message && result_.message->row->level == MessageLevel::error;
    if (is_error) read_reasons(line);
    // Raised, not only logged: the backend was requested explicitly.
    if (found->row->id == "backend-refused" && line.find("ValueError") != line.npos)
      requested_ = {found->value("backend"),
                    is_nvfp4 ? oracle::WeightFormat::nvfp4 : oracle::WeightFormat::mxfp4};
    if (had_error && !is_error) return;
    result_.reason = find_reason(found->value("reason"));
    fact("message", std::string(found->row->id));
    result_.message = std::move(found);
  }

  // The backend that was requested explicitly, where a word leads to it and none is told.
  void name_backend() {
    std::string& word = result_.options.fields["moe_backend"];
    if (!word.empty() || requested_.first.empty()) return;
    const auto chosen = backends::choose_policy(
        backends::vllm_word(result_.options.vllm.empty() ? "latest" : result_.options.vllm),
        requested_.second, backends::Entry::gpt_oss);
    if (!chosen) return;
    const oracle::Backend* row = backends::find_by_any_name(*chosen->policy, requested_.first);
    if (row == nullptr) return;
    const std::vector<std::string_view> words = backends::words_for(*chosen->policy, *row);
    if (words.empty()) return;
    word = words.front();
    fact("moe_backend", word);
  }

  // The layout that a refusal prints: sizes of all ranks together.
  void read_parallel(std::string_view printed) {
    const auto size = [&](std::string_view key) {
      return number_of(find_value(printed, key).value_or("")).value_or(1);
    };
    const bool experts = find_value(printed, "use_ep").value_or("") == "True";
    const std::uint64_t others = size("dp_size") * size("pcp_size");
    const std::uint64_t all = experts ? size("ep_size") : size("tp_size");
    if (asked_.tp == 1) result_.options.tp = std::max<std::uint64_t>(1, all / others);
    if (asked_.dp == 1) result_.options.dp = size("dp_size");
    if (asked_.pcp == 1) result_.options.pcp = size("pcp_size");
    result_.options.expert_parallel = result_.options.expert_parallel || experts;
    fact("parallel layout",
         fmt::format("tp {}, dp {}, pcp {}{}", result_.options.tp, result_.options.dp,
                     result_.options.pcp, experts ? ", expert parallel" : ""));
  }

  // The command line's device, the log's, or this machine where the log may well be its own.
  Result<Done> choose_device() {
    SelectionOptions& into = result_.options;
    if (into.device != "auto" || !into.platform.empty() || !into.gfx.empty()) return Done{};
    if (!device_.empty()) {
      into.device = device_;
      return Done{};
    }
    if (!capability_.empty()) {
      into.platform = "cuda";
      into.capability = capability_.substr(0, capability_.size() - 1) + "." + capability_.back();
      return Done{};
    }
    const platform::Device here = platform::detect_device();
    const bool fits = platform_.empty() ? here.kind != platform::PlatformKind::cpu
                                        : platform_ == platform::name(here.kind);
    if (fits) return Done{};
    return usage("log.device", "the log does not tell the device")
        .expects("--device NAME, as h100 or mi355x",
                 fmt::format("platform {}, and this machine is {}",
                             platform_.empty() ? "unknown" : platform_, platform::name(here.kind)))
        .try_this(result_.message
                      ? fmt::format("--device NAME; the message itself: {} {}",
                                    result_.message->about->means, result_.message->about->todo)
                      : "add --device NAME");
  }

  const SelectionOptions& asked_;
  LogReading result_{};
  std::size_t line_ = 0;
  std::string device_{}, platform_{}, capability_{};
  std::pair<std::string, oracle::WeightFormat> requested_{};
};

bool is_same_backend(std::string_view said, std::string_view name) {
  if (said == "Marlin") return name == "MARLIN";
  if (said == "Triton") return name == "TRITON_UNFUSED";
  return said == name;
}

}  // namespace

Result<LogReading> read_log(std::string_view text, const SelectionOptions& asked) {
  LogReader reader(asked);
  std::size_t number = 0;
  const std::string log = decoded(text);
  for (const std::string_view raw : split(log, '\n')) {
    ++number;
    const std::string line = uncolored(unescaped(raw));
    for (const std::string_view part : split(line, '\n')) reader.read(part, number);
  }
  const auto has = [&](std::string_view word) { return log.find(word) != log.npos; };
  const bool mentions = has("vllm") || has("vLLM") || has("VLLM_");
  return reader.finish(mentions);
}

std::string compare_with_log(const LogReading& log, const Answer& answer) {
  const bool failed = log.chosen.empty() && log.message &&
                      log.message->row->level == MessageLevel::error && answer.is_served();
  if (log.chosen.empty() && !failed) return {};
  const oracle::Backend* backend = answer.record.selection.backend;
  const std::string said = failed ? "that nothing runs" : printable(log.chosen);
  if (!failed && backend != nullptr && is_same_backend(log.chosen, backend->name))
    return fmt::format("The log says {}, and so do these rules.", said);
  return fmt::format(
      "The log says {}; these rules say {}, so that something the log does not show differs: the "
      "device, a package (--lib), a variable (--env) or the split (--tp, --ep).",
      said, backend == nullptr ? "nothing" : backend->name);
}

Json to_json(const LogReading& log, const Answer& answer) {
  Json facts = Json::array();
  for (const LogFact& fact : log.facts)
    facts.push_back(
        {{"name", fact.name}, {"value", fact.value}, {"line", fact.line}, {"also", fact.also}});
  Json result{{"facts", std::move(facts)},
              {"version", log.version.empty() ? Json() : Json(log.version)},
              {"backend", log.chosen.empty() ? Json() : Json(printable(log.chosen))},
              {"message", nullptr},
              {"comparison", compare_with_log(log, answer)}};
  if (log.message)
    result["message"] = {{"id", log.message->row->id},
                         {"means", log.message->about->means},
                         {"todo", log.message->about->todo},
                         {"reason", log.reason ? Json(log.reason->row->id) : Json()}};
  return result;
}

}  // namespace fp4moe::runtime
