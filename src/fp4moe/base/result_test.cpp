#include "fp4moe/base/result.hpp"

#include <cerrno>
#include <memory>

#include <gtest/gtest.h>

namespace fp4moe {
namespace result_test {

TEST(Result, HoldsAValue) {
  const Result<int> result = 7;
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 7);
}

TEST(Result, HoldsWhyThereIsNoValue) {
  const Result<int> result = usage("a.b", "no");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.why().id, "a.b");
  EXPECT_EQ(result.why().code, ErrorCode::usage);
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 3);
}

TEST(Result, TellsAnErrorFromAValueOfTypeError) {
  const Result<std::string> text = std::string("value");
  ASSERT_TRUE(text);
  EXPECT_EQ(text->size(), 5u);
}

TEST(Error, ReadsAsOneLineWithAllItsParts) {
  const Error why = invalid("x.y", "it is wrong").in("f").at("t").expects("1", "2").try_this("Do");
  EXPECT_EQ(text(why), "x.y: f: \"t\": it is wrong; expected 1, found 2. Do");
}

TEST(Error, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(text(invalid("x.y", "it is wrong")), "x.y: it is wrong");
  Error why = invalid("x.y", "wrong");
  why.found = "2";
  EXPECT_EQ(text(why), "x.y: wrong; found 2");
}

TEST(Error, ShowsUntrustedPartsWithoutControlCharacters) {
  EXPECT_EQ(text(invalid("x.y", "m").at("a\nb\x1b[31m")), "x.y: \"a\\x0ab\\x1b[31m\": m");
}

TEST(SystemError, CallsFullDisksAndMemoryExhausted) {
  for (const int number : {ENOSPC, EDQUOT, ENOMEM, EFBIG, EMFILE, ENFILE})
    EXPECT_EQ(system_error("a.b", "cannot", number).code, ErrorCode::exhausted) << number;
  EXPECT_EQ(system_error("a.b", "cannot", ENOENT).code, ErrorCode::failed);
  EXPECT_EQ(system_error("a.b", "cannot", EIO).code, ErrorCode::failed);
}

TEST(SystemError, SaysWhatTheSystemSaid) {
  EXPECT_EQ(system_error("a.b", "cannot open", ENOENT).message,
            "cannot open: No such file or directory");
}

TEST(ErrorCode, NumbersAreTheExitCodes) {
  EXPECT_EQ(static_cast<int>(ErrorCode::failed), 1);
  EXPECT_EQ(static_cast<int>(ErrorCode::usage), 2);
  EXPECT_EQ(static_cast<int>(ErrorCode::invalid_input), 3);
  EXPECT_EQ(static_cast<int>(ErrorCode::no_backend), 4);
  EXPECT_EQ(static_cast<int>(ErrorCode::mismatch), 5);
  EXPECT_EQ(static_cast<int>(ErrorCode::exhausted), 6);
  EXPECT_EQ(static_cast<int>(ErrorCode::unavailable), 7);
  EXPECT_EQ(static_cast<int>(ErrorCode::interrupted), 130);
}

}  // namespace result_test
}  // namespace fp4moe
