#include "fp4moe/bench/ceilings.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/kernels/cpu/ceiling_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::bench {
namespace {

using kernels::cpu::CeilingKernel;
using kernels::cpu::Operands;
using tensor::Buffer;

// A core runs faster for the first millisecond than it can hold, so one run takes many.
constexpr double kRunSeconds = 0.02;

double seconds_of(const CeilingKernel& kernel, std::size_t rounds) {
  const auto start = std::chrono::steady_clock::now();
  // Kept in an atomic, so that the loop's result counts as used.
  static_cast<void>(std::atomic<std::uint32_t>(kernel.run(rounds)).load());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t rounds_for(const CeilingKernel& kernel) {
  std::size_t rounds = 1024;
  while (seconds_of(kernel, rounds) < kRunSeconds / 8) rounds *= 2;
  return 8 * rounds;
}

Job multiply_add_job(const CeilingKernel& kernel, std::size_t threads) {
  const std::size_t rounds = rounds_for(kernel);
  const double work =
      static_cast<double>(rounds * threads) * static_cast<double>(kernel.operations);
  return {std::string(kernel.name), work, [&kernel, threads, rounds] {
            return parallel_for(threads, threads, [&](std::size_t) -> Result<Done> {
              seconds_of(kernel, rounds);
              return Done{};
            });
          }};
}

struct HostMemory {
  Buffer from, to;
};

Result<HostMemory> make_memory(std::size_t bytes) {
  Result<Buffer> from = Buffer::allocate(bytes);
  if (!from) return from.why();
  Result<Buffer> to = Buffer::allocate(bytes);
  if (!to) return to.why();
  std::memset(from->data(), 1, bytes);  // resident before the clock starts
  std::memset(to->data(), 2, bytes);
  return HostMemory{*std::move(from), *std::move(to)};
}

Job read_job(const HostMemory& memory, const CeilingsOptions& options) {
  const auto& reader = kernels::cpu::pick(kernels::cpu::read_kernels(), options.features);
  const std::size_t bytes = memory.from.size();
  return {
      std::string(reader.name), static_cast<double>(bytes), [&memory, &reader, &options, bytes] {
        std::atomic<std::uint64_t> checksum{0};
        return in_parts(options.threads, bytes, 4096, [&](std::size_t first, std::size_t count) {
          checksum ^= reader.run(memory.from.data() + first, count);
        });
      }};
}

Job copy_job(HostMemory& memory, const CeilingsOptions& options) {
  const std::size_t bytes = memory.from.size();
  return {"memcpy", static_cast<double>(bytes), [&memory, &options, bytes] {
            return in_parts(
                options.threads, bytes, 4096, [&](std::size_t first, std::size_t count) {
                  std::memcpy(memory.to.data() + first, memory.from.data() + first, count);
                });
          }};
}

}  // namespace

Result<Ceilings> bench_ceilings(const CeilingsOptions& options) {
  Result<HostMemory> memory = make_memory(options.megabytes << 20);
  if (!memory) return memory.why();
  std::vector<Job> jobs{read_job(*memory, options), copy_job(*memory, options)};
  std::vector<std::string> names{"read", "copy"};
  for (const CeilingKernel& kernel : kernels::cpu::ceiling_kernels()) {
    if (!options.features.contains_all(kernel.needs)) continue;
    jobs.push_back(multiply_add_job(kernel, options.threads));
    names.emplace_back(kernel.operands == Operands::int8 ? "int8" : "bf16");
  }
  const auto timings = measure(jobs, {.seconds = options.seconds});
  if (!timings) return timings.why();

  Ceilings ceilings;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double rate = (*timings)[i].rate();
    double& best = names[i] == "read"   ? ceilings.read_gb_per_s
                   : names[i] == "copy" ? ceilings.copy_gb_per_s
                   : names[i] == "int8" ? ceilings.int8_gop_per_s
                                        : ceilings.bf16_gflop_per_s;
    best = std::max(best, rate);
    ceilings.results.push_back({names[i], jobs[i].name, (*timings)[i]});
  }
  return ceilings;
}

Json to_json(const Ceilings& ceilings) {
  return {{"read_gb_per_s", rounded(ceilings.read_gb_per_s)},
          {"copy_gb_per_s", rounded(ceilings.copy_gb_per_s)},
          {"int8_gop_per_s", rounded(ceilings.int8_gop_per_s)},
          {"bf16_gflop_per_s", rounded(ceilings.bf16_gflop_per_s)}};
}

Json to_json(const CeilingResult& result, std::size_t threads) {
  Json object{{"ceiling", result.name}, {"kernel", result.kernel}, {"threads", threads}};
  add_times(object, result.timing);
  const bool is_memory = result.name == "read" || result.name == "copy";
  object[is_memory ? "gb_per_s" : "gop_per_s"] = rounded(result.timing.rate());
  return object;
}

}  // namespace fp4moe::bench
