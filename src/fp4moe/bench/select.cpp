#include "fp4moe/bench/select.hpp"

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/explain/record.hpp"

namespace fp4moe::bench {
namespace {

using oracle::Mode;
using oracle::Policy;
using oracle::Request;

Result<std::vector<Request>> requests(const Policy& policy) {
  std::vector<Request> created;
  for (const platform::DescribedDevice& part : platform::described_devices()) {
    Result<platform::Device> device = platform::describe_device(part.name);
    if (!device) return device.why();
    Request request{.device = *std::move(device)};
    request.layer.activation = oracle::Activation::relu2;  // no backend computes it with a gate
    if (policy.format == oracle::WeightFormat::nvfp4)
      request.layer.activation_key = oracle::ActivationKey::nvfp4;
    created.push_back(std::move(request));
  }
  return created;
}

}  // namespace

Result<std::vector<SelectResult>> bench_select(const SelectOptions& options) {
  std::vector<SelectResult> results;
  std::vector<std::vector<Request>> asked;
  std::vector<Job> jobs;
  for (const Policy& policy : backends::policies()) {
    Result<std::vector<Request>> all = requests(policy);
    if (!all) return all.why();
    results.push_back({.policy = std::string(policy.name),
                       .format = std::string(formats::name(policy.format)),
                       .candidates = survey(policy, Mode::strict, all->front()).size()});
    asked.push_back(*std::move(all));
  }
  std::size_t sum = 0;  // keeps the work from being dropped
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Policy& policy = backends::policies()[i];
    const auto work = static_cast<double>(asked[i].size());
    jobs.push_back({"select", work, [&, i]() -> Result<Done> {
                      for (const Request& request : asked[i])
                        sum += select(policy, Mode::strict, request).evaluated.size();
                      return Done{};
                    }});
    jobs.push_back({"record", work, [&, i]() -> Result<Done> {
                      for (const Request& request : asked[i])
                        sum += to_json(make_record(policy, Mode::strict, request)).size();
                      return Done{};
                    }});
  }
  const Result<std::vector<Timing>> timings =
      measure(jobs, {.min = 20, .max = 2000, .seconds = options.seconds});
  if (!timings) return timings.why();
  if (sum == 0) return error(ErrorCode::failed, "bench.select", "no kernel was evaluated");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto each = [&](const Timing& timing) { return timing.us_median / timing.work; };
    results[i].select_us = each((*timings)[2 * i]);
    results[i].record_us = each((*timings)[2 * i + 1]);
  }
  return results;
}

Json to_json(const SelectResult& result) {
  return {{"policy", result.policy},
          {"format", result.format},
          {"candidates", result.candidates},
          {"select_us", rounded(result.select_us)},
          {"record_us", rounded(result.record_us)}};
}

}  // namespace fp4moe::bench
