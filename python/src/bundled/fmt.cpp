// The compiled part of fmt 9, inside the module: a wheel may rely on no libfmt of the machine's.
#include <fmt/format-inl.h>

template auto fmt::detail::thousands_sep_impl(fmt::detail::locale_ref)
    -> fmt::detail::thousands_sep_result<char>;
template char fmt::detail::decimal_point_impl(fmt::detail::locale_ref);
