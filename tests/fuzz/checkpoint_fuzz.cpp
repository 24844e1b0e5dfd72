// A whole checkpoint in memory: config.json, a zero byte, hf_quant_config.json, a zero byte, and
// lines of tensors, "NAME DTYPE 2 64 32". Tensors hold bytes of one pattern after another.
#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/runtime/facts.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "fuzz.hpp"

namespace fp4moe {
namespace {

constexpr std::size_t kBufferBytes = 1 << 16, kMaxTensors = 512, kMaxExperts = 4;

std::string_view cut(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

std::span<const std::byte> buffer() {
  static const std::vector<std::byte> kBytes = [] {
    std::vector<std::byte> result(kBufferBytes);
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] = static_cast<std::byte>(i * 37 % 251);
    return result;
  }();
  return kBytes;
}

std::vector<tensor::MemoryTensor> tensors_of(std::string_view lines) {
  std::vector<tensor::MemoryTensor> result;
  for (const std::string_view line : split(lines, '\n')) {
    const auto words = split(line, ' ');
    if (words.size() < 2 || result.size() == kMaxTensors) continue;
    tensor::MemoryTensor each{.name = std::string(words[0])};
    const auto dtype = tensor::dtype_from_safetensors(words[1]);
    if (!dtype) continue;
    each.dtype = *dtype;
    for (std::size_t i = 2; i < words.size(); ++i) {
      std::uint64_t extent = 0;
      std::from_chars(words[i].data(), words[i].data() + words[i].size(), extent);
      each.shape.push_back(extent);
    }
    const auto bytes = tensor::byte_count(each.dtype, each.shape);
    each.bytes = buffer().first(std::min<std::uint64_t>(bytes.value_or(0), kBufferBytes));
    result.push_back(std::move(each));
  }
  return result;
}

void read_experts(const checkpoint::Checkpoint& checkpoint) {
  for (std::size_t layer = 0; layer < checkpoint.layers().size(); ++layer) {
    const checkpoint::MoeShape& shape = checkpoint.layers()[layer].shape;
    for (const std::uint64_t ranks : {1u, 2u}) {
      checkpoint::ExpertReader reader(checkpoint, {.tensor_parallel = {ranks - 1, ranks}});
      for (std::uint64_t e = 0; e < std::min<std::uint64_t>(shape.experts, kMaxExperts); ++e) {
        const auto view = reader.read(layer, e);
        if (!view) fuzz::require_words(view.why());
      }
    }
    if (const auto facts = runtime::layer_facts(checkpoint, layer); !facts)
      fuzz::require_words(facts.why());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest = fuzz::characters(data, size);
  std::vector<tensor::Document> documents;
  for (const char* name : {"config.json", "hf_quant_config.json"})
    if (const std::string_view text = cut(rest); !text.empty())
      documents.push_back({name, std::string(text)});
  auto store = tensor::Store::of(tensors_of(rest), std::move(documents));
  if (!store) {
    fuzz::require_complete(store.why(), "store.");
    return 0;
  }
  const auto checkpoint = checkpoint::Checkpoint::of(*std::move(store));
  if (checkpoint)
    read_experts(*checkpoint);
  else
    fuzz::require_words(checkpoint.why());
  return 0;
}

}  // namespace fp4moe
