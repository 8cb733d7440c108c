#include "coordinator/http_requests.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/ini.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Of texts that come from elsewhere, whatever bytes they hold.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

Result<Event> EventOf(const std::string& target, const std::string& body) {
  if (target == "/slowdown") return Event(SlowdownRequested{body});
  const std::string text = Trimmed(body);
  if (target == "/policy") {
    if (text.empty() || text.size() > 100 || !IsPrintable(text))
      return Error{ErrorCode::kInvalid, "the body must be a policy's name, as backup+none"};
    return Event(PolicyRequested{text});
  }
  std::uint32_t worker = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), worker);
  if (text.empty() || failed != std::errc() || end != text.data() + text.size())
    return Error{ErrorCode::kInvalid, "the body must be a worker's number"};
  return Event(DrainRequested{WorkerId(worker)});
}

}  // namespace

HttpAnswer HttpError(unsigned status, const std::string& text) {
  return {status, Dump({{"error", text}})};
}

HttpAnswer HttpRequests::Answer(Time now, const HttpRequest& request) {
  const std::string& target = request.target;
  const bool is_change = target == "/slowdown" || target == "/policy" || target == "/drain";
  if (is_change) {
    if (request.method != "POST") return HttpError(405, "POST it");
    return Change(now, request);
  }
  const bool has_nonces = proof_ && target == "/nonce";
  if (target != "/status" && target != "/" && !has_nonces)
    return HttpError(404, "try /status, /slowdown, /policy, /drain");
  if (request.method != "GET") return HttpError(405, "GET it");
  if (has_nonces) return {200, Dump({{"nonce", proof_->Nonce(now)}})};
  return {200, handlers_.status()};
}

HttpAnswer HttpRequests::Change(Time now, const HttpRequest& request) {
  // A page in a browser on this machine may post to loopback without anybody's knowing.
  if (request.from_web_page) return HttpError(403, "changes are not taken from web pages");
  if (proof_) {
    const lockstep::Status proven = proof_->Check(now, request.nonce, request.proof, request.method,
                                                  request.target, request.body);
    if (!proven) return HttpError(401, proven.error().message);
  }
  Result<Event> event = EventOf(request.target, request.body);
  if (!event) return HttpError(400, event.error().message);
  const Result<std::string> done = handlers_.ask(*std::move(event));
  if (!done) return HttpError(400, done.error().message);
  return {200, Dump({{"ok", true}, {"message", *done}})};
}

}  // namespace lockstep::coordinator
