#include "transport/tcp/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::transport::tcp {

Group::~Group() {
  for (const auto& connection : connections_) {
    if (connection) connection->set_group(nullptr);
  }
}

void Group::Add(std::shared_ptr<Connection> connection) {
  auto& place = connections_.at(connection->place().number);
  LOCKSTEP_CHECK(place == nullptr, "connection {} is there twice", connection->place().number);
  connection->set_group(this);
  place = std::move(connection);
}

std::size_t Group::settled() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [](const auto& connection) { return connection && connection->settled(); }));
}

void Group::Begin(PeerId peer) {
  for (const auto& connection : connections_) connection->Begin(peer);
}

bool Group::up() const {
  return std::ranges::all_of(connections_,
                             [](const auto& connection) { return connection && connection->up(); });
}

void Group::End(const Error& reason) {
  for (const auto& connection : connections_) {
    if (connection) connection->End(reason);
  }
}

void Group::CloseLater(const std::string& reason) {
  for (const auto& connection : connections_) connection->CloseLater(reason);
}

PathReport Group::path() const {
  PathReport report = main().path();
  if (size() > 1) report.text += fmt::format(", {} connections", size());
  return report;
}

Time Group::last_heard() const {
  Time latest = main().last_heard();
  for (const auto& connection : connections_) latest = std::max(latest, connection->last_heard());
  return latest;
}

std::size_t Group::asked() const {
  std::size_t asked = 0;
  for (const auto& connection : connections_) asked += connection->asked();
  return asked;
}

bool Group::Fetch(FetchId fetch, const PieceName& name, std::span<std::byte> destination,
                  std::size_t window) {
  std::size_t live = 0;
  std::size_t unanswered = 0;
  Connection* least = nullptr;
  for (std::size_t i = 0; i < size(); ++i) {
    Connection& connection = *connections_[(next_ + i) % size()];
    live += connection.live_fetches();
    unanswered += connection.unanswered();
    if (least == nullptr || connection.bytes_awaited() < least->bytes_awaited()) {
      least = &connection;
    }
  }
  if (live >= window || unanswered >= kWindowsOutstanding * window) return false;
  next_ = (least->place().number + 1) % size();
  least->Fetch(fetch, name, destination);
  return true;
}

bool Group::GiveUp(FetchId fetch) {
  return std::ranges::any_of(connections_,
                             [&](const auto& connection) { return connection->GiveUp(fetch); });
}

void Group::Provide(std::uint64_t cookie, std::span<const std::byte> body) {
  for (const auto& connection : connections_) {
    if (connection->Provide(cookie, body)) return;
  }
}

}  // namespace lockstep::transport::tcp
