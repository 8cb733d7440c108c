// The HTTP interface's sockets: connections that are slow, many, or there when the page goes.
#include "coordinator/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <string>
#include <vector>

namespace lockstep::coordinator {
namespace {

using boost::asio::ip::tcp;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

constexpr const char* kGetStatus = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";

class StatusPageTest : public ::testing::Test {
 protected:
  StatusPageTest() {
    HttpRequests::Handlers handlers;
    handlers.status = [this] {
      ++asked_;
      if (on_status_) on_status_();
      return std::string("{\"phase\": \"training\"}\n");
    };
    handlers.ask = [](const Event&) -> Result<std::string> { return std::string("done"); };
    auto made = StatusPage::Listen(io_, {"127.0.0.1", 0}, std::nullopt, std::move(handlers));
    EXPECT_TRUE(made.ok());
    page_ = *std::move(made);
    address_ = page_->address();
  }

  // The kernel connects it; the page may not have accepted it yet.
  tcp::socket Connected() {
    tcp::socket socket(io_);
    socket.connect({boost::asio::ip::make_address(address_.host), address_.port});
    return socket;
  }
  static void Say(tcp::socket& socket, const std::string& text) {
    boost::system::error_code ignored;
    boost::asio::write(socket, boost::asio::buffer(text), ignored);
  }

  // All that comes until the other end closes its side, which must happen.
  std::string ReadToEnd(tcp::socket& socket) {
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    std::string text;
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    for (;;) {
      char bytes[4096];
      boost::system::error_code error;
      const std::size_t got = socket.read_some(boost::asio::buffer(bytes), error);
      text.append(bytes, got);
      if (error && error != boost::asio::error::would_block) return text;
      if (std::chrono::steady_clock::now() > give_up) {
        ADD_FAILURE() << "no end came";
        return text;
      }
      io_.restart();
      if (error) io_.run_one_for(50ms);
    }
  }

  boost::asio::io_context io_;
  std::unique_ptr<StatusPage> page_;
  HostPort address_;
  int asked_ = 0;
  std::function<void()> on_status_;
};

TEST_F(StatusPageTest, AnswersAndEnds) {
  tcp::socket client = Connected();
  Say(client, kGetStatus);
  const std::string answer = ReadToEnd(client);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\"training\""));
}

// A connection may be accepted, and the news of it on its way, when the job ends.
TEST_F(StatusPageTest, MayGoWhileConnectionsCome) {
  for (int turns = 0; turns < 12; ++turns) {
    HttpRequests::Handlers handlers;
    bool gone = false;
    handlers.status = [&] {
      EXPECT_FALSE(gone);
      return std::string("{}");
    };
    boost::asio::io_context io;
    auto page = StatusPage::Listen(io, {"127.0.0.1", 0}, std::nullopt, std::move(handlers));
    ASSERT_TRUE(page.ok());
    address_ = (*page)->address();
    std::vector<tcp::socket> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(Connected());
      Say(clients.back(), kGetStatus);
    }
    for (int i = 0; i < turns; ++i) io.poll_one();
    *page = nullptr;
    gone = true;
    io.restart();
    io.poll();
  }
}

TEST_F(StatusPageTest, ARequestMayComeInPieces) {
  tcp::socket client = Connected();
  Say(client, "GET /sta");
  io_.restart();
  io_.poll();
  Say(client, "tus HTTP/1.1\r\n");
  io_.restart();
  io_.poll();
  Say(client, "\r\n");
  EXPECT_THAT(ReadToEnd(client), HasSubstr("\"training\""));
}

TEST_F(StatusPageTest, MayGoWhileItIsAsked) {
  on_status_ = [this] { page_ = nullptr; };
  tcp::socket asking = Connected();
  tcp::socket silent = Connected();
  Say(asking, kGetStatus);
  EXPECT_THAT(ReadToEnd(asking), HasSubstr("\"training\"")) << "an answer is not lost";
  EXPECT_EQ(ReadToEnd(silent), "");
  EXPECT_EQ(asked_, 1);
}

TEST_F(StatusPageTest, SlowRequestsKeepNobodyOut) {
  std::vector<tcp::socket> dripping;
  for (int i = 0; i < 200; ++i) {
    dripping.push_back(Connected());
    if (i % 2 == 0) Say(dripping.back(), "GET /sta");
  }
  tcp::socket client = Connected();
  Say(client, kGetStatus);
  EXPECT_THAT(ReadToEnd(client), HasSubstr("\"training\""));
  // The oldest had to go, the last ones are still there.
  EXPECT_EQ(ReadToEnd(dripping.front()), "");
  Say(dripping[198], "tus HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadToEnd(dripping[198]), HasSubstr("\"training\""));
}

TEST_F(StatusPageTest, WithoutDescriptorsItRests) {
#ifdef LOCKSTEP_SANITIZED
  GTEST_SKIP() << "the sanitizer itself takes descriptors, to look at objects";
#endif
  std::vector<tcp::socket> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(io_);
    clients.back().open(tcp::v4());
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  const int next = ::dup(0);
  ::close(next);
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (tcp::socket& client : clients) {
    client.connect({boost::asio::ip::make_address(address_.host), address_.port});
    Say(client, kGetStatus);
  }
  io_.restart();
  const std::size_t handlers = io_.run_for(300ms);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(handlers, 50u) << "it spins";
  for (tcp::socket& client : clients) EXPECT_THAT(ReadToEnd(client), HasSubstr("\"training\""));
}

TEST_F(StatusPageTest, AnAnswerToALongBodyArrives) {
  tcp::socket client = Connected();
  const std::string body(3 << 20, 'x');
  Say(client, "POST /policy HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) +
                  "\r\n\r\n" + body.substr(0, 200000));
  EXPECT_THAT(ReadToEnd(client), HasSubstr("the body is too long"));
}

TEST_F(StatusPageTest, StrangeNamesAreRefused) {
  tcp::socket client = Connected();
  Say(client, "GET /status HTTP/1.1\r\nHost: rebound.example:8080\r\n\r\n");
  EXPECT_THAT(ReadToEnd(client), StartsWith("HTTP/1.1 421 "));
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace lockstep::coordinator
