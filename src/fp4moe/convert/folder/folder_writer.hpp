// The files of a converted folder, each written whole and entered in the journal. Used by
// convert_folder alone.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/convert/folder/folder_plan.hpp"
#include "fp4moe/convert/folder/journal.hpp"

namespace fp4moe::convert {

class FolderWriter {
 public:
  FolderWriter(const checkpoint::Checkpoint& checkpoint, FolderPlan& plan, std::string staging,
               const ConvertOptions& options)
      : checkpoint_(checkpoint), plan_(plan), staging_(std::move(staging)), options_(options) {}

  // Each skips a file that the journal knows. Finished files enter the plan's manifest.
  Result<Done> write_source(Journal& journal);
  Result<Done> write_others(const PlannedOthers& others, Journal& journal);
  Result<Done> write_layer(PlannedLayer& layer, Journal& journal);
  Result<Done> copy_companions();
  Result<Done> make_model_files();
  Result<Done> write_manifest();

  std::size_t skipped() const { return skipped_; }
  std::size_t linked() const { return linked_; }

 private:
  bool take(const std::string& file, const Journal& journal);
  Result<std::optional<FileRecord>> find_at_sibling(const PlannedOthers& others) const;
  void done(std::uint64_t bytes) const {
    if (options_.progress) options_.progress(bytes);
  }
  std::string path(std::string_view name) const;
  Result<Done> add_companion(const std::string& name, std::span<const std::byte> bytes,
                             const tensor::MappedFile* source);
  Result<Done> pack(PlannedLayer& layer, LayerPacker& packer, tensor::SafetensorsWriter& writer,
                    std::vector<PieceDigests>& digests) const;
  Result<Done> pack_small(const PlannedLayer& layer, const LayerPacker& packer,
                          tensor::SafetensorsWriter& writer,
                          std::vector<PieceDigests>& digests) const;
  Result<FileRecord> finish(const std::string& file, tensor::SafetensorsWriter& writer,
                            const std::vector<PieceDigests>& digests) const;

  const checkpoint::Checkpoint& checkpoint_;
  FolderPlan& plan_;
  std::string staging_;
  ConvertOptions options_;
  std::size_t skipped_ = 0, linked_ = 0;
};

}  // namespace fp4moe::convert
