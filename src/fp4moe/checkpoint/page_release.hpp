// Lets file pages go after use, so that a checkpoint larger than memory can be walked.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/tensor/buffer.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

// Drops `part` of a tensor and what was mapped around it: the kernel may map a whole huge page
// (2 MiB) of the file when one byte is touched. What a neighbor still needs comes back from the
// page cache.
inline void release_pages(const tensor::Store& store, const tensor::StoredTensor& tensor,
                          std::span<const std::byte> part) {
  constexpr std::size_t kAround = tensor::Buffer::kHugePage;
  const std::span<const std::byte> file = store.files()[tensor.file].bytes();
  const auto offset = static_cast<std::size_t>(part.data() - file.data());
  const std::size_t begin = offset / kAround * kAround;
  const std::size_t end =
      std::min<std::size_t>(round_up(offset + part.size(), kAround), file.size());
  store.drop(tensor, file.subspan(begin, end - begin));
}

// Lets every page of a store leave memory.
inline void drop_all(const tensor::Store& store) {
  for (const tensor::MappedFile& file : store.files()) file.drop(file.bytes());
}

}  // namespace fp4moe::checkpoint
