// The compiled part of fmt 9, for what may rely on no libfmt of the machine: the Python module, the
// static program.
#include <fmt/format-inl.h>

template auto fmt::detail::thousands_sep_impl(fmt::detail::locale_ref)
    -> fmt::detail::thousands_sep_result<char>;
template char fmt::detail::decimal_point_impl(fmt::detail::locale_ref);
