#include "call_arguments.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "errors.hpp"

namespace fp4moe::python {

using moe::ConstRows;
using moe::MutableRows;

Array take_same_device(nb::handle object, const char* what, const Array& tokens, Use use) {
  use.where = tokens.device() ? Where::anywhere : Where::host;
  if (!use.records) use.records = tokens.records();
  Array taken = Array::take(object, what, use);
  if (taken.device() != tokens.device())
    raise(usage("rows.device", fmt::format("{} and tokens lie in different places", what))
              .expects(fmt::format("GPU {}", *tokens.device()),
                       taken.device() ? fmt::format("GPU {}", *taken.device())
                                      : std::string("memory of the CPU")));
  return taken;
}

void check_count(std::uint64_t expected, std::uint64_t found, const char* what) {
  if (expected != found)
    raise(usage("rows.count", fmt::format("wrong number of {}", what))
              .expects(fmt::format("{} rows", expected), fmt::format("{}", found)));
}

Output take_output(nb::handle x, const Array& tokens, const ConstRows& rows, nb::handle out) {
  nb::object object = out.is_none() ? empty_like(x, tokens) : nb::borrow(out);
  Use use{.access = Access::write};
  if (out.is_none()) use.records = false;  // a new one asks for nothing
  Array array = take_same_device(object, "outputs", tokens, use);
  const MutableRows result = mutable_rows_of(array, "outputs");
  check_count(rows.rows, result.rows, "outputs");
  done_or_raise(moe::check_rows(result, "outputs", rows.columns));
  return {std::move(object), std::move(array), result};
}

void check_no_overlap(const ConstRows& read, const MutableRows& out, const char* what) {
  if (overlap(read, out))
    raise(usage("rows.overlap", fmt::format("outputs lie in the memory of {}", what))
              .expects("memory of their own", "bytes that the call also reads"));
}

}  // namespace fp4moe::python
