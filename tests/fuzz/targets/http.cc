// Requests to the HTTP interface, with a proof and without, from anybody.
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/slowdown.h"
#include "coordinator/http/requests.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

constexpr const char* kMethods[] = {"GET", "POST", "PUT", "HEAD"};
constexpr const char* kTargets[] = {"/status", "/nonce",   "/slowdown", "/policy",        "/drain",
                                    "/",       "/metrics", "/rounds",   "/rounds?after=7"};

coordinator::HttpRequests MakeRequests(bool with_proof, std::size_t* asked) {
  std::optional<coordinator::HttpProof> proof;
  if (with_proof) proof.emplace(coordinator::HttpProof::Key{}, "a job");
  return coordinator::HttpRequests(
      {.status = [] { return std::string("{}"); },
       .metrics = [] { return std::string("lockstep_round 1\n"); },
       .rounds = [](std::int64_t after) { return "[" + std::to_string(after) + "]"; },
       .ask = [asked](coordinator::Event event) -> Result<std::string> {
         ++*asked;
         if (const auto* slow = std::get_if<coordinator::SlowdownRequested>(&event)) {
           if (auto specs = ParseSlowdownLines(slow->lines); !specs) return specs.error();
         }
         return std::string("done");
       }},
      std::move(proof), {"node7"});
}

}  // namespace

// A byte of flags, one of method and target; then nonce, proof, other target and body as chunks.
bool Run(Bytes bytes) {
  Input input(bytes);
  const std::uint8_t flags = input.Byte();
  const std::uint8_t what = input.Byte();
  std::size_t asked = 0;
  const bool with_proof = (flags & 1) != 0;
  coordinator::HttpRequests requests = MakeRequests(with_proof, &asked);
  coordinator::HttpRequest request;
  request.method = kMethods[what & 3];
  request.nonce = Text(input.TakeChunk());
  request.proof = Text(input.TakeChunk());
  const std::string_view other = Text(input.TakeChunk());
  request.target = other.empty() ? kTargets[(what >> 2) % std::size(kTargets)] : other;
  request.body = Text(input.TakeRest());
  const bool other_page = (flags & 2) != 0;
  const bool own_page = !other_page && (flags & 16) != 0;
  if (other_page) request.origin = "http://127.0.0.1:9090";
  if (own_page) request.origin = "http://127.0.0.1:8080";
  if (other_page || own_page) request.host = "127.0.0.1:8080";
  const bool strange_name = (flags & 8) != 0;
  if (strange_name) request.host = "node7.rebound.example:8080";
  const Time now{std::chrono::seconds(100)};
  const bool honest = (flags & 4) != 0;
  if (honest) {
    coordinator::HttpRequest ask;
    ask.method = "GET";
    ask.target = "/nonce";
    const auto nonce = nlohmann::json::parse(requests.Answer(now, ask).body);
    if (nonce.contains("nonce")) {
      request.nonce = nonce["nonce"].get<std::string>();
      request.proof = coordinator::ProofOf(coordinator::HttpProof::Key{}, "a job", request.nonce,
                                           request.method, request.target, request.body);
    }
  }
  const coordinator::HttpAnswer answer = requests.Answer(now, request);
  LOCKSTEP_CHECK(answer.type != "application/json" || nlohmann::json::accept(answer.body), "{}",
                 answer.body);
  LOCKSTEP_CHECK(answer.status >= 200 && answer.status < 600);
  LOCKSTEP_CHECK(asked == 0 || !with_proof || honest, "a change without a proof");
  LOCKSTEP_CHECK(asked == 0 || !other_page, "a change by another page");
  LOCKSTEP_CHECK(answer.status == 421 || !strange_name, "an answer by a name of another host");
  if (with_proof && honest && asked > 0) {
    requests.Answer(now, request);
    LOCKSTEP_CHECK(asked == 1, "a nonce was good twice");
  }
  return answer.status == 200;
}

std::vector<std::string> Seeds() {
  const auto request = [](char flags, char method, char target, const std::string& body) {
    return std::string{flags, static_cast<char>(method | target << 2)} + Chunk("") + Chunk("") +
           Chunk("") + body;
  };
  return {request(0, 0, 0, ""),
          request(1, 0, 1, ""),
          request(5, 1, 2, "worker=1,factor=2\n"),
          request(5, 1, 3, "backup+none"),
          request(4, 1, 4, "3"),
          request(16, 1, 3, "full"),
          request(0, 0, 5, ""),
          request(0, 0, 6, ""),
          request(0, 0, 8, "")};
}

}  // namespace lockstep::fuzz
