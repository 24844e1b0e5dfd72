// Uses the installed package from outside: writes a file, reads it back.
#include <array>
#include <cstdio>
#include <string>

#include "fp4moe/base/version.hpp"
#include "fp4moe/checkpoint/codec.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "fp4moe/tensor/files/store.hpp"

using namespace fp4moe;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string path = argv[1];
  const tensor::TensorSpec spec{.name = "codes", .dtype = tensor::DType::f4, .shape = {2, 4}};
  const std::array<std::byte, 4> codes{std::byte{0x10}, std::byte{0x32}, std::byte{0x54},
                                       std::byte{0x76}};

  Result<tensor::SafetensorsWriter> writer =
      tensor::SafetensorsWriter::create(path, std::span(&spec, 1));
  if (!writer || !writer->write(0, 0, codes) || !writer->finish()) return 1;
  const Result<tensor::Store> store = tensor::Store::open(path);
  if (!store) {
    std::puts(text(store.why()).c_str());
    return 1;
  }
  const auto bytes = store->bytes(*store->find("codes"));
  const float last = formats::E2m1::decode(std::to_integer<std::uint8_t>(bytes.back()) >> 4);
  std::printf("fp4moe %s with %s: last code is %.1f\n", std::string(kVersion).c_str(),
              std::string(checkpoint::machine_codec().name).c_str(), double{last});
  return last == 6.0f ? 0 : 1;
}
