#include "coordinator/shell/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace lockstep::coordinator {
namespace {

std::string Rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f} M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f} k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

// Names the state of a member that has no part in the rounds. A slot that nobody has is of no
// interest for why: it was never taken, its worker was lost, or it has left.
std::string_view Absence(MemberState state) {
  return state == MemberState::kLost ? "missing" : Name(state);
}

// "3 of 4 workers (worker 2 is behind)", "5 of 8 workers (2 are missing, 1 is behind)". A worker
// that the last commit left out is live, and named where it is waited for.
std::string WorkersText(const JobStatus& status) {
  std::map<std::string_view, std::vector<WorkerId>> absent;
  std::uint32_t slot = 0;
  const auto nobody_below = [&](std::uint32_t end) {
    for (; slot < end; ++slot) absent[Absence(MemberState::kLost)].push_back(WorkerId(slot));
  };
  for (const MemberStatus& member : status.members) {
    nobody_below(member.member.worker.value);
    if (member.state != MemberState::kLive) absent[Absence(member.state)].push_back(WorkerId(slot));
    ++slot;
  }
  nobody_below(status.workers);
  std::string text = fmt::format("{} of {} workers", status.taking_part, status.workers);
  const char* before = " (";
  for (const auto& [how, workers] : absent) {
    if (absent.size() == 1 && workers.size() == 1) {
      text += fmt::format("{}worker {} is {}", before, workers.front(), how);
    } else {
      text += fmt::format("{}{} {} {}", before, workers.size(), workers.size() == 1 ? "is" : "are",
                          how);
    }
    before = ", ";
  }
  return absent.empty() ? text : text + ")";
}

std::size_t TerminalWidth() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string ProgressText(const JobStatus& status) {
  if (status.phase == Phase::kGathering || status.phase == Phase::kForming) {
    return fmt::format("{}{}{}", Name(status.phase), status.waiting_for.empty() ? "" : ": ",
                       status.waiting_for);
  }
  std::string text = fmt::format("epoch {}  round {}", status.epoch, status.round);
  if (status.loss) text += fmt::format("  loss {:.4f}", *status.loss);
  if (status.test_accuracy) text += fmt::format("  test {:.2f} %", *status.test_accuracy * 100);
  text += fmt::format("  {} samples/s", Rate(status.samples_per_second));
  // At the end they leave one after the other.
  if (status.phase == Phase::kTraining) text += "  " + WorkersText(status);
  if (!status.waiting_for.empty()) text += "  " + status.waiting_for;
  return text;
}

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

Duration ProgressLine::interval() const {
  return terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000);
}

void ProgressLine::Show(const JobStatus& status) {
  const std::string text = ProgressText(status);
  if (!terminal_) {
    spdlog::info("{}", text);
    return;
  }
  std::fprintf(stderr, "\r\x1b[K%s", text.substr(0, TerminalWidth() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::Clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace lockstep::coordinator
