// Which backend computes a layer, and in which layout its weights lie: what the policy selects for
// a device, or the one that was named. A named backend runs here whatever this machine is: engines
// compute any backend's numbers.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/convert/pack/layer_job.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/oracle/experts.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/releases.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/platform/environment.hpp"

namespace fp4moe::runtime {

struct BackendRequest {
  std::string policy = "native";  // a word of backends::choose_policy
  std::string backend = "auto";   // or a name of the policy, or of any policy when it is `native`
  std::string generation{};       // of the layout; empty: the one in use, of CPU this machine's
  oracle::Mode mode = oracle::Mode::strict;
  platform::Device device{};            // that the backend is chosen for
  platform::Environment environment{};  // that the policy may read
  bool takes_external = true;  // backends that lay weights out themselves get them as loaded
};

struct Choice {
  const oracle::Policy* policy = nullptr;
  oracle::Mode mode = oracle::Mode::strict;
  const oracle::Backend* backend = nullptr;
  const oracle::ExpertsClass* experts = nullptr;  // null where the reference has no class
  const layout::Layout* layout = nullptr;
  platform::Device device{};
  std::string why{};                               // one human-readable sentence
  std::optional<oracle::ReleaseChoice> release{};  // of vLLM, where one was asked for

  // How this backend converts a slice of a layer with this activation.
  convert::Recipe recipe(const checkpoint::Slice& slice, oracle::Activation activation) const;
};

// Errors: choice.backend (no such name, or none that the policy selects), policy.unknown, layout.*.
Result<Choice> choose(const plan::Model& model, const checkpoint::Slice& slice,
                      const BackendRequest& backend_request);

// A backend by name: of this policy, or when the policy is `native` and has none such, of the
// newest policy that has. Errors: choice.backend, listing what there is.
Result<Choice> find_backend(std::string_view name, std::string_view policy,
                            oracle::WeightFormat format);

// The backend that a converted folder was made for, or when it names none, one that reads its
// layout: of this policy, or when that is `native`, of the first that has one, newest first. Those
// that quantize activations by stored input scales come last.
Result<Choice> backend_of_folder(std::string_view backend, const layout::Layout& layout,
                                 std::string_view policy, bool has_input_scales);

}  // namespace fp4moe::runtime
