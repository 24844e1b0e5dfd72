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
#include "fp4moe/oracle/releases.hpp"
#include "fp4moe/oracle/request.hpp"

namespace fp4moe::runtime {

// What was asked, in the words of the command line.
struct QuestionOptions {
  std::string device = "auto";
  std::string platform{}, capability{}, gfx{};
  std::vector<std::string> libraries{};  // "name", "+name", "-name", "none"
  std::vector<std::string> variables{};  // NAME=VALUE
  std::string policy = "native", mode = "strict", format{};
  std::string vllm{};  // a version, latest or auto: instead of a policy
  std::string model{}, config{};
  Json layer{};                                      // fields of the layer by key; null: none
  std::map<std::string_view, std::string> fields{};  // the same as text, by key
  std::map<std::string_view, bool> on{}, off{};      // its switches
  std::uint64_t tp = 1, pcp = 1, dp = 1, sp = 1;
  bool expert_parallel = false, eplb = false;
  std::string all2all{};
};

struct Question {
  const oracle::Policy* policy = nullptr;
  std::optional<oracle::ReleaseChoice> release{};  // of vLLM, where one was asked for
  oracle::Mode mode{};
  oracle::Request request{};
  std::vector<std::string> notes{};  // about the environment and the exchange
};

// The word for backends::choose_policy. An error with id question.policy when both a policy and a
// version of vLLM are asked for.
Result<std::string> policy_word(std::string_view policy, std::string_view vllm);

// Errors are usage errors that list what is accepted. A described device has the packages of the
// policy's day, where one is given.
Result<platform::Device> resolve_device(const QuestionOptions& options,
                                        const oracle::Policy* policy = nullptr);
Result<Question> resolve(const QuestionOptions& options);

}  // namespace fp4moe::runtime
