// The lists that make a policy, by name. policies.cpp holds them; all.cpp finds the rows.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/oracle/policy.hpp"

namespace fp4moe::backends {

// Finds rows by name among those of one format and one policy date; remembers what it did not find.
class Rows {
 public:
  Rows(std::span<const oracle::Backend* const> rows, oracle::WeightFormat format,
       oracle::PolicyDate policy_date);

  const oracle::Backend* operator()(std::string_view name);
  std::vector<const oracle::Backend*> operator()(std::initializer_list<std::string_view> names);

  const std::vector<const oracle::Backend*>& all() const { return rows_; }
  const std::string& missing() const { return missing_; }  // empty: nothing

 private:
  std::vector<const oracle::Backend*> rows_;
  std::string missing_;
};

struct PolicyMaker {
  std::string_view name;
  oracle::WeightFormat format;
  oracle::PolicyDate policy_date;
  std::string_view summary;
  void (*fill)(oracle::Policy& policy, Rows& rows);
};

std::span<const PolicyMaker> policy_makers();

}  // namespace fp4moe::backends
