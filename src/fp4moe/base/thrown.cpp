#include "fp4moe/base/thrown.hpp"

#include <cerrno>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

namespace fp4moe {

Error thrown_error() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  } catch (const std::length_error&) {  // more than a container can ever hold
    return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  } catch (const std::system_error& thrown) {
    if (thrown.code() == std::errc::not_enough_memory)
      return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
    if (thrown.code() == std::errc::resource_unavailable_try_again)
      return error(ErrorCode::exhausted, "thread.exhausted", "the system gives no more threads")
          .try_this("Raise the limit (ulimit -u), or use fewer ranks or threads");
    return error(ErrorCode::failed, "internal", thrown.what());
  } catch (const std::exception& thrown) {
    return error(ErrorCode::failed, "internal", thrown.what());
  } catch (...) {
    return error(ErrorCode::failed, "internal", "an exception of an unknown kind");
  }
}

}  // namespace fp4moe
