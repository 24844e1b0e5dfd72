// The tables of fp4moe/oracle and fp4moe/backends as the functions by name ask for them: everything
// that does not depend on which of the two enumerations a backend is of.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/vllm/moe_config.hpp"
#include "fp4moe/vllm/selected.hpp"

namespace fp4moe::vllm {

using Row = const oracle::Backend*;

// The row of a backend under the context's policy. Errors: vllm.backend, listing the policy's.
Result<Row> require_row(std::string_view backend, WeightFormat format, const Context& context);

// The selection under a policy. A refusal is an error with id vllm.refused in the reference's
// sentence; `refused`, where given, takes its record.
Result<oracle::Record> choose(const oracle::Policy& policy, const MoeConfig& config,
                              oracle::Record* refused);

// The rows that the automatic list of a policy tries, in this order.
Result<std::vector<Row>> priority_rows(const MoeConfig& config, WeightFormat format);

// The rows that a name of moe_backend stands for, in the order of trial. Errors: vllm.name, in the
// reference's sentence.
Result<std::vector<Row>> named_rows(std::string_view moe_backend, WeightFormat format,
                                    const Context& context);

// The classes of a backend in the order of trial. Errors: vllm.no_class.
Result<std::vector<ExpertsClass>> experts_classes(Row backend);

// A member of an enumeration whose values stand in `values`.
template <class Enum, std::size_t N>
std::optional<Enum> member_of(std::string_view value,
                              const std::array<std::string_view, N>& values) {
  const auto found = std::ranges::find(values, value);
  if (found == values.end()) return std::nullopt;
  return static_cast<Enum>(found - values.begin());
}

// The same for rows of our own tables, which the enumerations cover (a test holds that).
template <class Enum, std::size_t N>
std::vector<Enum> members_of(const std::vector<Row>& rows,
                             const std::array<std::string_view, N>& values) {
  std::vector<Enum> result;
  for (const Row row : rows)
    if (const auto member = member_of<Enum>(row->name, values)) result.push_back(*member);
  return result;
}

// Errors: vllm.backend, listing the values.
template <class Enum, std::size_t N>
Result<Enum> parse_member(std::string_view value, const std::array<std::string_view, N>& values);

template <class Enum, std::size_t N>
Result<Selected<Enum>> selected_of(Result<oracle::Record> record,
                                   const std::array<std::string_view, N>& values, Enum none) {
  if (!record) return record.why();
  const oracle::Selection& selection = record->selection;
  const std::optional<Enum> member =
      selection.backend == nullptr ? none : member_of<Enum>(selection.backend->name, values);
  return Selected<Enum>{.backend = member.value_or(none),
                        .experts_cls = selection.experts,
                        .record = *std::move(record)};
}

Error no_such_backend(std::string_view value, std::vector<std::string_view> known,
                      std::string_view whose);

template <class Enum, std::size_t N>
Result<Enum> parse_member(std::string_view value, const std::array<std::string_view, N>& values) {
  if (const auto member = member_of<Enum>(value, values)) return *member;
  return no_such_backend(value, {values.begin(), values.end()}, "no policy");
}

}  // namespace fp4moe::vllm
