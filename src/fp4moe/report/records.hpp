// Measurements kept in files, drawn beside this machine's: reports of `fp4moe bench layer --json`,
// and records of peers:
//
//   {"h200": {"device": "NVIDIA H200", "peers": {"marlin_us": "Marlin"},
//             "models": {"gpt-oss-20b": {"points": [{"tokens": 1, "fp4moe_us": 20, "marlin_us": 50}]}}}}
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/plot.hpp"

namespace fp4moe::report {

bool is_peers_record(const Json& record);

// Errors: those of bench::layer_plot where it is neither.
Result<Done> check_record(const Json& record);

// One plot for each device of a peers' record that has this model; none where it has not.
std::vector<bench::Plot> peers_plots(const Json& record, std::string_view model);

// The row of the models' table with these sizes; empty: none.
std::string model_of_sizes(std::uint64_t experts, std::uint64_t hidden, std::uint64_t intermediate);

}  // namespace fp4moe::report
