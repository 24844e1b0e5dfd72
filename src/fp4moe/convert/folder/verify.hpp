// Checks that a converted folder is what was written: every byte of every file against the
// manifest's checksums; and, deep, whether it is what its source gives: every expert packed again
// and compared.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"

namespace fp4moe::convert {

struct VerifyOptions {
  std::size_t threads = 1;
  bool deep = false;
  std::string source{};  // of a deep check; empty: the path in the manifest
  checkpoint::ProgressFunction progress{};
};

struct VerifyReport {
  std::string layout{}, generation{}, backend{};
  std::uint64_t layers = 0, files = 0, tensors = 0, bytes = 0;
  bool deep = false;
  double seconds = 0;
  std::vector<Error> findings{};  // code mismatch, in the order of the files; at most kMax
  std::uint64_t more = 0;         // beyond those

  static constexpr std::size_t kMax = 100;
  void add(Error finding) {
    finding.code = ErrorCode::mismatch;
    findings.size() < kMax ? findings.push_back(std::move(finding)) : void(++more);
  }
};

// Findings are answers; errors are folders that are not converted ones, sources that cannot be
// opened, an interrupt. Ids of findings: converted.manifest, converted.file, converted.tensor,
// converted.checksum, verify.source (another source), verify.differs (not what the source gives).
Result<VerifyReport> verify_folder(const std::string& path, const VerifyOptions& options = {});

// Bytes a check goes through, for progress.
Result<std::uint64_t> verify_bytes(const std::string& path, bool deep);

// Every expert and kept byte against the source (used by verify_folder).
Result<Done> compare_with_source(const ConvertedFolder& folder,
                                 const checkpoint::Checkpoint& checkpoint,
                                 const VerifyOptions& options, VerifyReport& report);

}  // namespace fp4moe::convert
