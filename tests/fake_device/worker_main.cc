// lockstep-worker on an imitated device whose memory the host cannot touch. Takes the same options.
// LOCKSTEP_FAKE_DEVICE_KIND: another kind of device than those of the others.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/program_options.h"
#include "tests/fake_device/fake_device.h"
#include "worker/program/trainer.h"
#include "worker/runtime/session.h"

int main(int argc, char** argv) {
  namespace worker = lockstep::worker;
  const auto options =
      lockstep::ParseWorkerOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options) {
    std::fprintf(stderr, "%s\n", options.error().message.c_str());
    return 2;
  }
  lockstep::InitLogging("worker", options->log_level);
  worker::SessionOptions session_options;
  session_options.coordinator = ToString(options->coordinator);
  session_options.wanted = options->wanted;
  session_options.device = "cuda:0 (imitated)";
  session_options.require_gpudirect = options->require_gpudirect;
  session_options.slowdowns = options->slowdowns;
  auto session = worker::Session::Join(std::move(session_options));
  if (!session) {
    std::fprintf(stderr, "%s\n", session.error().message.c_str());
    return 2;
  }
  const char* named = std::getenv("LOCKSTEP_FAKE_DEVICE_KIND");
  const std::string kind = named == nullptr ? "imitated" : named;
  const auto addresses = std::make_shared<worker::FakeAddresses>();
  const lockstep::Status trained = worker::TrainOn(
      **session, [&] { return lockstep::Result(worker::MakeFakeCompute(addresses, kind)); });
  spdlog::info("{} bytes of the device's memory at most", addresses->most_bytes());
  if (!trained.ok()) {
    std::fprintf(stderr, "%s\n", trained.error().message.c_str());
    using lockstep::ErrorCode;  // as lockstep-worker
    const ErrorCode code = trained.error().code;
    return code == ErrorCode::kClosed || code == ErrorCode::kIo ? 1 : 2;
  }
  return 0;
}
