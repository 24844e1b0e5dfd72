// How fast do weights get into each layout, as a share of memcpy in the same run, and how much
// faster than by asking the map for every element?
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"

namespace fp4moe::bench {

struct PackOptions {
  std::size_t threads = 1;
  std::size_t megabytes = 256;  // of experts, as the checkpoint holds them
  double seconds = 20;          // for everything together
  std::string layout{};         // an id; empty: all
};

// Rates count the checkpoint's bytes (codes and block scales) in billions a second; the memcpy
// beside them copies as many.
struct PackResult {
  std::string layout{}, generation{}, format{};
  bool recodes = false;  // changes scale bytes or scatters bits, not only places
  std::size_t hidden = 0, intermediate = 0, experts = 0;
  std::string padded{};  // "3072 x 2944", where the layout needs it
  Timing pack{}, unpack{};
  double memcpy_gb_per_s = 0, map_gb_per_s = 0;

  double share_of_memcpy() const { return pack.rate() / memcpy_gb_per_s; }
  double times_map() const { return pack.rate() / map_gb_per_s; }
};

Result<std::vector<PackResult>> bench_pack(const PackOptions& options);

Json to_json(const PackResult& result, std::size_t threads);

}  // namespace fp4moe::bench
