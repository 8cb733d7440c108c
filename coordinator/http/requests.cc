#include "coordinator/http/requests.h"

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/ini.h"
#include "coordinator/http/live_page.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Cleans texts that come from elsewhere, with any bytes.
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

// A page in a browser on this machine may post to loopback without anybody's knowing. So the only
// one that is heard is the live page: of this very name and port, and IsOurName has looked at the
// name. Its scheme is https where a proxy stands in front.
bool IsOurPage(const std::string& origin, const std::string& host) {
  if (host.empty()) return false;
  return boost::algorithm::iequals(origin, "http://" + host) ||
         boost::algorithm::iequals(origin, "https://" + host);
}

}  // namespace

HttpAnswer HttpError(unsigned status, const std::string& text) {
  return {status, Dump({{"error", text}})};
}

// "name", "name:8080", "10.0.0.1:8080", "[::1]:8080". Clients other than browsers may omit it.
bool HttpRequests::IsOurName(const std::string& host) const {
  if (host.empty()) return true;
  const bool bracket = host.front() == '[' && host.find(']') != std::string::npos;
  const std::string name =
      bracket ? host.substr(1, host.find(']') - 1) : host.substr(0, host.find(':'));
  boost::system::error_code no_address;
  boost::asio::ip::make_address(name, no_address);
  if (!no_address || boost::algorithm::iequals(name, "localhost")) return true;
  return std::any_of(host_names_.begin(), host_names_.end(), [&](const std::string& ours) {
    return boost::algorithm::iequals(name, ours);
  });
}

HttpAnswer HttpRequests::Answer(Time now, const HttpRequest& request) {
  if (!IsOurName(request.host)) {
    return HttpError(421, "this host is not known by that name: ask for it by its address");
  }
  const std::string& target = request.target;
  const bool stands_by = handlers_.take_over != nullptr;
  const bool is_change = stands_by
                             ? target == "/takeover"
                             : target == "/slowdown" || target == "/policy" || target == "/drain";
  if (is_change) {
    if (request.method != "POST") return HttpError(405, "POST it");
    return Change(now, request);
  }
  const bool has_nonces = proof_ && target == "/nonce";
  const std::string path = target.substr(0, target.find('?'));
  const bool is_known =
      target == "/status" || has_nonces ||
      (!stands_by && (target == "/" || target == "/metrics" || path == "/rounds"));
  if (!is_known && stands_by) return HttpError(404, "this is a standby: try /status, /takeover");
  if (!is_known)
    return HttpError(404, "try /, /status, /rounds, /metrics, /slowdown, /policy, /drain");
  if (request.method != "GET") return HttpError(405, "GET it");
  if (target == "/") {
    return {200, std::string(LivePage()), "text/html; charset=utf-8",
            std::string(LivePageSecurityPolicy())};
  }
  if (target == "/metrics")
    return {200, handlers_.metrics(), "text/plain; version=0.0.4; charset=utf-8"};
  if (path == "/rounds") return Rounds(target.substr(path.size()));
  if (has_nonces) {
    return {200, Dump({{"nonce", proof_->Nonce(now)}, {"job_id", proof_->job_id()}})};
  }
  return {200, handlers_.status()};
}

// "?after=17", or nothing.
HttpAnswer HttpRequests::Rounds(const std::string& query) const {
  constexpr std::string_view kAfter = "?after=";
  std::int64_t after = -1;
  if (!query.empty()) {
    const std::string number = query.starts_with(kAfter) ? query.substr(kAfter.size()) : "";
    const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), after);
    if (number.empty() || failed != std::errc() || end != number.data() + number.size())
      return HttpError(400, "/rounds?after=ROUND, a whole number");
  }
  return {200, handlers_.rounds(after)};
}

HttpAnswer HttpRequests::Change(Time now, const HttpRequest& request) {
  if (request.origin && !IsOurPage(*request.origin, request.host))
    return HttpError(403, "changes are taken from no web page but the one that is served here");
  if (proof_) {
    const lockstep::Status proven = proof_->Check(now, request.nonce, request.proof, request.method,
                                                  request.target, request.body);
    if (!proven) return HttpError(401, proven.error().message);
  }
  const auto carry_out = [&]() -> Result<std::string> {
    if (handlers_.take_over) return handlers_.take_over();
    Result<Event> event = EventOf(request.target, request.body);
    if (!event) return event.error();
    return handlers_.ask(*std::move(event));
  };
  const Result<std::string> done = carry_out();
  if (!done) return HttpError(400, done.error().message);
  return {200, Dump({{"ok", true}, {"message", *done}})};
}

}  // namespace lockstep::coordinator
