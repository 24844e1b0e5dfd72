// One expert with an adapter's change added, quantized again, a few rows at a time.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/edit/merge.hpp"
#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/write/exact_scales.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::checkpoint {

// Sums over matrices, to be added up in a fixed order.
struct MergeSums {
  double squared = 0, squared_error = 0, squared_change = 0;

  void add(const MergeSums& other);
  MergeError error() const;
};

struct MergedExpert {
  ExpertView view{};              // changed matrices in the merger's memory, others in the file
  StoredScales scales{};          // global scales as the dialect stores them
  std::array<bool, 3> changed{};  // by Projection
  std::uint64_t raised = 0;       // global scales that grew
  MergeSums sums{};

  bool is_changed(Projection which) const { return changed[static_cast<std::size_t>(which)]; }
};

// out[c] += b[0] * a[0][c], then b[1] * a[1][c], ...: row i of `a` begins at a + i * out.size().
// Each sum is rounded in this order, whatever the vector width.
void add_low_rank_row(std::span<const float> b, const float* a, std::span<float> out);

class ExpertMerger {
 public:
  ExpertMerger(const Checkpoint& source, const Adapter& adapter, const ScaleSource& scales,
               const MergeOptions& options)
      : source_(&source),
        adapter_(&adapter),
        scales_(&scales),
        options_(&options),
        reader_(source, Slice{}) {}

  // Valid until the next call.
  Result<MergedExpert> merge(std::size_t layer, std::uint64_t expert);
  // Lets the pages of the last expert leave memory.
  void release() { reader_.release(); }

  // The most memory a merger takes for experts of a shape and adapters of a rank.
  static std::uint64_t memory(const MoeShape& shape, std::uint64_t rank);

 private:
  struct Job;  // one matrix on its way
  Result<bool> load_factors(Job& job);
  Result<Done> quantize(Job& job);
  Result<Done> quantize_rows(Job& job, std::uint64_t begin, std::uint64_t end);
  Result<Done> raise_scales(std::array<Job, 3>& jobs, MergedExpert& merged);

  const Checkpoint* source_;
  const Adapter* adapter_;
  const ScaleSource* scales_;
  const MergeOptions* options_;
  ExpertReader reader_;
  tensor::Buffer output_{}, values_{}, change_{};
  std::array<tensor::Buffer, 3> a_{}, b_{};
};

}  // namespace fp4moe::checkpoint
