#include "fp4moe/base/thrown.hpp"

#include <new>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>

namespace fp4moe {
namespace thrown_test {

template <class Thrown>
Error error_of(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return thrown_error();
  }
}

TEST(ThrownError, SaysWhatRanOut) {
  EXPECT_EQ(error_of(std::bad_alloc()).id, "memory.exhausted");
  EXPECT_EQ(error_of(std::length_error("vector")).id, "memory.exhausted");
  const auto system = [](std::errc code) { return std::system_error(std::make_error_code(code)); };
  EXPECT_EQ(error_of(system(std::errc::not_enough_memory)).id, "memory.exhausted");
  const Error threads = error_of(system(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(threads.id, "thread.exhausted");
  EXPECT_EQ(threads.code, ErrorCode::exhausted);
}

TEST(ThrownError, CallsTheRestABug) {
  EXPECT_EQ(error_of(std::logic_error("it broke")).id, "internal");
  EXPECT_EQ(error_of(std::logic_error("it broke")).message, "it broke");
  EXPECT_EQ(error_of(std::system_error(std::make_error_code(std::errc::io_error))).id, "internal");
  EXPECT_EQ(error_of(5).id, "internal");
}

}  // namespace thrown_test
}  // namespace fp4moe
