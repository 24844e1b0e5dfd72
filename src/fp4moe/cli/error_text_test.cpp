#include "fp4moe/cli/error_text.hpp"

#include <gtest/gtest.h>

#include "fp4moe/cli/error_rows.hpp"

namespace fp4moe::cli {
namespace error_text_test {

const Error kWhole =
    invalid("x.y", "it is wrong").in("f").at("t").expects("one of a, b", "c").try_this("take a");

TEST(ErrorText, SaysWhatWhatWasFoundAndWhatToDo) {
  EXPECT_EQ(error_text(kWhole, "lint", 0),
            "fp4moe lint: f: \"t\": it is wrong [x.y]\n"
            "  found: c; expected: one of a, b\n"
            "  do:    take a\n");
}

TEST(ErrorText, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(error_text(usage("x.y", "no"), "", 0), "fp4moe: no [x.y]\n");
  EXPECT_EQ(error_text(usage("x.y", "no").expects("", "z"), "run", 0),
            "fp4moe run: no [x.y]\n  found: z\n");
}

TEST(ErrorText, AlwaysSaysWhatToDo) {
  EXPECT_EQ(error_text(invalid("scale.nan", "a block scale is NaN"), "lint", 0),
            "fp4moe lint: a block scale is NaN [scale.nan]\n  do:    " + usual_remedy("scale.nan") +
                "\n");
  EXPECT_EQ(usual_remedy("quantize.rule"), "Take one of the list (rules).");
  EXPECT_EQ(usual_remedy("file.exists"),
            "Choose another name, remove the file, or replace it with --force.");
  EXPECT_EQ(usual_remedy("x.y"), "");
  for (const ErrorRow& row : error_rows()) {
    EXPECT_FALSE(row.remedy.empty()) << row.id;
  }
}

TEST(ErrorText, AFindingKeepsItsMargin) {
  EXPECT_EQ(finding_text(kWhole, 0, 2),
            "f: \"t\": it is wrong [x.y]\n"
            "    found: c; expected: one of a, b\n"
            "    do:    take a\n");
}

TEST(ErrorText, FitsTheTerminalAndCutsNoList) {
  std::string list = "one of";
  for (int i = 0; i < 100; ++i) list += " device-" + std::to_string(i) + ",";
  const std::string shown = error_text(usage("x.y", "no").expects(list, "xeon"), "explain", 60);
  EXPECT_NE(shown.find("device-99,"), std::string::npos);
  std::size_t begin = 0;
  for (std::size_t end; (end = shown.find('\n', begin)) != shown.npos; begin = end + 1)
    EXPECT_LE(end - begin, 60u) << shown.substr(begin, end - begin);
}

TEST(ErrorText, ShowsNoControlCharacters) {
  const std::string shown = error_text(usage("x.y", "a\x1b[31m").in("b\nc"), "run", 0);
  EXPECT_EQ(shown, "fp4moe run: b\\x0ac: a\\x1b[31m [x.y]\n");
}

}  // namespace error_text_test
}  // namespace fp4moe::cli
