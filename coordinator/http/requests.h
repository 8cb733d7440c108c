// Answers HTTP requests: GET / (the live page), /status, /rounds, /metrics and /nonce, and the
// changes POST /slowdown, POST /policy and POST /drain. A standby answers GET /status and POST
// /takeover. No sockets. docs/reference/metrics.md describes it for users.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "coordinator/http/proof.h"
#include "coordinator/job/step_io.h"

namespace lockstep::coordinator {

struct HttpRequest {
  std::string method;
  std::string target;
  std::string body;
  std::string host;                   // header Host
  std::string nonce;                  // header Lockstep-Nonce
  std::string proof;                  // header Lockstep-Proof
  std::optional<std::string> origin;  // header Origin: of the web page that asks
};

struct HttpAnswer {
  unsigned status = 200;
  std::string body;
  std::string type = "application/json";
  std::string security_policy = {};  // of a page
};

class HttpRequests {
 public:
  struct Handlers {
    std::function<std::string()> status;   // JSON
    std::function<std::string()> metrics;  // coordinator/record/metrics.h
    // JSON: closed rounds after that one; coordinator/record/recent_rounds.h.
    std::function<std::string(std::int64_t after)> rounds;
    std::function<Result<std::string>(Event event)> ask;  // a change
    // Of a standby, which has this, `status` and nothing else: POST /takeover.
    std::function<Result<std::string>()> take_over = nullptr;
  };
  // With `proof` every change has to prove the secret. `host_names`: of this host, beside
  // "localhost" and its addresses. A request for any other name is refused: it may come from a
  // browser whose page has let its own name stand for this host's address (DNS rebinding).
  HttpRequests(Handlers handlers, std::optional<HttpProof> proof,
               std::vector<std::string> host_names)
      : handlers_(std::move(handlers)),
        proof_(std::move(proof)),
        host_names_(std::move(host_names)) {}

  HttpAnswer Answer(Time now, const HttpRequest& request);

 private:
  HttpAnswer Rounds(const std::string& query) const;
  HttpAnswer Change(Time now, const HttpRequest& request);
  bool IsOurName(const std::string& host) const;

  Handlers handlers_;
  std::optional<HttpProof> proof_;
  std::vector<std::string> host_names_;
};

HttpAnswer HttpError(unsigned status, const std::string& text);

}  // namespace lockstep::coordinator
