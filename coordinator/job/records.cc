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
    case JobOutcome::kHandedOver:
      return "handed over";
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

bool MayBecome(MemberState from, MemberState to) {
  using enum MemberState;
  switch (to) {
    case kJoining:
      return from == kLost;
    case kReady:
      return from == kJoining || from == kForming;
    case kForming:
      return from == kReady;
    case kCatchingUp:
      return from == kForming || IsBehind(from);
    case kLive:  // a member that is behind may be readmitted
      return from == kForming || from == kCatchingUp || from == kBehindApplied ||
             from == kBehindDenied;
    case kBehind:
      return from == kLive || from == kCatchingUp;
    case kBehindAsked:
      return from == kBehind;
    case kBehindDenied:
      return from == kBehindAsked;
    case kBehindApplied:
      return IsBehind(from) && from != kBehindInDoubt;
    case kBehindInDoubt:
      return IsBehind(from);
    case kLost:
      return from != kLost;
  }
  return false;
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
    case MemberState::kBehindAsked:
    case MemberState::kBehindDenied:
    case MemberState::kBehindApplied:
    case MemberState::kBehindInDoubt:
      return "behind";
    case MemberState::kLost:
      return "lost";
  }
  return "";
}

}  // namespace lockstep::coordinator
