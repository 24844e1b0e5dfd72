// Interleaved timing: every job runs once per round, so that a disturbance of the machine affects
// all of them equally, and ratios between jobs of one run mean something.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/platform/machine.hpp"

namespace fp4moe::bench {

struct Job {
  std::string name{};
  double work = 0;  // of one run, in bytes or operations
  std::function<Result<Done>()> run{};
};

struct Timing {
  double us_median = 0, us_p10 = 0, us_p90 = 0;
  double work = 0;
  std::size_t rounds = 0;
  std::size_t disturbed = 0;  // rounds in which another process took a core from us

  // Billions of the job's unit per second, from the median.
  double rate() const { return us_median > 0 ? work / us_median / 1e3 : 0; }
};

struct Rounds {
  std::size_t min = 5;
  std::size_t max = 200;
  double seconds = 2;  // stop after this long, once there are `min` rounds
};

struct Sample {
  double us = 0;
  bool disturbed = false;
};

// Statistics of one job's times: of the undisturbed ones, if there are at least `enough`.
Timing summarize(std::span<const Sample> samples, double work, std::size_t enough = 5);

// One untimed round, then timed ones. The first error of a job ends everything.
Result<std::vector<Timing>> measure(std::span<const Job> jobs, Rounds rounds);

// Splits [0, count) into parts of a multiple of `grain` and runs them on the threads.
Result<Done> in_parts(std::size_t threads, std::size_t count, std::size_t grain,
                      const std::function<void(std::size_t first, std::size_t count)>& work);

// The machine's facts and a timing, as the reports print them.
Json to_json(const platform::Machine& machine);
void add_times(Json& result, const Timing& timing);

// A number with three digits after the point, so that reports stay readable.
double rounded(double value);

}  // namespace fp4moe::bench
