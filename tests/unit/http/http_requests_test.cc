#include "coordinator/http/requests.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <vector>

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Time kNow{1000s};
constexpr const char* kJob = "0123456789abcdef";

std::string Base64Sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  unsigned char base64[64] = {};
  EVP_EncodeBlock(base64, digest, sizeof digest);
  return reinterpret_cast<const char*>(base64);
}

HttpProof::Key KeyOf(unsigned char byte) {
  HttpProof::Key key{};
  key.fill(byte);
  return key;
}

class HttpRequestsTest : public ::testing::Test {
 protected:
  HttpRequests Make(bool with_secret) {
    HttpRequests::Handlers handlers;
    handlers.status = [] { return "{\"phase\": \"training\"}\n"; };
    handlers.metrics = [] { return "lockstep_round 7\n"; };
    handlers.rounds = [](std::int64_t after) { return fmt::format("[{}]", after); };
    handlers.ask = [this](Event event) -> Result<std::string> {
      events_.push_back(std::move(event));
      if (refuse_) return Error{ErrorCode::kInvalid, "no such \"policy\""};
      return std::string("done");
    };
    return {std::move(handlers),
            with_secret ? std::optional<HttpProof>(HttpProof(KeyOf(7), kJob)) : std::nullopt,
            {"node7.cluster.example", "node7"}};
  }
  static HttpRequest Post(const std::string& target, const std::string& body) {
    HttpRequest request;
    request.method = "POST";
    request.target = target;
    request.body = body;
    return request;
  }
  static HttpRequest Get(const std::string& target) {
    HttpRequest request;
    request.method = "GET";
    request.target = target;
    return request;
  }
  static std::string NonceOf(HttpRequests& requests, Time now) {
    const HttpAnswer answer = requests.Answer(now, Get("/nonce"));
    EXPECT_EQ(answer.status, 200u);
    return answer.body.substr(answer.body.find(':') + 2, 64);
  }
  static HttpRequest Proven(HttpRequest request, const std::string& nonce, unsigned char key = 7,
                            std::string_view job = kJob) {
    request.nonce = nonce;
    request.proof = ProofOf(KeyOf(key), job, nonce, request.method, request.target, request.body);
    return request;
  }

  std::vector<Event> events_;
  bool refuse_ = false;
};

TEST_F(HttpRequestsTest, ChangesBecomeEvents) {
  HttpRequests requests = Make(false);
  EXPECT_EQ(requests.Answer(kNow, Get("/status")).body, "{\"phase\": \"training\"}\n");
  EXPECT_EQ(requests.Answer(kNow, Post("/slowdown", "worker=1,factor=2\n")).status, 200u);
  EXPECT_EQ(std::get<SlowdownRequested>(events_.at(0)).lines, "worker=1,factor=2\n");
  EXPECT_EQ(requests.Answer(kNow, Post("/policy", " backup+none\n")).body,
            "{\"ok\":true,\"message\":\"done\"}\n");
  EXPECT_EQ(std::get<PolicyRequested>(events_.at(1)).name, "backup+none");
  EXPECT_EQ(requests.Answer(kNow, Post("/drain", "3\n")).status, 200u);
  EXPECT_EQ(std::get<DrainRequested>(events_.at(2)).worker, WorkerId(3));
}

TEST_F(HttpRequestsTest, WhoWatchesIsServed) {
  HttpRequests requests = Make(true);
  EXPECT_EQ(requests.Answer(kNow, Get("/metrics")).body, "lockstep_round 7\n");
  EXPECT_THAT(requests.Answer(kNow, Get("/metrics")).type, HasSubstr("text/plain"));
  EXPECT_EQ(requests.Answer(kNow, Get("/rounds")).body, "[-1]");
  EXPECT_EQ(requests.Answer(kNow, Get("/rounds?after=17")).body, "[17]");
  for (const char* wrong : {"/rounds?after=", "/rounds?after=x", "/rounds?after=1x", "/rounds?x=1",
                            "/rounds?after=99999999999999999999", "/rounds?"}) {
    EXPECT_EQ(requests.Answer(kNow, Get(wrong)).status, 400u) << wrong;
  }
  EXPECT_EQ(requests.Answer(kNow, Get("/roundsx")).status, 404u);
  const HttpAnswer page = requests.Answer(kNow, Get("/"));
  EXPECT_THAT(page.type, HasSubstr("text/html"));
  EXPECT_THAT(page.security_policy, HasSubstr("default-src 'none'"));
  // Its own script and no other one, whatever somebody might get into the page.
  const std::size_t from = page.body.find("<script>") + 8;
  const std::string script = page.body.substr(from, page.body.find("</script>") - from);
  EXPECT_THAT(page.security_policy, HasSubstr("script-src 'sha256-" + Base64Sha256(script) + "';"));
  EXPECT_EQ(page.body.find("<script", from), std::string::npos);
  // It asks nobody else for anything, and makes no markup of what workers say of themselves.
  for (const char* never : {"src=", "@import", "innerHTML", "insertAdjacentHTML", "document.write"})
    EXPECT_EQ(page.body.find(never), std::string::npos) << never;
  for (const char* target : {"/", "/metrics", "/rounds"})
    EXPECT_EQ(requests.Answer(kNow, Post(target, "")).status, 405u) << target;
}

