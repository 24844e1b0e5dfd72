#include "fp4moe/weights/codec.hpp"

#include <optional>

#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::weights {

namespace {

const kernels::cpu::BlockCodec* choose() {
  // A setting that cannot be honoured is the caller's to refuse; all codecs give the same bytes.
  const Result<platform::Settings> settings = platform::read_settings();
  const auto usable = kernels::cpu::usable_features(platform::detect_cpu_features(),
                                                    settings ? settings->cpu_isa : std::nullopt);
  return &kernels::cpu::pick(kernels::cpu::block_codecs(),
                             usable ? *usable : EnumSet<platform::CpuFeature>{});
}

}  // namespace

const kernels::cpu::BlockCodec& machine_codec() {
  static const kernels::cpu::BlockCodec* const kChosen = choose();
  return *kChosen;
}

}  // namespace fp4moe::weights
