// Whether tests run under sanitizers. These check memory, and take ten times as long: where many like
// cases reach the same code, a test takes some of them.
#pragma once
#include <cstddef>

// Of the sanitizers' own libraries; absent without them. A test's own objects may be without sanitizers.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
}

namespace fp4moe {

inline bool is_sanitized() { return &__asan_init != nullptr || &__tsan_init != nullptr; }

// Whether the case of this number is taken: all, or under sanitizers one in `every`.
inline bool is_taken(std::size_t number, std::size_t every) {
  return !is_sanitized() || number % every == 0;
}

}  // namespace fp4moe
