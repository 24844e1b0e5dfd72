// How large the block scales of a model are: counted by power of two, for every expert and
// projection. Reads scales alone of a checkpoint; a converted folder is unpacked one expert at a
// time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/progress.hpp"

namespace fp4moe::report {

// Scales by floor(log2 |scale x global scale|).
class ScaleHistogram {
 public:
  void add(checkpoint::WeightFormat format, const checkpoint::ProjectionView& projection);
  void add(const ScaleHistogram& other);

  std::uint64_t blocks() const { return blocks_; }  // all of them
  std::uint64_t zeros() const { return zeros_; }
  std::uint64_t negative() const { return negative_; }
  bool has_scales() const { return blocks_ > zeros_; }  // other than zero
  // The least scale other than zero; call has_scales() first.
  double min() const { return min_; }
  double largest() const { return largest_; }
  double mean_log2() const;
  int first_bin() const { return first_bin_; }
  // From first_bin() to the last that is not empty.
  const std::vector<std::uint64_t>& counts() const { return bins_; }

 private:
  void add_scale(double magnitude, std::uint64_t count);
  std::uint64_t& bin(int log2);

  std::uint64_t blocks_ = 0, zeros_ = 0, negative_ = 0;
  double min_ = 0, largest_ = 0, sum_log2_ = 0;
  int first_bin_ = 0;
  std::vector<std::uint64_t> bins_{};  // no more than there are: every expert has three histograms
};

inline constexpr std::array kProjectionNames{"gate", "up", "down"};

struct ExpertScales {
  std::uint64_t expert = 0;  // its number in the model
  std::array<ScaleHistogram, kProjectionNames.size()> projections{};
  std::optional<Error> why{};  // it could not be read
};

struct LayerScales {
  std::uint64_t index = 0;  // of the block
  std::vector<ExpertScales> experts{};
};

struct ScaleOptions {
  std::size_t threads = 1;
  checkpoint::ProgressFunction progress{};
};

// Errors: those of opening, interrupted, memory. An expert that cannot be read is an answer.
Result<std::vector<LayerScales>> scale_statistics(const std::string& path,
                                                  const ScaleOptions& options = {});
// Bytes that it goes through, for progress.
Result<std::uint64_t> scale_bytes(const std::string& path);

Json to_json(const std::vector<LayerScales>& layers);

}  // namespace fp4moe::report
