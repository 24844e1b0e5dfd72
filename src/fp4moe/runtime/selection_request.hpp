// The request "which backend for this layer on this device" as a user writes it, and what it means:
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
#include "fp4moe/plan/model.hpp"
#include "fp4moe/plan/split.hpp"

namespace fp4moe::runtime {

// The request in the words of the command line.
struct SelectionOptions {
  std::string device = "auto";
  std::string platform{}, capability{}, gfx{};
  std::vector<std::string> libraries{};  // "name", "+name", "-name", "none"
  std::vector<std::string> variables{};  // NAME=VALUE
  std::string policy = "native";  // empty: our own here, the newest of vLLM for a described device
  std::string vllm{};             // a version, latest or auto: instead of a policy
  bool prefers_vllm = false;      // without a policy: the newest of vLLM on this machine, too
  std::string mode = "strict", format{};
  std::string assumed_model = "gpt-oss-20b";  // where none is named
  std::string model{};   // a name of the table or of a hub, a checkpoint or a config.json
  std::string config{};  // fields of a layer, or a config.json
  Json layer{};          // fields of the layer by key; null: none
  std::map<std::string_view, std::string> fields{};  // the same as text, by key
  std::map<std::string_view, bool> on{}, off{};      // its switches
  std::uint64_t tp = 1, pcp = 1, dp = 1, sp = 1;
  // Ranks that share out whole experts: all there are, so tp, dp, ... may be left out or must make
  // that many. 0: all that those make, as `expert_parallel` says, too.
  std::optional<std::uint64_t> ep{};
  bool expert_parallel = false, eplb = false;
  std::string all2all{};
};

struct SelectionRequest {
  const oracle::Policy* policy = nullptr;
  std::optional<oracle::ReleaseChoice> release{};  // of vLLM, where one was asked for
  oracle::Mode mode{};
  oracle::Request request{};
  plan::Model model{};  // the whole layer; its name is empty where only fields were given
  // The deployment of the ranks, or its error; absent if the parallel layout was given as such.
  std::optional<oracle::Deployment> deployment{};
  std::optional<Result<plan::Split>> split{};
  bool is_described = false;  // the device; false: this machine
  // True: the request left it open.
  bool policy_assumed = false, model_assumed = false, format_assumed = false,
       packages_assumed = false, variables_assumed = false;
  std::vector<std::string> notes{};  // about the environment, the exchange and the model
};

// The parallel layout and what a rank then holds. A layer that cannot be split so keeps its sizes
// rounded up, as a selection does not look at them closely.
void deploy(const oracle::Deployment& deployment, SelectionRequest& request);

// The rules of the newest vLLM for a model: MXFP4 models other than gpt-oss have their own entry.
const oracle::Policy& newest_vllm(const plan::Model& model);

// The word for backends::choose_policy. An error with id question.policy when both a policy and a
// version of vLLM are asked for.
Result<std::string> policy_word(std::string_view policy, std::string_view vllm);

// Errors are usage errors that list what is accepted. A described device has the packages of the
// policy's day, where one is given.
Result<platform::Device> resolve_device(const SelectionOptions& options,
                                        const oracle::Policy* policy = nullptr);
Result<SelectionRequest> resolve(const SelectionOptions& options);

// The variables that count: --env, and on this machine its own. Errors: question.*, environment.*.
Result<platform::Environment> resolve_environment(const SelectionOptions& options);
// This machine's own where the device is this machine; nothing for a described one.
platform::Environment environment_for(const SelectionOptions& options);

// A model by name or path, as SelectionOptions::model has it; `format` (empty: its own) is a word.
Result<plan::Model> find_model(const std::string& name_or_path, std::string_view format);

}  // namespace fp4moe::runtime
