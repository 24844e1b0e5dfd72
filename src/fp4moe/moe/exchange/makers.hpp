// The makers of exchanges, for the table in all.cpp.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/moe/exchange/owners.hpp"

namespace fp4moe::moe::exchange {

std::unique_ptr<Exchange> make_local(const ExchangeOptions& options, Owners owners);
std::unique_ptr<Exchange> make_batched(const ExchangeOptions& options, Owners owners);
std::unique_ptr<Exchange> make_gather(const ExchangeOptions& options, Owners owners);
std::unique_ptr<Exchange> make_all_to_all(const ExchangeOptions& options, Owners owners);
std::unique_ptr<Exchange> make_all_to_all_batched(const ExchangeOptions& options, Owners owners);

// The threads of the options, or the caller's alone.
class Threads {
 public:
  explicit Threads(ThreadPool* given)
      : own_(given == nullptr ? std::make_unique<ThreadPool>(1) : nullptr),
        pool_(given == nullptr ? own_.get() : given) {}
  ThreadPool* get() const { return pool_; }

 private:
  std::unique_ptr<ThreadPool> own_;
  ThreadPool* pool_;
};

// The options that all ranks must share, in words.
std::string describe_group(const ExchangeOptions& options);

// Errors that several of them have.
Error no_prepare(std::string_view exchange);
Error wrong_form(std::string_view exchange, OutputForm form, std::string_view expected);

// The experts of one token, each once: weights of an expert that is listed twice are added, in the
// place of the first. Unassigned ids are left out.
struct Choice {
  Owners::ExpertOwner place{};
  float weight = 0.0f;
};
void distinct_choices(const Owners& owners, std::span<const std::int32_t> ids,
                      std::span<const float> weights, std::vector<Choice>& choices);

}  // namespace fp4moe::moe::exchange
