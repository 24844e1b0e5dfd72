#include "fp4moe/tensor/files/posix.hpp"

#include <cerrno>

#include <gtest/gtest.h>

namespace fp4moe::tensor {
namespace posix_test {

TEST(Paths, AreCutAtTheLastSlash) {
  EXPECT_EQ(parent_folder("a/b"), "a");
  EXPECT_EQ(parent_folder("b"), ".");
  EXPECT_EQ(parent_folder("/b"), "/.");
  EXPECT_EQ(last_component("a/b"), "b");
  EXPECT_EQ(last_component("b"), "b");
  for (const char* folder : {"a/", ".", "..", "a/..", ""}) EXPECT_EQ(last_component(folder), "");
}

TEST(FileError, GivesFullDisksOneId) {
  for (const int number : {ENOSPC, EDQUOT, EFBIG}) {
    const Error why = file_error("file.write", "cannot write", number);
    EXPECT_EQ(why.id, "file.disk_full");
    EXPECT_EQ(why.code, ErrorCode::exhausted);
    EXPECT_FALSE(why.remedy.empty());
  }
  EXPECT_EQ(file_error("file.write", "cannot write", EIO).id, "file.write");
}

TEST(Flush, ReportsWhatCannotBeFlushed) {
  EXPECT_FALSE(flush(-1));
  EXPECT_FALSE(flush_folder("/nonexistent"));
  EXPECT_TRUE(flush_folder("/tmp"));
}

}  // namespace posix_test
}  // namespace fp4moe::tensor
