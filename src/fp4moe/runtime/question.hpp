// The question "which backend for this layer on this device" in people's words, and what it means:
// a real or described device, a model or single fields, the parallel layout, the policy.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::runtime {

// What was asked, in the words of the command line.
struct QuestionOptions {
  std::string device = "auto";
  std::string platform{}, capability{}, gfx{};
  std::vector<std::string> libraries{};  // "name", "+name", "-name", "none"
  std::vector<std::string> variables{};  // NAME=VALUE
  std::string policy = "native", mode = "strict", format{};
  std::string model{}, config{};
  Json layer{};                                      // fields of the layer by key; null: none
  std::map<std::string_view, std::string> fields{};  // the same as text, by key
  std::map<std::string_view, bool> on{}, off{};      // its switches
  std::uint64_t tp = 1, pcp = 1, dp = 1, sp = 1;
  // Ranks that share out whole experts: all there are, so tp, dp, ... may be left out or must make
  // that many. 0: all that those make, as `expert_parallel` says, too.
  std::optional<std::uint64_t> ep{};
  bool expert_parallel = false, eplb = false;
  std::string all2all{};
};

struct Question {
  const oracle::Policy* policy = nullptr;
  oracle::Mode mode{};
  oracle::Request request{};
  std::vector<std::string> notes{};  // about the environment and the exchange
};

// Errors are usage errors that list what is accepted.
Result<platform::Device> resolve_device(const QuestionOptions& options);
Result<Question> resolve(const QuestionOptions& options);

}  // namespace fp4moe::runtime
