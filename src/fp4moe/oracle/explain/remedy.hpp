// Changes that a user who serves a model can make so that the selection takes another backend: a
// variable, a package, a name, an exchange, LoRA. Each remedy was tried: the selection, asked again
// with it, takes the backend.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/oracle/explain/record.hpp"

namespace fp4moe::oracle {

struct Change {
  std::string says{};                     // what to do, in words of the reference's command line
  std::vector<std::string> asks{};        // the same as options of `fp4moe explain`
  std::function<void(Request&)> apply{};  // to the request
};

// True if a selected backend can also be loaded. Empty: always.
using Loads = std::function<bool(const Request& request, const Backend& backend)>;

// Everything that the request leaves to change, `more` (other splits) included.
std::vector<Change> possible_changes(const Policy& policy, const Request& request,
                                     std::span<const Change> more = {});

// The fewest changes with which the selection takes `backend`; nothing when none help.
std::optional<Remedy> find_remedy(const Record& record, const BackendRow& row,
                                  std::span<const Change> changes, const Loads& loads = {});

// Gives every row of the record its remedy.
void add_remedies(Record& record, std::span<const Change> more = {}, const Loads& loads = {});

}  // namespace fp4moe::oracle
