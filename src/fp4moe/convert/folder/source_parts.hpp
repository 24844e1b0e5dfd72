// A checkpoint's bytes, sorted by what becomes of them:
//
//   codes, block scales, biases of experts   packed into the layout, and unpacked from it
//   global and input scales of experts       kept as they are (their reciprocals cannot be undone)
//   other tensors                            copied under their names
//   everything outside tensors (the frame)   kept as it is: headers, padding
//
// So the files themselves can be made again, byte for byte, whoever wrote them.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/convert/folder/checksum.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::convert {

struct SourceParts {
  std::vector<const tensor::StoredTensor*> others{};                // by name
  std::vector<std::vector<const tensor::StoredTensor*>> scalars{};  // of each file, by position
};
SourceParts parts_of(const checkpoint::Checkpoint& checkpoint);

// How an other tensor is stored here: as it is, or, where safetensors has no such type (blocks of
// GGUF), as the bytes of its rows.
tensor::TensorSpec kept_spec(const tensor::TensorEntry& entry);

// The file's name below the store's folder.
std::string file_name(const tensor::Store& store, std::size_t file);

// The stretches of a file that belong to no tensor.
std::vector<checkpoint::Range> gaps_of(const tensor::Store& store, std::size_t file);

// Their bytes one after another, which may be many (GGUF allows any gap) and are never held whole.
class Frame {
 public:
  Frame(const tensor::Store& store, std::size_t file);

  std::uint64_t bytes() const { return begins_.back(); }
  // Copies bytes from `at` on, which must be there.
  void read(std::uint64_t at, std::span<std::byte> to) const;
  // Calls work(at, piece) for all bytes in pieces of kPieceBytes, until it fails.
  Result<Done> for_each_piece(
      const std::function<Result<Done>(std::uint64_t, std::span<const std::byte>)>& work) const;
  Result<Digest> digest() const;

 private:
  const tensor::MappedFile& mapped_;
  std::vector<checkpoint::Range> gaps_;
  std::vector<std::uint64_t> begins_{0};  // of each gap in the frame, and the end
};

// Bytes outside tensors of all files. Errors: convert.frame (more than the tensors' and 128 MiB).
Result<std::uint64_t> frame_bytes(const tensor::Store& store);

// The bytes of some tensors one after another.
std::vector<std::byte> joined(const tensor::Store& store,
                              const std::vector<const tensor::StoredTensor*>& tensors);

// The identity of a file when it was read. Times and numbers of the file system tell a change that
// sizes and headers do not show; they are no part of the manifest.
struct FileStamp {
  SourceFile file{};
  std::int64_t modified_ns = 0;
  std::uint64_t inode = 0;
};
Result<std::vector<FileStamp>> stamps_of(const checkpoint::Checkpoint& checkpoint);
// Refuses a source that is no longer what the stamps say: convert.source_changed.
Result<Done> check_stamps(const checkpoint::Checkpoint& checkpoint,
                          const std::vector<FileStamp>& stamps);

}  // namespace fp4moe::convert
