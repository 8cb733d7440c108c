// The active coordinator's end of the connection to a standby, which follows it and may take over.
// Workers are told its address first. The standby is sent the job, the records so far and, once the
// workers know it (`Known`), the journal so far. Then it is complete, and nobody hears of an entry
// of the journal before the standby has it (`holds`).
//
// There is one standby at a time. It never stops the job: one that is gone, or that does not have
// an entry in time, is given up. It is told so where it can be reached.
//
// Control thread only. Errors: a line in the log.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/messages.h"
#include "base/time.h"
#include "transport/control/channel.h"

namespace lockstep::coordinator {

class StandbyFeed {
 public:
  struct Job {
    std::string text;                      // see msg::Followed::Part::kJob
    std::filesystem::path records;         // the run directory
    std::function<std::string()> journal;  // so far
    Duration timeout;                      // liveness.timeout
  };
  struct Handlers {
    // The addresses of the standbys, which workers are to know: they have changed. Known() follows
    // where there are any.
    std::function<void(std::vector<std::string>)> on_standbys;
    std::function<void()> on_released;  // holds() is false again
    // The standby leads from now on, in this term.
    std::function<void(Term term, const std::string& address)> on_takeover;
  };

  StandbyFeed(boost::asio::io_context& io, Job job, Handlers handlers);

  // A new standby. Where there is one already it is told to try again.
  void Accept(std::unique_ptr<transport::control::WorkerChannel> channel,
              const msg::StandbyHello& hello);
  // The workers know the addresses that on_standbys told last. Also from within it.
  void Known();
  // A part was written just now: a line of the journal, lines of records, the summary at the end.
  void Tell(msg::Followed::Part part, const std::string& text);
  // The standby has not acknowledged the last entry: nobody else may hear of it yet.
  bool holds() const { return follower_ && follower_->entry > follower_->noted; }
  // The job has ended, or this coordinator has.
  void Close();

 private:
  struct Follower {
    std::unique_ptr<transport::control::WorkerChannel> channel;
    std::string address;
    bool own_folder = false;
    std::ifstream rounds;       // the records, up to where it was sent them
    std::uint64_t sent = 0;     // the sequence of the last message
    std::uint64_t noted = 0;    // acknowledged
    std::uint64_t journal = 0;  // that of the journal so far; 0: it is still sent records
    std::uint64_t entry = 0;    // of the last entry after it
    bool known = false;         // to the workers
    bool complete = false;      // it has the journal
  };

  void Copy();
  void AwaitNoted();
  void Send(msg::Followed::Part part, std::string_view text);
  void OnNoted(const msg::Noted& noted);
  void GiveUp(const std::string& why);

  const Job job_;
  const Handlers handlers_;
  boost::asio::steady_timer patience_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace lockstep::coordinator
