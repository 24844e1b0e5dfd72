// The whole answer to "which backend, and why not the others": the selection, every kernel's
// verdict, and everything that follows from the choice. As values, as JSON, as text.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/oracle/select.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/oracle/vllm/assembly.hpp"
#include "fp4moe/oracle/vllm/buffers.hpp"
#include "fp4moe/oracle/vllm/quant_config.hpp"

namespace fp4moe::oracle {

// A change after which the selection takes a backend (remedy.hpp).
struct Remedy {
  std::vector<std::string> steps{};  // all of them, in words of the reference's command line
  std::vector<std::string> asks{};   // the same as options of `fp4moe explain`
  bool can_be_asked = true;          // `asks` holds every step
};

// A backend in the table: its nearest kernel, or the one that was chosen.
struct BackendRow {
  const Backend* backend = nullptr;
  std::vector<const Verdict*> verdicts{};  // of its kernels, in trial order
  const Verdict* nearest = nullptr;        // accepted, or refused for the fewest reasons
  bool automatic = false;                  // the automatic list has it
  std::optional<Remedy> remedy{};          // where add_remedies found one; never of the chosen one
  bool would_run() const { return nearest != nullptr && nearest->accepted(); }
};

// The consequences of a choice. A part that is unavailable holds its error.
struct Consequences {
  Result<Sizes> sizes = Sizes{};
  Result<std::vector<Buffer>> buffers = std::vector<Buffer>{};
  QuantConfig quant{};
  Result<KernelPlan> kernel = KernelPlan{};
};

// The rows point into the survey: a record can be moved, not copied.
struct Record {
  Record() = default;
  Record(Record&&) = default;
  Record& operator=(Record&&) = default;

  Request request{};
  Selection selection{};
  std::vector<Verdict> survey{};  // every kernel of the policy
  std::vector<BackendRow> rows{};
  std::optional<Consequences> consequences{};  // where a backend was chosen
  std::vector<std::string> warnings{};
};

Record make_record(const Policy& policy, Mode mode, const Request& request);

// "needs capability 10.x; this device is 9.0"
std::string decisive_reason(const Request& request, const Verdict& verdict);

// A refusal's sentence. The remedy is the backend's, which was tried; where there is none, it names
// the backends that would run instead.
Sentence sentence(const Record& record, const Verdict& verdict, const Refusal& refusal);

Json to_json(const Record& record);

// The failed checks of the reference before it selects, in its words; empty when all is well.
std::vector<std::string> checks_before(const Policy& policy, const Request& request);

}  // namespace fp4moe::oracle
