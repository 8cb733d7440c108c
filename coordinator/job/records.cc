#include "coordinator/job/records.h"

namespace lockstep::coordinator {

std::string_view Name(JobOutcome outcome) {
  switch (outcome) {
    case JobOutcome::kCompleted:
      return "completed";
    case JobOutcome::kInterrupted:
      return "interrupted";
    case JobOutcome::kFailed:
      return "failed";
  }
  return "";
}

std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kGathering:
      return "gathering";
    case Phase::kForming:
      return "forming";
    case Phase::kTraining:
      return "training";
    case Phase::kEnding:
      return "ending";
    case Phase::kFinished:
      return "finished";
  }
  return "";
}

std::string_view Name(MemberState state) {
  switch (state) {
    case MemberState::kJoining:
      return "joining";
    case MemberState::kReady:
      return "ready";
    case MemberState::kForming:
      return "forming";
    case MemberState::kCatchingUp:
      return "catching up";
    case MemberState::kLive:
      return "live";
    case MemberState::kBehind:
      return "behind";
    case MemberState::kLost:
      return "lost";
  }
  return "";
}

}  // namespace lockstep::coordinator
