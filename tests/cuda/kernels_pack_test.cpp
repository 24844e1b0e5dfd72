// Packing on the device against the packer of the CPU.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_pack_test {

using checkpoint::ExpertView;
using checkpoint::ProjectionView;
using checkpoint::RowOrder;
using checkpoint::WeightFormat;

// Rows of a checkpoint, some bytes apart.
struct Rows2 {
  std::uint64_t rows = 0, columns = 0, code_stride = 0, scale_stride = 0;
  std::vector<std::byte> codes{}, scales{};

  ProjectionView view(std::uint64_t block) const {
    return {.codes = {codes.data(), rows, columns / 2, code_stride},
            .scales = {scales.data(), rows, columns / block, scale_stride}};
  }
};

Rows2 random_rows(WeightFormat format, std::uint64_t rows, std::uint64_t columns,
                  std::uint64_t seed) {
  SplitMix64 random(seed);
  Rows2 result{rows, columns, columns / 2 + 5, columns / block_size(format) + 1, {}, {}};
  for (std::uint64_t i = 0; i < rows * result.code_stride; ++i)
    result.codes.push_back(static_cast<std::byte>(random.next()));
  for (std::uint64_t i = 0; i < rows * result.scale_stride; ++i)
    result.scales.push_back(static_cast<std::byte>(
        format == WeightFormat::nvfp4 ? random.next() % 0x80 : 60 + random.next() % 80));
  return result;
}

const layout::Layout& native(WeightFormat format) {
  const auto& all = backends::layouts();
  return *std::ranges::find_if(all, [&](const layout::Layout& row) {
    return row.format == format && row.id.starts_with("native_sm90");
  });
}

class Pack : public OnDevice {
 protected:
  // `second` null: one matrix.
  std::vector<std::byte> packed(WeightFormat format, const Rows2& first, const Rows2* second,
                                std::int32_t offset, std::size_t bytes) {
    const Memory codes = upload(first.codes), scales = upload(first.scales);
    const Memory codes2 = second != nullptr ? upload(second->codes) : Memory();
    const Memory scales2 = second != nullptr ? upload(second->scales) : Memory();
    const Memory to = buffer<std::byte>(bytes);
    const PackParams params{.codes = codes.as<std::uint8_t>(),
                            .scales = scales.as<std::uint8_t>(),
                            .code_stride = first.code_stride,
                            .scale_stride = first.scale_stride,
                            .second_codes = codes2.as<std::uint8_t>(),
                            .second_scales = scales2.as<std::uint8_t>(),
                            .rows = static_cast<std::uint32_t>(first.rows),
                            .columns = static_cast<std::uint32_t>(first.columns),
                            .is_nvfp4 = format == WeightFormat::nvfp4 ? 1u : 0u,
                            .offset = offset,
                            .tiles = to.as<std::uint8_t>()};
    run("fp4moe_sm90_pack", params, {7, kPackThreads});
    return download<std::byte>(to, bytes);
  }

  void expect_packed(WeightFormat format, bool is_gated, std::uint64_t hidden,
                     std::uint64_t intermediate) {
    SCOPED_TRACE(
        fmt::format("{}, gated {}, {} x {}", name(format), is_gated, intermediate, hidden));
    const std::uint64_t block = block_size(format);
    const Rows2 gate = random_rows(format, intermediate, hidden, 1);
    const Rows2 up = random_rows(format, intermediate, hidden, 2);
    const Rows2 down = random_rows(format, hidden, intermediate, 3);
    const ExpertView view{.shape = {.format = format,
                                    .experts = 1,
                                    .hidden = hidden,
                                    .intermediate = intermediate,
                                    .order = is_gated ? RowOrder::halves : RowOrder::single},
                          .gate = is_gated ? gate.view(block) : ProjectionView{},
                          .up = up.view(block),
                          .down = down.view(block)};
    auto packer = convert::LayerPacker::make(
        native(format), {.experts = 1, .real = {hidden, intermediate}, .order = view.shape.order});
    ASSERT_TRUE(packer) << text(packer.why());
    std::vector<std::vector<std::byte>> memory;
    for (const auto& tensor : packer->tensors()) memory.emplace_back(tensor.expert_bytes);
    const std::vector<std::span<std::byte>> targets(memory.begin(), memory.end());
    const auto done = packer->pack(0, view, targets);
    ASSERT_TRUE(done) << text(done.why());

    const bool is_mxfp4 = format == WeightFormat::mxfp4;
    const auto offset_of = [&](std::initializer_list<const Rows2*> parts) {
      int largest = 0;
      for (const Rows2* part : parts)
        for (std::uint64_t r = 0; r < part->rows; ++r)
          for (std::uint64_t c = 0; c < part->columns / block; ++c)
            largest =
                std::max(largest, std::to_integer<int>(part->scales[r * part->scale_stride + c]));
      return is_mxfp4 ? std::max(0, largest - 128) : 0;
    };
    const auto w13 = is_gated ? packed(format, gate, &up, offset_of({&gate, &up}), memory[0].size())
                              : packed(format, up, nullptr, offset_of({&up}), memory[0].size());
    EXPECT_TRUE(w13 == memory[0]);
    EXPECT_TRUE(packed(format, down, nullptr, offset_of({&down}), memory[1].size()) == memory[1]);
  }
};

TEST_F(Pack, MakesTheBytesOfTheCpusPacker) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const bool is_gated : {true, false}) {
      expect_packed(format, is_gated, 128, 64);
      expect_packed(format, is_gated, 192, 96);
      expect_packed(format, is_gated, 352, 160);
      if (format == WeightFormat::nvfp4) expect_packed(format, is_gated, 208, 48);
    }
}

TEST_F(Pack, FillsMBlocksBehindTheLastRowWithZeros) {
  const Rows2 rows = random_rows(WeightFormat::mxfp4, 40, 128, 1);
  const Memory codes = upload(rows.codes), scales = upload(rows.scales);
  const Memory to = buffer<std::byte>(3 * 2 * 2176);
  const PackParams params{.codes = codes.as<std::uint8_t>(),
                          .scales = scales.as<std::uint8_t>(),
                          .code_stride = rows.code_stride,
                          .scale_stride = rows.scale_stride,
                          .rows = 40,
                          .columns = 128,
                          .tiles = to.as<std::uint8_t>(),
                          .m_blocks = 3};
  run("fp4moe_sm90_pack", params, {2, kPackThreads});

  const auto result = download<std::byte>(to, to.size());
  EXPECT_TRUE(std::all_of(result.begin() + 2 * 2176, result.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_FALSE(std::all_of(result.begin(), result.begin() + 2 * 2176,
                           [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace kernels_pack_test
}  // namespace fp4moe::kernels::cuda::sm90
