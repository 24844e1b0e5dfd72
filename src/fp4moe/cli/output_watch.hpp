// The path of -o before and after a command, so that an error for lack of memory can name the output
// that exists. Outputs appear whole, under their name at once: a new file or folder there is the
// output, except for a folder that is still empty or holds only names with a dot in front.
#pragma once
#include <array>
#include <cstdint>
#include <exception>
#include <ostream>
#include <string>

#include <sys/types.h>

#include "fp4moe/base/result.hpp"

namespace fp4moe::cli {

class OutputWatch {
 public:
  // `path`: what -o names; empty: nothing is written.
  explicit OutputWatch(std::string path);

  // The output, if it is there now and was not before. `ranks`: a folder of them, which grows.
  enum class Found : std::uint8_t { nothing, output, ranks };
  Found look() const noexcept;
  const std::string& path() const { return path_; }

 private:
  std::string path_, first_rank_;
  bool was_there_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Thrown where no memory is left for an Error that says it.
class OutputStands final : public std::exception {
 public:
  explicit OutputStands(const OutputWatch& watch) noexcept;
  const char* what() const noexcept override { return "an output stands"; }
  void print(std::ostream& err) const;  // takes no memory

 private:
  std::array<char, 1024> path_{};
  bool is_ranks_ = false;
};

// `why`; if memory ran out after the output was complete, the error says so.
Error with_what_stands(Error why, const OutputWatch& watch);

}  // namespace fp4moe::cli
