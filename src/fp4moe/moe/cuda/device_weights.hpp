// A rank's weights on a device, in the layout native_sm90 (native_sm80 is the same): copied if they
// have it, else packed by the device from the checkpoint's rows, one expert at a time. Both give the
// same bytes as the packer of convert/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/moe/cuda/plan.hpp"
#include "fp4moe/moe/cuda/staging.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

class DeviceWeights {
 public:
  DeviceWeights() = default;  // without experts
  // `layer`: from describe() of the source's shape; its addresses are filled in. Errors:
  // experts.scales (block or global scales that are not scalars), scale.range, scale.negative,
  // scale.global, experts.layout (tensors or views that do not fit the shape), those of the source
  // and of the device: cuda.memory, cuda.failed.
  static Result<DeviceWeights> make(std::shared_ptr<const kernels::cuda::Device> device,
                                    const ExpertSource& source, sm90::LayerParams& layer);

  std::uint64_t bytes() const {
    return w13_.size() + w2_.size() + scalars_.size() + row_scales_.size();
  }
  // Rows whose block scales span more than E4M3 holds. With any, the layer has no row scales.
  std::uint64_t wide_rows() const { return wide_rows_; }

 private:
  // Factors and biases of all experts, in their layout on the device.
  struct Scalars {
    std::vector<float> factor13{}, factor2{}, bias13{}, bias2{}, down_global{};
  };
  Result<Done> copy_packed(const ExpertSource& source, const sm90::LayerParams& layer,
                           Scalars& scalars);
  Result<Done> copy_tiles(const ExpertSource::PackedTensor& from, const sm90::WeightMatrix& matrix,
                          std::byte* to);
  Result<Done> pack_views(const ExpertSource& source, const sm90::LayerParams& layer,
                          Scalars& scalars);
  Result<Done> pack_expert(const checkpoint::ExpertView& view, const sm90::LayerParams& layer,
                           std::size_t position, Scalars& scalars);
  struct Packing;
  Result<Done> pack_matrix(const Packing& packing);
  Result<Done> upload_scalars(const Scalars& scalars, sm90::LayerParams& layer);
  Result<Done> find_row_scales(sm90::LayerParams& layer);

  std::shared_ptr<const kernels::cuda::Device> device_{};
  kernels::cuda::Memory w13_{}, w2_{}, scalars_{}, row_scales_{};
  std::uint64_t wide_rows_ = 0;
  // Only while the weights are uploaded.
  std::unique_ptr<Staging> staging_{};
  kernels::cuda::Memory rows_{};  // codes and scales of one expert
  kernels::cuda::Function pack_ = nullptr;
};

}  // namespace fp4moe::moe::cuda
