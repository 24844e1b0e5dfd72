// Opens a checkpoint of any dialect and prints the first weights of an expert.
//   read_expert PATH
#include <array>
#include <cstdio>
#include <span>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"

using fp4moe::Error;
using fp4moe::Result;
namespace formats = fp4moe::formats;
namespace checkpoint = fp4moe::checkpoint;

namespace {

int fail(const Error& why) {
  std::fprintf(stderr, "%s\n", text(why).c_str());
  return static_cast<int>(why.code);
}

std::span<const std::uint8_t> codes(std::span<const std::byte> row, std::size_t count) {
  return {reinterpret_cast<const std::uint8_t*>(row.data()), count};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(argv[1]);
  if (!checkpoint) return fail(checkpoint.why());
  checkpoint::ExpertReader reader(*checkpoint, {});
  const Result<checkpoint::ExpertView> expert = reader.read(0, 0);
  if (!expert) return fail(expert.why());

  const checkpoint::ProjectionView& up = expert->up;
  const auto scale = std::to_integer<std::uint8_t>(up.scales.row(0)[0]);
  std::array<float, 8> values{};
  if (expert->shape.format == checkpoint::WeightFormat::mxfp4)
    formats::dequantize_mxfp4(scale, codes(up.codes.row(0), formats::kMxfp4Bytes), values);
  else
    formats::dequantize_nvfp4_by_multiplier(scale, up.global_scale,
                                            codes(up.codes.row(0), formats::kNvfp4Bytes), values);
  for (const float value : values) std::printf("%g ", double{value});
  std::puts("");
}
