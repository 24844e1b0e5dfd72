// The weights of a rank's experts as the GEMM kernels read them: in tiles, packed by a layout or
// cut here, or as the rows of a mapped checkpoint that are cut into tiles at every use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/moe/cpu/engine.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::moe::cpu {

inline constexpr std::size_t kRowPadding = 16;  // what rows of any tiles are padded to, or less

struct CpuMatrix {
  kernels::cpu::GemmWeights tiles{};  // no codes: cut `rows` first
  kernels::cpu::GemmRows rows{};
  std::size_t padded_rows = 0;  // of the tiles

  bool is_mapped() const { return tiles.codes == nullptr; }
};

struct CpuExpert {
  CpuMatrix w13{}, w2{};  // w13: gates and ups interleaved
  // Whole chunks of columns, with zeros behind the last; null: none. Without a gate there are only
  // `up` values.
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  float gate_global = 1.0f, up_global = 1.0f, down_global = 1.0f;
};

class CpuWeights {
 public:
  // Errors: experts.scales, experts.layout, those of the source.
  static Result<CpuWeights> make(const ExpertSource& source, const kernels::cpu::TileForm& tiles,
                                 WeightsHome home, ThreadPool& pool);

  const CpuExpert& at(std::size_t expert) const { return experts_[expert]; }
  std::size_t hidden_chunks() const { return hidden_chunks_; }  // columns of w13
  std::size_t middle_chunks() const { return middle_chunks_; }  // columns of w2
  // Positions of a tile hold the columns TileForm::zipped says, not their own.
  bool is_zipped() const { return is_zipped_; }
  bool is_mapped() const { return is_mapped_; }
  // Buffers for `count` rows of either matrix, for those that are cut at every use.
  std::size_t code_bytes(std::size_t count) const { return count * max_blocks_ * 16; }
  std::size_t scale_bytes(std::size_t count) const { return count * max_scales_; }

 private:
  Result<Done> read_packed(const ExpertSource& source, const kernels::cpu::TileForm& tiles,
                           ThreadPool& pool);
  Result<Done> read_views(const ExpertSource& source, const kernels::cpu::TileForm& tiles,
                          ThreadPool& pool);
  Result<Done> make_biases(const ExpertSource& source);
  Result<Done> cut(const kernels::cpu::TileForm& tiles, std::size_t position);
  void set_sizes(std::size_t hidden_blocks, std::size_t middle_blocks, std::uint64_t block);

  std::vector<CpuExpert> experts_{};
  std::vector<tensor::Buffer> memory_{};  // of tiles that were cut here
  std::vector<float> biases_{};           // [experts][gates, ups, downs]
  std::size_t hidden_chunks_ = 0, middle_chunks_ = 0, max_blocks_ = 0, max_scales_ = 0;
  bool is_zipped_ = false, is_mapped_ = false;
};

}  // namespace fp4moe::moe::cpu
