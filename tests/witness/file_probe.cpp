// Lets other programs compare our reading and writing of tensor files with theirs.
//
//   file_probe list PATH                    JSON: every tensor with dtype, shape and bytes in hex
//   file_probe write-safetensors OUT SEED   seeded tensors of every dtype
//   file_probe write-gguf OUT SEED          the same, with metadata of every type
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::tensor {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

Result<Done> list(const std::string& path) {
  const Result<Store> store = Store::open(path);
  if (!store) return store.why();
  Json document = Json::object();
  document["kind"] = store->kind() == StoreKind::gguf ? "gguf" : "safetensors";
  document["files"] = store->files().size();
  document["metadata"] = Json::array();
  for (const Metadata& metadata : store->metadata()) document["metadata"].push_back(metadata);
  document["fields"] = Json::object();
  for (const GgufField& field : store->gguf_fields())
    std::visit(
        [&](const auto& value) {
          document["fields"][field.key] =
              Json{{"type", static_cast<std::uint32_t>(field.type)}, {"value", value}};
        },
        field.value);
  Json tensors = Json::object();
  for (const StoredTensor& tensor : store->tensors())
    tensors[tensor.entry.name] = Json{{"dtype", name(tensor.entry.dtype)},
                                      {"shape", tensor.entry.shape},
                                      {"bytes", hex(store->bytes(tensor))}};
  document["tensors"] = std::move(tensors);
  std::puts(document.dump().c_str());
  return Done{};
}

// Every type once plain and once in an awkward shape.
std::vector<TensorSpec> specs_for(StoreKind kind) {
  std::vector<TensorSpec> specs;
  for (const DTypeRow& dtype : kDTypes) {
    if (kind == StoreKind::gguf ? dtype.ggml_type < 0 : !dtype.in_safetensors) continue;
    const std::uint64_t block = dtype.block_elements;
    const std::string front = "layer.0." + std::string(dtype.name);
    specs.push_back({front + ".weight", dtype.dtype, {3, 2 * block}});
    specs.push_back({front + ".three", dtype.dtype, {2, 1, 3 * block}});
    if (kind == StoreKind::safetensors)
      specs.push_back({front + ".empty", dtype.dtype, {0, block}});
    if (block == 1 && kind == StoreKind::safetensors)
      specs.push_back({front + ".scalar", dtype.dtype, {}});
  }
  return specs;
}

// Bytes that every reader takes: truth values are 0 or 1.
std::vector<std::byte> seeded(const TensorEntry& entry, SplitMix64& random) {
  std::vector<std::byte> bytes(entry.bytes);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random.next() >> 56);
    if (entry.dtype == DType::boolean) byte &= std::byte{1};
  }
  return bytes;
}

template <class Writer>
Result<Done> fill(Result<Writer> writer, std::uint64_t seed) {
  if (!writer) return writer.why();
  SplitMix64 random(seed);
  for (std::size_t i = 0; i < writer->entries().size(); ++i) {
    const std::vector<std::byte> data = seeded(writer->entries()[i], random);
    const std::size_t half = data.size() / 2;  // in two pieces, second first
    if (Result<Done> piece = writer->write(i, half, std::span(data).subspan(half)); !piece)
      return piece;
    if (Result<Done> piece = writer->write(i, 0, std::span(data).first(half)); !piece) return piece;
  }
  return writer->finish();
}

std::vector<GgufField> fields() {
  return {{"general.architecture", GgufType::string, std::string("gpt-oss")},
          {"general.alignment", GgufType::u32, std::uint64_t{64}},
          {"test.u8", GgufType::u8, std::uint64_t{200}},
          {"test.i8", GgufType::i8, std::int64_t{-100}},
          {"test.u16", GgufType::u16, std::uint64_t{60'000}},
          {"test.i16", GgufType::i16, std::int64_t{-30'000}},
          {"test.u32", GgufType::u32, std::uint64_t{4'000'000'000}},
          {"test.i32", GgufType::i32, std::int64_t{-2'000'000'000}},
          {"test.u64", GgufType::u64, std::uint64_t{1} << 63},
          {"test.i64", GgufType::i64, -(std::int64_t{1} << 62)},
          {"test.f32", GgufType::f32, 0.25},
          {"test.f64", GgufType::f64, 0.1},
          {"test.bool", GgufType::boolean, true},
          {"test.string", GgufType::string, std::string("東 \"quoted\"")},
          {"test.numbers", GgufType::i32, std::vector<std::int64_t>{-1, 0, 7}},
          {"test.words", GgufType::string, std::vector<std::string>{"a", "", "é"}},
          {"test.bools", GgufType::boolean, std::deque<bool>{true, false}}};
}

Result<Done> run(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 1 ? arguments[1] : "";
  if (command == "list" && arguments.size() == 3) return list(arguments[2]);
  if (arguments.size() == 4) {
    const std::uint64_t seed = std::strtoull(arguments[3], nullptr, 10);
    if (command == "write-safetensors")
      return fill(SafetensorsWriter::create(arguments[2], specs_for(StoreKind::safetensors),
                                            {{"format", "pt"}, {"note", "東 \"quoted\"\n"}}),
                  seed);
    if (command == "write-gguf")
      return fill(GgufWriter::create(arguments[2], fields(), specs_for(StoreKind::gguf)), seed);
  }
  return usage("probe.usage", "file_probe list PATH | write-safetensors OUT SEED | write-gguf ...");
}

}  // namespace
}  // namespace fp4moe::tensor

// NOLINTNEXTLINE(bugprone-exception-escape): a probe may die of what it did not expect
int main(int count, char** arguments) {
  const fp4moe::Result<fp4moe::Done> result =
      fp4moe::tensor::run({arguments, static_cast<std::size_t>(count)});
  if (result) return 0;
  std::fprintf(stderr, "%s\n", text(result.why()).c_str());
  return static_cast<int>(result.why().code);
}
