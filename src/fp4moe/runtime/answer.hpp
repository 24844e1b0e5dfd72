// The whole answer to "which backend": the selection with every reason, whether the ranks can be
// split so, what to do to get another backend, and what the other rules (ours, or vLLM's) say.
// explain, its JSON, the C API and Python give this one answer.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::runtime {

// A change, and the backend selected with it. The selection was run again with the change.
struct ToChange {
  const oracle::Backend* backend = nullptr;
  oracle::Remedy remedy{};
};

// A backend that runs neither now nor with a remedy, the nearest first.
struct NearMiss {
  const oracle::Backend* backend = nullptr;
  std::vector<std::string> reasons{};  // what only another device helps against comes first
  bool is_elsewhere = false;           // it needs another platform
};

// The selection of another policy for the same layer on the same device.
struct Alternative {
  const oracle::Policy* policy = nullptr;
  oracle::Selection selection{};
  bool loads = true;  // the ranks can be split so
};

struct Answer {
  SelectionRequest request{};
  oracle::Record record{};
  std::optional<Error> impossible{};  // the backend is chosen, but its weights cannot be split so
  std::vector<std::string> refused_before{};  // by vLLM, in its words, before it selects
  std::optional<Alternative> as_released{};   // strict: what vLLM does with its mistakes, if other
  std::vector<Alternative> alternatives{};    // our own rules, or vLLM's newest
  std::vector<ToChange> to_change{};
  std::vector<NearMiss> near_misses{};

  // A backend is chosen, vLLM comes to ask for it, and it can be loaded.
  bool is_served() const {
    return record.selection.outcome == oracle::Outcome::selected && !impossible &&
           refused_before.empty();
  }
};

Answer answer(SelectionRequest request);

// "vLLM 0.33.0 runs gpt-oss-120b (mxfp4) on rtx4090 with MARLIN."
std::string summary(const Answer& answer);
// Why nothing is served, without the request: what an error's message holds. Empty: it is.
std::string refusal(const Answer& answer);
// "gpt-oss-20b (--model)": what the request left open.
std::vector<std::string> assumed(const SelectionRequest& request);
// "8 x h100 (tensor parallel)"
std::string place(const SelectionRequest& request);

// The record with the answer's own parts: summary, to_change, near_misses, alternatives, ...
Json to_json(const Answer& answer);

}  // namespace fp4moe::runtime
