#include "transport/sealed_address.h"

#include <gtest/gtest.h>

namespace lockstep::transport {
namespace {

std::vector<std::byte> Key(int value) { return std::vector<std::byte>(32, std::byte(value)); }

std::vector<std::byte> SomeAddress(std::size_t bytes) {
  std::vector<std::byte> address(bytes);
  for (std::size_t i = 0; i < bytes; ++i) address[i] = static_cast<std::byte>(i * 37);
  return address;
}

TEST(SealedAddress, OpensWithItsKeyAlone) {
  for (const std::size_t bytes : {1u, 2u, 3u, 200u, 201u, 202u, unsigned{kMaxSealedBytes}}) {
    const auto address = SomeAddress(bytes);
    const std::string sealed = SealAddress(Key(1), address);
    EXPECT_EQ(sealed.find_first_of(" \n"), std::string::npos);
    EXPECT_LE(sealed.size(), 16384u);  // what the control plane takes for an address
    const auto opened = OpenAddress(Key(1), sealed);
    ASSERT_TRUE(opened.ok()) << bytes;
    EXPECT_EQ(*opened, address);
    const auto other = OpenAddress(Key(2), sealed);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().code, ErrorCode::kRefused);
    EXPECT_NE(other.error().message.find("key"), std::string::npos);
  }
}

TEST(SealedAddress, NoOtherAddressIsOpened) {
  const std::string sealed = SealAddress(Key(1), SomeAddress(100));
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    for (const char other : {'A', '/', '=', ' ', '\0', '\x80'}) {
      if (sealed[at] == other) continue;
      std::string changed = sealed;
      changed[at] = other;
      const auto opened = OpenAddress(Key(1), changed);
      // Some characters stand for the same bits, or for none.
      EXPECT_TRUE(!opened.ok() || *opened == SomeAddress(100)) << at;
    }
  }
}

TEST(SealedAddress, WhatIsNoneIsAnError) {
  const std::string sealed = SealAddress(Key(1), SomeAddress(100));
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_FALSE(OpenAddress(Key(1), sealed.substr(0, size)).ok()) << size;
  }
  for (const char* text : {"127.0.0.1:4711", "====", "AAAA", "A===", "nonsense"}) {
    EXPECT_FALSE(OpenAddress(Key(1), text).ok()) << text;
  }
  EXPECT_FALSE(OpenAddress(Key(1), std::string(4 * kMaxSealedBytes, 'A')).ok());
}

}  // namespace
}  // namespace lockstep::transport
