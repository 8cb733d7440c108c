#include "transport/paths/choice.h"

#include <gtest/gtest.h>

namespace lockstep::transport::paths {
namespace {

Machine WithPort(const char* state) {
  Machine machine;
  RdmaPort port;
  port.device = "mlx5_0";
  port.state = state;
  machine.rdma.push_back(port);
  return machine;
}

TEST(Choice, AutoTakesUcxForRdmaAlone) {
  const auto with = Choose("auto", WithPort("ACTIVE"));
  ASSERT_EQ(with.size(), 2u);
  EXPECT_EQ(with[0].name, "ucx");
  EXPECT_EQ(with[0].maker, "ucx-rdma");
  EXPECT_EQ(with[1].maker, "tcp");
  for (const Machine& machine : {Machine{}, WithPort("DOWN")}) {
    const auto without = Choose("auto", machine);
    ASSERT_EQ(without.size(), 2u);
    EXPECT_EQ(without[0].name, "ucx");
    EXPECT_EQ(without[0].maker, "");
    EXPECT_EQ(without[0].why.find("its host has no active RDMA port"), 0u);
    EXPECT_EQ(without[1].maker, "tcp");
  }
}

TEST(Choice, WhatIsNamedIsTaken) {
  for (const char* name : {"ucx", "tcp"}) {
    for (const Machine& machine : {Machine{}, WithPort("ACTIVE")}) {
      const auto choices = Choose(name, machine);
      ASSERT_EQ(choices.size(), 1u);
      EXPECT_EQ(choices[0].name, name);
      EXPECT_EQ(choices[0].maker, name);
    }
  }
}

}  // namespace
}  // namespace lockstep::transport::paths
