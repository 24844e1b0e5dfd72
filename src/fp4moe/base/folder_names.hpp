// The names in a folder. The iterators of std::filesystem end the program where there is no memory for
// a name; these functions throw std::bad_alloc, which becomes an error.
#pragma once
#include <string>
#include <vector>

namespace fp4moe {

// Appends the names in the folder of a descriptor, sorted, without "." and "..". 0, or errno.
int add_names_in(int folder, std::vector<std::string>& names);
// The same of a path, whose links are followed.
int add_names_in(const std::string& folder, std::vector<std::string>& names);

}  // namespace fp4moe
