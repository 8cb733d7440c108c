#include "coordinator/shell/standby_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <utility>
#include <variant>

#include "base/log.h"

namespace lockstep::coordinator {
namespace {

namespace control = transport::control;
using Part = msg::Followed::Part;

// Records that are sent at once, and messages of them that are not acknowledged.
constexpr std::size_t kPieceBytes = 1u << 20;
constexpr std::uint64_t kPiecesUnderWay = 4;

}  // namespace

StandbyFeed::StandbyFeed(boost::asio::io_context& io, Job job, Handlers handlers)
    : job_(std::move(job)), handlers_(std::move(handlers)), patience_(io) {}

void StandbyFeed::Accept(std::unique_ptr<control::WorkerChannel> channel,
                         const msg::StandbyHello& hello) {
  if (follower_) {
    channel->Send(msg::ToWorker(
        msg::Refuse{fmt::format("the standby at {} follows already", follower_->address), true}));
    return;
  }
  follower_ = std::make_unique<Follower>();
  follower_->channel = std::move(channel);
  follower_->address = hello.address;
  follower_->own_folder = hello.own_folder;
  follower_->channel->Start({.on_message =
                                 [this](const msg::FromWorker& message) {
                                   const auto* noted = std::get_if<msg::Noted>(&message);
                                   if (noted == nullptr || noted->sequence > follower_->sent) {
                                     return GiveUp("it broke the protocol");
                                   }
                                   OnNoted(*noted);
                                 },
                             .on_closed = [this](const Error& error) { GiveUp(error.message); },
                             .on_drained = nullptr});
  spdlog::info("a standby follows from {}, where it listens at {}", follower_->channel->remote(),
               hello.address);
  Send(Part::kJob, job_.text);
  if (hello.own_folder) {
    follower_->rounds = std::ifstream(job_.records / "rounds.jsonl", std::ios::binary);
  }
  Copy();
  handlers_.on_standbys({follower_->address});
}

void StandbyFeed::Known() {
  if (!follower_ || follower_->known) return;
  follower_->known = true;
  Copy();
}

// Whole lines, and some of them at once.
static std::string NextLines(std::istream& in) {
  std::string lines;
  in.clear();  // more may have been appended since the end was seen
  for (std::string line; lines.size() < kPieceBytes && std::getline(in, line);) {
    lines += line + '\n';
  }
  return lines;
}

// At the pace at which the standby has them. Records that are appended meanwhile are read from
// their file as well; its end and the journal are sent in one turn of this thread.
void StandbyFeed::Copy() {
  Follower& follower = *follower_;
  if (follower.rounds.is_open()) {
    std::string lines;
    do {
      if (follower.sent >= follower.noted + kPiecesUnderWay) return;
      lines = NextLines(follower.rounds);
      if (!lines.empty()) Send(Part::kRounds, lines);
    } while (!lines.empty());
  }
  if (!follower.known) return;
  if (follower.own_folder) {
    std::ifstream evaluations(job_.records / "evaluations.jsonl", std::ios::binary);
    while (evaluations) {
      if (const std::string lines = NextLines(evaluations); !lines.empty()) {
        Send(Part::kEvaluations, lines);
      } else {
        break;
      }
    }
  }
  follower.rounds.close();
  Send(Part::kJournal, job_.journal());
  follower.journal = follower.sent;
}

void StandbyFeed::Tell(Part part, const std::string& text) {
  if (!follower_ || follower_->journal == 0) return;
  const bool record = part == Part::kRounds || part == Part::kEvaluations;
  if (record && !follower_->own_folder) return;
  const bool held = holds();
  Send(part, text);
  if (part != Part::kEntry) return;
  follower_->entry = follower_->sent;
  if (!held) AwaitNoted();
}

void StandbyFeed::AwaitNoted() {
  const Duration most = job_.timeout / 4;
  patience_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(most));
  patience_.async_wait([this, most](const boost::system::error_code& error) {
    if (error || !holds()) return;
    GiveUp(fmt::format("it has not acknowledged an entry of the journal within {:g} s",
                       Seconds(most)));
  });
}

void StandbyFeed::Send(Part part, std::string_view text) {
  // A message has a bound, and an entry of a large job has none.
  do {
    const std::string_view piece = text.substr(0, kPieceBytes);
    text.remove_prefix(piece.size());
    follower_->channel->Send(
        msg::ToWorker(msg::Followed{++follower_->sent, part, text.empty(), std::string(piece)}));
  } while (!text.empty());
}

void StandbyFeed::OnNoted(const msg::Noted& noted) {
  if (noted.leads > Term()) {
    const std::string address = follower_->address;
    return handlers_.on_takeover(noted.leads, address);
  }
  Follower& follower = *follower_;
  const bool held = holds();
  follower.noted = std::max(follower.noted, noted.sequence);
  if (follower.journal == 0) return Copy();
  if (!follower.complete && follower.noted >= follower.journal) {
    follower.complete = true;
    spdlog::info("the standby at {} has all that it needs to take over", follower.address);
  }
  if (!held) return;
  if (holds()) return AwaitNoted();
  patience_.cancel();
  handlers_.on_released();
}

void StandbyFeed::GiveUp(const std::string& why) {
  Send(Part::kWithout, why);
  const auto gone = std::move(follower_);
  patience_.cancel();
  spdlog::warn("the standby at {} is lost: {}; the job goes on without one", gone->address, why);
  handlers_.on_standbys({});
  if (gone->entry > gone->noted) handlers_.on_released();
}

void StandbyFeed::Close() {
  follower_.reset();
  patience_.cancel();
}

}  // namespace lockstep::coordinator
