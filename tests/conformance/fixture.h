// The parameter of every conformance test is the name of a transport.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/conformance/node.h"
#include "tests/conformance/pattern.h"
#include "tests/fake_device/thread_copies.h"
#include "transport/inproc/inproc.h"

namespace lockstep::transport {

// "inproc", "tcp" and whatever else this build has; "tls" is tcp with encryption; "tcp3" and "tls3"
// have three connections to each peer and a thread that outlives them; "staged" is tcp behind the
// staging of a device, whose memory all regions are taken for.
std::vector<std::string> AllTransports();
// Those that cross a process.
std::vector<std::string> ProcessTransports();
// Where transports listen: LOCKSTEP_TEST_LISTEN_HOST (an RDMA device's address, say), else
// loopback.
std::string ListenHost();

// LOCKSTEP_TEST_EMULATED is set: the processor is emulated, and each connection takes its half
// second.
bool Emulated();
// That, or a sanitized build: the same tests, with less to move.
bool Slow();

inline MemberId Identity(std::uint32_t worker, std::uint32_t incarnation = 1) {
  return {WorkerId(worker), Incarnation(incarnation)};
}

class TransportTest : public ::testing::TestWithParam<std::string> {
 public:
  ~TransportTest() override;

 protected:
  Options OptionsFor(const MemberId& self) const;
  // Makes and starts a node.
  std::unique_ptr<Node> MakeNode(const MemberId& self);
  std::unique_ptr<Node> MakeNode(Options options);
  std::unique_ptr<Transport> MakeUnstarted(Options options);

  // In the place of a device's.
  ThreadCopies copies_;
  std::shared_ptr<InprocNetwork> network_ = InprocNetwork::Make();
};

// A serving node with the pattern and a fetching node with memory, connected.
class PairTest : public TransportTest {
 protected:
  void Connect(std::size_t fetch_window = 8, std::size_t destination_bytes = 0);
  void TearDown() override;

  Slice Destination(std::uint64_t offset, std::uint64_t bytes) const {
    return {destination_region_, offset, bytes};
  }
  std::span<std::byte> DestinationBytes(std::uint64_t offset, std::uint64_t bytes) {
    return std::span(destination_).subspan(offset, bytes);
  }
  // Fetches and waits; kOk is also checked byte for byte.
  FetchStatus FetchAndCheck(const PieceName& name, std::uint64_t offset = 0);
  // Fetches `total` bytes of the pattern in pieces, `slots` at a time, each checked; on the
  // fetcher's data thread.
  void FetchLong(std::uint64_t total, std::uint64_t piece_bytes, std::size_t slots);

  const MemberId serving_identity_ = Identity(1);
  const MemberId fetching_identity_ = Identity(2);
  std::vector<std::byte> pattern_;
  std::vector<std::byte> destination_;
  std::unique_ptr<Node> server_;
  std::unique_ptr<Node> fetcher_;
  RegionId pattern_region_;
  RegionId destination_region_;
  PeerId server_peer_;   // as the fetcher calls it
  PeerId fetcher_peer_;  // as the server calls it
};

}  // namespace lockstep::transport