TEST_F(HttpRequestsTest, WhatIsWrongIsSaid) {
  HttpRequests requests = Make(false);
  EXPECT_EQ(requests.Answer(kNow, Post("/drain", "three")).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Post("/drain", "")).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Post("/drain", "1 2")).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Post("/policy", "")).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Post("/policy", std::string(101, 'x'))).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Post("/policy", "a\x01")).status, 400u);
  EXPECT_EQ(requests.Answer(kNow, Get("/policy")).status, 405u);
  EXPECT_EQ(requests.Answer(kNow, Post("/status", "")).status, 405u);
  EXPECT_EQ(requests.Answer(kNow, Get("/elsewhere")).status, 404u);
  EXPECT_EQ(requests.Answer(kNow, Get("/nonce")).status, 404u) << "there is nothing to prove";
  EXPECT_TRUE(events_.empty());
  refuse_ = true;
  const HttpAnswer refused = requests.Answer(kNow, Post("/policy", "full"));
  EXPECT_EQ(refused.status, 400u);
  EXPECT_EQ(refused.body, "{\"error\":\"no such \\\"policy\\\"\"}\n");
}

TEST_F(HttpRequestsTest, OfWebPagesOnlyItsOwnMakesChanges) {
  for (const bool with_secret : {false, true}) {
    HttpRequests requests = Make(with_secret);
    const auto status = [&](const std::string& origin, const std::string& host) {
      HttpRequest page = Post("/policy", "full");
      if (with_secret) page = Proven(page, NonceOf(requests, kNow));
      page.origin = origin;
      page.host = host;
      return requests.Answer(kNow, page).status;
    };
    events_.clear();
    for (const char* host : {"127.0.0.1:8080", "localhost:8080", "[::1]:8080", "node7", ""}) {
      for (const char* origin :
           {"http://evil.example", "http://127.0.0.1:8081", "http://127.0.0.1", "null", "",
            "127.0.0.1:8080", "http://", "https://", "ftp://127.0.0.1:8080", "file://",
            "http://127.0.0.1:8080.evil.example", "http://node7.evil.example"}) {
        EXPECT_EQ(status(origin, host), 403u) << origin << " at " << host;
      }
    }
    // Whose name stands for this host's address may call itself anything.
    EXPECT_EQ(status("http://evil.example", "evil.example"), 421u);
    EXPECT_TRUE(events_.empty());
    EXPECT_EQ(status("http://127.0.0.1:8080", "127.0.0.1:8080"), 200u);
    EXPECT_EQ(status("http://localhost:9000", "LOCALHOST:9000"), 200u);
    EXPECT_EQ(status("http://[::1]:8080", "[::1]:8080"), 200u);
    EXPECT_EQ(status("https://node7", "node7"), 200u) << "behind a proxy";
    EXPECT_EQ(events_.size(), 4u);
  }
  // It is no more than a page: where there is a secret it proves it.
  HttpRequests requests = Make(true);
  HttpRequest page = Post("/policy", "full");
  page.origin = "http://127.0.0.1:8080";
  page.host = "127.0.0.1:8080";
  EXPECT_EQ(requests.Answer(kNow, page).status, 401u);
}

TEST_F(HttpRequestsTest, OnlyThisHostsNamesAreAnswered) {
  HttpRequests requests = Make(false);
  HttpRequest request = Get("/status");
  for (const char* host : {"", "localhost", "LOCALHOST:8080", "127.0.0.1:8080", "10.1.2.3", "[::1]",
                           "[fe80::1]:8080", "node7:8080", "Node7.cluster.example"}) {
    request.host = host;
    EXPECT_EQ(requests.Answer(kNow, request).status, 200u) << host;
  }
  for (const char* host : {"rebound.example", "rebound.example:8080", "localhost.rebound.example",
                           "node7.rebound.example", "127.0.0.1.rebound.example", "[", "[::1", ":",
                           "[rebound.example]:8080"}) {
    request.host = host;
    EXPECT_EQ(requests.Answer(kNow, request).status, 421u) << host;
  }
}

