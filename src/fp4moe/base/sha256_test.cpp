#include "fp4moe/base/sha256.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe {
namespace sha256_test {

std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

TEST(Sha256, AgreesWithThePublishedVectors) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                   "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around the ends of blocks, where the padding changes its form.
TEST(Sha256, AgreesAtEveryEndOfABlock) {
  EXPECT_EQ(digest(std::string(55, 'x')),
            "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(digest(std::string(56, 'x')),
            "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(digest(std::string(63, 'x')),
            "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  EXPECT_EQ(digest(std::string(64, 'x')),
            "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  EXPECT_EQ(digest(std::string(65, 'x')),
            "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
}

TEST(Sha256, TakesAMessageInAnyPieces) {
  const std::string text(300, 'q');
  for (const std::size_t step : {1u, 7u, 63u, 64u, 65u, 128u, 299u}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += step)
      hash.add(std::as_bytes(std::span(std::string_view(text).substr(at, step))));
    Sha256 whole;
    whole.add(std::as_bytes(std::span(text)));
    EXPECT_EQ(hash.finish(), whole.finish()) << step;
  }
}

TEST(Sha256, BeginsANewMessageAfterTheEndOfOne) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(std::string_view("left over"))));
  (void)hash.finish();
  EXPECT_EQ(hash.finish(), Sha256().finish());
}

}  // namespace sha256_test
}  // namespace fp4moe
