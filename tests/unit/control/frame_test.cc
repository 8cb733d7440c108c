#include "transport/control/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/property_check.h"

namespace lockstep::transport::control {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Frame, LengthComesFirstMostSignificantByteFirst) {
  EXPECT_EQ(FrameOf("abc"), std::string("\0\0\0\3abc", 7));
  EXPECT_EQ(FrameOf(std::string(0x10203, 'x')).substr(0, 4), std::string("\0\1\2\3", 4));
}

TEST(Frame, AnyCutOfTheStreamGivesTheSameFrames) {
  ExpectHolds("frames in, frames out", [] {
    const auto payloads = *rc::gen::container<std::vector<std::string>>(
        rc::gen::nonEmpty(rc::gen::arbitrary<std::string>()));
    std::string stream;
    for (const auto& payload : payloads) stream += FrameOf(payload);
    FrameReader reader(1 << 20);
    std::vector<std::string> out;
    std::size_t at = 0;
    while (at < stream.size()) {
      const std::size_t size = std::min(*rc::gen::inRange<std::size_t>(1, 40), stream.size() - at);
      reader.Append(BytesOf(std::string_view(stream).substr(at, size)));
      at += size;
      while (true) {
        const auto frame = reader.Next();
        RC_ASSERT(frame.ok());
        if (!*frame) break;
        out.emplace_back(reinterpret_cast<const char*>((**frame).data()), (**frame).size());
      }
    }
    RC_ASSERT(out == payloads);
  });
}

TEST(Frame, LengthsThatAreNotAllowedAreSeenAtOnce) {
  const auto error = [](std::string_view bytes, std::size_t most) {
    FrameReader reader(most);
    reader.Append(BytesOf(bytes));
    const auto frame = reader.Next();
    return frame.ok() ? "" : frame.error().message;
  };
  EXPECT_THAT(error(std::string_view("\0\0\0\x0b", 4), 10), HasSubstr("11 bytes"));
  EXPECT_EQ(error(std::string_view("\0\0\0\x0a", 4), 10), "");
  EXPECT_THAT(error("\xff\xff\xff\xff", 8u << 20), HasSubstr("4294967295 bytes"));
  EXPECT_THAT(error(std::string_view("\0\0\0\0", 4), 10), HasSubstr("0 bytes"));
  EXPECT_THAT(error("GET / HTTP/1.1\r\n", 8u << 20), HasSubstr("begins with \"GET \""));
  EXPECT_THAT(error("HTTP/1.1 400 Bad Request\r\n", 8u << 20), HasSubstr("a web server's"));
  EXPECT_EQ(error(std::string_view("\0\0", 2), 10), "");
}

}  // namespace
}  // namespace lockstep::transport::control
