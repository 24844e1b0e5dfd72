#include "fp4moe/tensor/buffer.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <utility>

#include <gtest/gtest.h>
#include <unistd.h>

namespace fp4moe::tensor {
namespace buffer_test {

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

std::uintptr_t address(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(Buffer, IsZeroAlignedAndOfTheSizeAskedFor) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{65},
                                 Buffer::kHugePage - 1, Buffer::kHugePage, Buffer::kHugePage + 1}) {
    Result<Buffer> buffer = Buffer::allocate(size);
    ASSERT_TRUE(buffer) << size;
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(address(*buffer) % Buffer::kAlignment, 0u) << size;
    EXPECT_TRUE(is_zero(buffer->bytes())) << size;
    buffer->bytes().back() = std::byte{1};
  }
}

TEST(Buffer, LargeOnesBeginAtAHugePage) {
  for (int i = 0; i < 8; ++i) {
    const Result<Buffer> buffer = Buffer::allocate(Buffer::kHugePage + 4096);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(address(*buffer) % Buffer::kHugePage, 0u);
  }
}

TEST(Buffer, OfNoBytesIsEmpty) {
  const Result<Buffer> buffer = Buffer::allocate(0);
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(buffer->bytes().empty());
}

TEST(Buffer, UntouchedPagesAreNotResident) {
  constexpr std::size_t kSize = std::size_t{256} << 20;
  const std::size_t before = resident_bytes();
  const Result<Buffer> buffer = Buffer::allocate(kSize);
  ASSERT_TRUE(buffer);
  EXPECT_LT(resident_bytes(), before + kSize / 4);
}

TEST(Buffer, RefusesAbsurdSizes) {
  for (const std::size_t size : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, std::size_t{1} << 60}) {
    const Result<Buffer> buffer = Buffer::allocate(size);
    ASSERT_FALSE(buffer) << size;
    EXPECT_EQ(buffer.why().code, ErrorCode::exhausted);
    EXPECT_EQ(buffer.why().id, "memory.exhausted");
  }
}

TEST(Buffer, MovesItsMemory) {
  for (const std::size_t size : {std::size_t{100}, Buffer::kHugePage}) {
    Buffer first = *Buffer::allocate(size);
    first.bytes()[7] = std::byte{42};
    const std::byte* data = first.data();
    Buffer second = std::move(first);
    EXPECT_EQ(second.data(), data);
    Buffer third = *Buffer::allocate(10);
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.size(), size);
    EXPECT_EQ(third.bytes()[7], std::byte{42});
  }
}

TEST(Buffer, IsSeenAsElements) {
  Buffer buffer = *Buffer::allocate(10);
  EXPECT_EQ(buffer.as<std::uint32_t>().size(), 2u);
  buffer.as<std::uint32_t>()[1] = 0x01020304;
  EXPECT_EQ(buffer.bytes()[4], std::byte{4});
  EXPECT_EQ(std::as_const(buffer).as<std::uint16_t>()[2], 0x0304);
}

}  // namespace buffer_test
}  // namespace fp4moe::tensor
