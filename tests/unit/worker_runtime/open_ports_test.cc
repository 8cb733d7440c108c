#include "worker/runtime/open_ports.h"

#include <gtest/gtest.h>

namespace lockstep::worker {
namespace {

TEST(OpenPorts, TellsEachAndWhoGetsIn) {
  EXPECT_EQ(Describe({.tcp = {"10.0.0.1:4711"}, .ucx = {}, .arena = "unix:@x"}),
            "open to others: tcp 10.0.0.1:4711, for workers that prove the job's key; no port of "
            "UCX; memory to map at unix:@x, on this host, for workers that prove the job's key");
  EXPECT_EQ(Describe({.tcp = {"10.0.0.1:4711"}, .ucx = {}, .rdma = true, .arena = {}}),
            "open to others: tcp 10.0.0.1:4711, for workers that prove the job's key; no port of "
            "UCX; RDMA, for anybody on its network");
  EXPECT_EQ(
      Describe({.tcp = {}, .ucx_listens = true, .ucx = {"10.0.0.1:1", "10.0.0.1:2"}, .arena = {}}),
      "open to others: UCX's ports 10.0.0.1:1, 10.0.0.1:2, for anybody who reaches them");
  EXPECT_EQ(Describe({.tcp = {}, .ucx_listens = true, .ucx = {}, .arena = {}}),
            "open to others: UCX's listener, for anybody who reaches it");
}

TEST(OpenPorts, WarnsOfUcxByName) {
  const OpenPorts open{.tcp = {}, .ucx_listens = true, .ucx = {"10.0.0.1:1"}, .arena = {}};
  const std::string without = UcxWarning(open, /*rdma=*/false);
  EXPECT_NE(without.find("Anybody who reaches its port 10.0.0.1:1 may write"), std::string::npos);
  EXPECT_NE(without.find("auto takes tcp here"), std::string::npos);
  EXPECT_NE(UcxWarning(open, /*rdma=*/true).find("auto takes RDMA without a port"),
            std::string::npos);
}

TEST(OpenPorts, BeyondLoopbackTheyWantASecret) {
  const auto refused = [](const std::string& host, bool has_secret) {
    const Status status = CheckDataHost(host, has_secret);
    return status.ok() ? std::string() : status.error().message;
  };
  for (const std::string loopback : {"", "127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_EQ(refused(loopback, false), "") << loopback;
  }
  for (const std::string beyond : {"10.0.0.7", "fd00::7", "::ffff:10.0.0.7"}) {
    EXPECT_EQ(refused(beyond, false),
              "data host " + beyond + ": beyond loopback a --secret-file is required");
    EXPECT_EQ(refused(beyond, true), "") << beyond;
  }
  for (const std::string any : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    EXPECT_NE(refused(any, true).find("is no address that others could connect to"),
              std::string::npos)
        << any;
  }
  EXPECT_EQ(refused("node3\n", true), "data host node3?: wants an IP address, as 192.168.7.12");
}

}  // namespace
}  // namespace lockstep::worker
