// Two ends of a TLS stream, and somebody between them.
#include "transport/tcp/tls_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <random>

namespace {
// How often the kernel was asked to encrypt a connection: it would never change the key.
int g_kernel_asked = 0;
}  // namespace

// In the place of the C library's.
extern "C" int setsockopt(int fd, int level, int option, const void* value,
                          socklen_t size) noexcept {
  if (level == IPPROTO_TCP && option == TCP_ULP) ++g_kernel_asked;
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, option, value, size));
}

namespace lockstep::transport::tcp {
namespace {

std::byte PatternAt(std::uint64_t at) { return static_cast<std::byte>(at * 31 + (at >> 8)); }

struct Sockets {
  Sockets() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  }
  ~Sockets() {
    for (const int end : ends) ::close(end);
  }
  std::array<int, 2> ends{};
};

// One end: sends the pattern, and checks that what it reads is the pattern's beginning.
class End {
 public:
  End(tls::Role role, int socket, std::uint64_t records_per_key)
      : context_(tls::MakeContext(role, tls::Key{7})),
        scratch_(TlsStream::kScratchBytes),
        stream_(*context_, role, socket, scratch_, records_per_key) {}

  // As far as it goes; `send` bytes in all. An error ends it.
  void Turn(std::uint64_t send) {
    if (!secured_ && !error_) {
      const auto step = stream_.Handshake();
      if (!step) return Fail(step.error());
      secured_ = *step == TlsStream::Step::kDone;
    }
    if (!secured_) return;
    for (bool blocked = false; !blocked && !error_;) {
      const auto got = stream_.Read(buffer_);
      if (!got) return Fail(got.error());
      for (std::size_t i = 0; i < got->bytes; ++i) {
        ASSERT_EQ(buffer_[i], PatternAt(read_ + i)) << "at " << read_ + i;
      }
      read_ += got->bytes;
      blocked = got->blocked;
    }
    for (bool blocked = false; !blocked && !error_ && (written_ < send || stream_.owes());) {
      const std::size_t bytes = std::min<std::uint64_t>(buffer_.size(), send - written_);
      for (std::size_t i = 0; i < bytes; ++i) buffer_[i] = PatternAt(written_ + i);
      // In two vectors, cut anywhere.
      const std::size_t cut = bytes / 3;
      const std::array<iovec, 2> vectors = {iovec{buffer_.data(), cut},
                                            iovec{buffer_.data() + cut, bytes - cut}};
      const auto put = stream_.Write(vectors);
      if (!put) return Fail(put.error());
      // Taken is taken.
      buffer_.assign(buffer_.size(), std::byte{0xEE});
      written_ += put->bytes;
      blocked = put->blocked;
    }
  }

  void SayGoodbye() { stream_.SayGoodbye(); }
  const TlsStream& stream() const { return stream_; }
  bool secured() const { return secured_; }
  bool ended() const { return error_.has_value(); }
  const Error& error() const { return *error_; }
  std::uint64_t read() const { return read_; }

 private:
  void Fail(const Error& error) {
    error_ = error;
    secured_ = false;
    stream_.SayGoodbye();
  }

  tls::ContextPtr context_;
  std::vector<std::byte> scratch_;
  TlsStream stream_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(50000);
  bool secured_ = false;
  std::optional<Error> error_;
  std::uint64_t read_ = 0;
  std::uint64_t written_ = 0;
};

TEST(TlsStreamTest, CarriesEveryByteAndChangesItsKeys) {
  const Sockets sockets;
  constexpr std::uint64_t kBytes = 12u << 20;
  End client(tls::Role::kClient, sockets.ends[0], 100);
  End server(tls::Role::kServer, sockets.ends[1], 100);
  while (client.read() < kBytes || server.read() < kBytes) {
    client.Turn(kBytes);
    server.Turn(kBytes);
    ASSERT_FALSE(client.ended()) << client.error().message;
    ASSERT_FALSE(server.ended()) << server.error().message;
  }
  EXPECT_EQ(g_kernel_asked, 0);
  // 12 MiB are at least 768 records.
  EXPECT_GE(client.stream().keys_changed(), 7u);
  EXPECT_GE(server.stream().keys_changed(), 7u);
  client.SayGoodbye();
  server.Turn(kBytes);
  ASSERT_TRUE(server.ended());
  EXPECT_EQ(server.error().message, "the other end closed the connection");
}

// Somebody on the way flips bits, drops, repeats or inserts bytes, or cuts the connection,
// anywhere. What is read is what was sent, up to an end that is an error.
TEST(TlsStreamTest, WhoeverIsOnTheWayCanEndItAndNothingElse) {
  constexpr std::uint64_t kBytes = 200000;
  std::mt19937 random(11);
  int secured = 0;
  int untouched = 0;
  for (int i = 0; i < 400; ++i) {
    const Sockets left;
    auto right = std::make_unique<Sockets>();
    End client(tls::Role::kClient, left.ends[0], TlsStream::kRecordsPerKey);
    End server(tls::Role::kServer, right->ends[1], TlsStream::kRecordsPerKey);
    // Half of them in the handshake.
    const bool to_server = random() % 2 == 0;
    const std::uint64_t at = i % 2 == 0 ? random() % 400 : random() % kBytes;
    const auto kind = random() % 5;
    bool done = false;
    bool cut = false;
    std::array<std::uint64_t, 2> passed{};
    const auto pass = [&](int from, int to, bool towards_server) {
      if (cut) return;
      std::vector<std::byte> bytes(30000);
      const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got <= 0) return;
      bytes.resize(static_cast<std::size_t>(got));
      std::uint64_t& before = passed[towards_server ? 1 : 0];
      if (!done && towards_server == to_server && at < before + bytes.size()) {
        done = true;
        const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at - before);
        if (kind == 0) *here ^= static_cast<std::byte>(1u << (random() % 8));
        if (kind == 1) bytes.erase(here);
        if (kind == 2) bytes.insert(here, *here);
        if (kind == 3) bytes.insert(here, static_cast<std::byte>(random()));
        if (kind == 4) {
          bytes.erase(here, bytes.end());
          cut = true;
        }
      }
      before += static_cast<std::uint64_t>(got);
      (void)!::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (cut) {
        ::shutdown(left.ends[1], SHUT_RDWR);
        ::shutdown(right->ends[0], SHUT_RDWR);
      }
    };
    bool was_secured = false;
    // Ends when it is over or nothing moves any more: a length that was changed makes one wait for
    // bytes that do not come, until the time for it is over.
    std::uint64_t before = 0;
    for (int idle = 0; idle < 3;) {
      client.Turn(kBytes);
      server.Turn(kBytes);
      was_secured = was_secured || (client.secured() && server.secured());
      pass(left.ends[1], right->ends[0], true);
      pass(right->ends[0], left.ends[1], false);
      const std::uint64_t now = passed[0] + passed[1] + client.read() + server.read();
      idle = now == before ? idle + 1 : 0;
      before = now;
    }
    secured += was_secured ? 1 : 0;
    const bool whole = client.read() == kBytes && server.read() == kBytes;
    untouched += whole ? 1 : 0;
    EXPECT_FALSE(done && whole && !client.ended() && !server.ended()) << "nobody saw it: " << i;
  }
  EXPECT_GT(secured, 100);
  EXPECT_LT(untouched, 40);
}

}  // namespace
}  // namespace lockstep::transport::tcp
