#include "coordinator/shell/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"

namespace lockstep::coordinator {
namespace {

std::string Rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f} M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f} k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
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
  text += fmt::format("  {} samples/s  {} of {} workers", Rate(status.samples_per_second),
                      status.contributors, status.contributors + status.excluded);
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