TEST_F(HttpRequestsTest, WithASecretChangesProveIt) {
  HttpRequests requests = Make(true);
  EXPECT_EQ(requests.Answer(kNow, Get("/status")).status, 200u);
  EXPECT_EQ(requests.Answer(kNow, Post("/policy", "full")).status, 401u);
  const HttpRequest good = Proven(Post("/policy", "full"), NonceOf(requests, kNow));
  HttpRequest other = good;
  other.body = "backup";
  EXPECT_THAT(requests.Answer(kNow, other).body, HasSubstr("wrong secret"));
  other = good;
  other.target = "/drain";
  EXPECT_EQ(requests.Answer(kNow, other).status, 401u);
  EXPECT_EQ(requests.Answer(kNow, Proven(Post("/policy", "full"), good.nonce, 8)).status, 401u);
  // Signed for another job with the same secret, by a nonce that somebody has handed on.
  other = Proven(Post("/policy", "full"), good.nonce, 7, "fedcba9876543210");
  EXPECT_THAT(requests.Answer(kNow, other).body, HasSubstr("meant for another job"));
  EXPECT_THAT(requests.Answer(kNow, Get("/nonce")).body,
              HasSubstr("\"job_id\":\"0123456789abcdef\""));
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(requests.Answer(kNow, good).status, 200u);
  EXPECT_THAT(requests.Answer(kNow, good).body, HasSubstr("used already"));
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(HttpRequestsTest, NoncesAreOursAndGrowOld) {
  HttpRequests requests = Make(true);
  HttpRequests another = Make(true);
  const auto answer = [&](const std::string& nonce, Time at) {
    return requests.Answer(at, Proven(Post("/policy", "full"), nonce)).body;
  };
  EXPECT_THAT(answer(NonceOf(another, kNow), kNow), HasSubstr("none of this coordinator"));
  EXPECT_THAT(answer("", kNow), HasSubstr("need a proof"));
  EXPECT_THAT(answer(std::string(64, '0'), kNow), HasSubstr("none of this coordinator"));
  const std::string nonce = NonceOf(requests, kNow);
  EXPECT_NE(nonce, NonceOf(requests, kNow));
  EXPECT_THAT(answer(nonce, kNow + HttpProof::kNonceLife + 1ns), HasSubstr("too old"));
  EXPECT_THAT(answer(nonce, kNow + HttpProof::kNonceLife - 1ns), HasSubstr("ok"));
  EXPECT_THAT(answer(nonce, kNow + HttpProof::kNonceLife - 1ns), HasSubstr("used already"));
  EXPECT_THAT(answer(nonce, kNow + HttpProof::kNonceLife), HasSubstr("too old"))
      << "forgotten as used just when it is too old";
}

// A standby has nothing to show but what it is, and one thing to do.
TEST(StandbyRequests, ItTakesOverAndNothingElse) {
  int told = 0;
  HttpRequests::Handlers handlers;
  handlers.status = [] { return "{\"standby\": {}}\n"; };
  handlers.take_over = [&]() -> Result<std::string> {
    ++told;
    return Error{ErrorCode::kInvalid, "it is not complete"};
  };
  HttpRequests requests(std::move(handlers), HttpProof(KeyOf(7), kJob), {});
  const auto ask = [](const std::string& method, const std::string& target) {
    HttpRequest request;
    request.method = method;
    request.target = target;
    return request;
  };
  EXPECT_EQ(requests.Answer(kNow, ask("GET", "/status")).body, "{\"standby\": {}}\n");
  for (const char* target : {"/", "/metrics", "/rounds", "/policy", "/drain", "/slowdown"}) {
    EXPECT_EQ(requests.Answer(kNow, ask("POST", target)).status, 404u) << target;
    EXPECT_EQ(requests.Answer(kNow, ask("GET", target)).status, 404u) << target;
  }
  EXPECT_EQ(requests.Answer(kNow, ask("GET", "/takeover")).status, 405u);
  HttpRequest request = ask("POST", "/takeover");
  EXPECT_EQ(requests.Answer(kNow, request).status, 401u);
  EXPECT_EQ(told, 0);
  const std::string nonce = requests.Answer(kNow, ask("GET", "/nonce")).body;
  request.nonce = nonce.substr(nonce.find(':') + 2, 64);
  request.proof = ProofOf(KeyOf(7), kJob, request.nonce, "POST", "/takeover", "");
  EXPECT_THAT(requests.Answer(kNow, request).body, HasSubstr("it is not complete"));
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace lockstep::coordinator
