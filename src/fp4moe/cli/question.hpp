// The question "which backend for this layer on this device" as options of a command: a real or
// described device, a model or single fields, the parallel layout, the policy.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/request.hpp"

namespace CLI {
class App;
}

namespace fp4moe::cli {

// Filled while the command line is parsed; the members must stay where they are until then.
struct QuestionOptions {
  std::string device = "auto";
  std::string platform{}, capability{}, gfx{};
  std::vector<std::string> libraries{};  // "name", "+name", "-name", "none"
  std::vector<std::string> variables{};  // NAME=VALUE
  std::string policy = "native", mode = "strict", format{};
  std::string model{}, config{};
  std::map<std::string_view, std::string> fields{};  // of the layer, by key
  std::map<std::string_view, bool> on{}, off{};      // its switches
  std::uint64_t tp = 1, pcp = 1, dp = 1, sp = 1;
  bool expert_parallel = false, eplb = false;
  std::string all2all{};
};

struct Question {
  const oracle::Policy* policy = nullptr;
  oracle::Mode mode{};
  oracle::Request request{};
  std::vector<std::string> notes{};  // about the environment and the exchange
};

void declare_question(CLI::App& app, QuestionOptions& options);

// Errors are usage errors that list what is accepted.
Result<platform::Device> resolve_device(const QuestionOptions& options);
Result<Question> resolve(const QuestionOptions& options);

// "h100 (cuda 9.0; flashinfer, triton_kernels)"
std::string text(const platform::Device& device);

}  // namespace fp4moe::cli
