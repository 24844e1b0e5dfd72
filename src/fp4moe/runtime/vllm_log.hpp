// A log of vLLM, or one message of it, as a request: its version, model, split, variables, device
// and what it says about backends.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "fp4moe/runtime/selection_request.hpp"
#include "fp4moe/runtime/vllm_messages.hpp"

namespace fp4moe::runtime {

struct LogFact {
  std::string name{}, value{};
  std::size_t line = 0;             // counted from 1
  std::vector<std::string> also{};  // what other lines say instead
};

struct LogReading {
  SelectionOptions options{};    // what was asked, with the log's facts where nothing was said
  std::vector<LogFact> facts{};  // in the order of the log
  std::string version{};         // of vLLM; empty: not told
  std::string chosen{};          // the backend that it said it uses; empty: none
  std::optional<FoundMessage> message{};  // the last error; else the last thing that it said
  std::optional<FoundMessage> reason{};   // behind it
};

// The command line overrides the log. Errors (code usage): log.none if the text
// has no line of vLLM, log.device where no device is told, described or here.
Result<LogReading> read_log(std::string_view text, const SelectionOptions& asked);

// "The log says MARLIN, and so do these rules.", or what may differ; empty: nothing to compare.
std::string compare_with_log(const LogReading& log, const Answer& answer);

Json to_json(const LogReading& log, const Answer& answer);

}  // namespace fp4moe::runtime
