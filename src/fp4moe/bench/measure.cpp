#include "fp4moe/bench/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <sys/resource.h>

#include "fp4moe/base/parallel.hpp"

namespace fp4moe::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Linear interpolation between the two nearest of the sorted times.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

// Involuntary context switches of this process's threads.
long preemptions() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

Result<Sample> run_once(const Job& job) {
  const long before = preemptions();
  const Clock::time_point start = Clock::now();
  if (const Result<Done> done = job.run(); !done) return done.why();
  return Sample{microseconds_since(start), preemptions() != before};
}

}  // namespace

Timing summarize(std::span<const Sample> samples, double work, std::size_t enough) {
  std::vector<double> all;
  std::vector<double> quiet;
  for (const Sample& sample : samples) {
    all.push_back(sample.us);
    if (!sample.disturbed) quiet.push_back(sample.us);
  }
  Timing timing{.work = work, .rounds = all.size(), .disturbed = all.size() - quiet.size()};
  std::vector<double>& used = quiet.size() >= enough ? quiet : all;
  if (used.empty()) return timing;
  std::ranges::sort(used);
  timing.us_median = quantile(used, 0.5);
  timing.us_p10 = quantile(used, 0.1);
  timing.us_p90 = quantile(used, 0.9);
  return timing;
}

Result<std::vector<Timing>> measure(std::span<const Job> jobs, Rounds rounds) {
  for (const Job& job : jobs)
    if (const Result<Done> done = job.run(); !done) return done.why();
  std::vector<std::vector<Sample>> samples(jobs.size());
  const Clock::time_point begin = Clock::now();
  for (std::size_t round = 0; round < rounds.max; ++round) {
    if (round >= rounds.min && microseconds_since(begin) > rounds.seconds * 1e6) break;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const Result<Sample> sample = run_once(jobs[i]);
      if (!sample) return sample.why();
      samples[i].push_back(*sample);
    }
  }
  std::vector<Timing> timings;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    timings.push_back(summarize(samples[i], jobs[i].work, rounds.min));
  return timings;
}

Result<Done> in_parts(std::size_t threads, std::size_t count, std::size_t grain,
                      const std::function<void(std::size_t, std::size_t)>& work) {
  const std::size_t grains = count / grain + (count % grain != 0 ? 1 : 0);
  const std::size_t parts = std::min(grains, threads == 1 ? 1 : 8 * threads);
  return parallel_for(threads, parts, [&](std::size_t part) -> Result<Done> {
    const std::size_t first = grains * part / parts * grain;
    const std::size_t last = std::min(count, grains * (part + 1) / parts * grain);
    work(first, last - first);
    return Done{};
  });
}

Json to_json(const platform::Machine& machine) {
  return {{"model", machine.model},
          {"architecture", machine.architecture},
          {"cores", machine.cores},
          {"l1d_bytes", machine.l1d_bytes},
          {"l2_bytes", machine.l2_bytes},
          {"l3_bytes", machine.l3_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"features", text(machine.features)}};
}

void add_times(Json& result, const Timing& timing) {
  result["us_median"] = rounded(timing.us_median);
  result["us_p10"] = rounded(timing.us_p10);
  result["us_p90"] = rounded(timing.us_p90);
  result["rounds"] = timing.rounds;
  result["disturbed_rounds"] = timing.disturbed;
}

double rounded(double value) { return std::round(value * 1e3) / 1e3; }

}  // namespace fp4moe::bench
