#include "fp4moe/tensor/files/store_index.hpp"
#include "fuzz.hpp"

namespace fp4moe {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index = tensor::parse_index(fuzz::characters(data, size));
  if (!index) {
    fuzz::require_complete(index.why(), "index.");
    return 0;
  }
  for (std::size_t i = 0; i < index->entries.size(); ++i) {
    fuzz::require(index->entries[i].shard < index->shards.size());
    fuzz::require(i == 0 || index->entries[i - 1].name < index->entries[i].name);
  }
  for (const std::string& shard : index->shards) {
    const std::string framed = "/" + shard + "/";
    fuzz::require(framed.find("/../") == std::string::npos);
    fuzz::require(framed.find("//") == std::string::npos);
  }
  return 0;
}

}  // namespace fp4moe
