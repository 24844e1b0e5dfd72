// Checks of a call's arrays: on the tokens' device, with as many rows, and outputs that overlap no
// input.
#pragma once
#include <cstdint>

#include "arrays.hpp"
#include "bindings.hpp"

namespace fp4moe::python {

// Errors: those of Array::take, rows.device.
Array take_same_device(nb::handle object, const char* what, const Array& tokens, Use use = {});

// Errors: rows.count.
void check_count(std::uint64_t expected, std::uint64_t found, const char* what);

// The array of the results: the caller's, or a new one like the tokens.
struct Output {
  nb::object object;
  Array array;
  moe::MutableRows rows;
};
Output take_output(nb::handle x, const Array& tokens, const moe::ConstRows& rows, nb::handle out);

// Errors: rows.overlap.
void check_no_overlap(const moe::ConstRows& read, const moe::MutableRows& out, const char* what);

}  // namespace fp4moe::python
