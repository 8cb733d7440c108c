// Arenas whose blocks lie in a device's memory, between processes: handing over, reading by the
// device, owners that die, and who cannot have them. The device is imitated.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <numeric>
#include <string>
#include <vector>

#include "tests/conformance/mapping/child_process.h"
#include "tests/fake_device/fake_device.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/map_peer.h"

namespace lockstep::worker {
namespace {

using transport::Arena;
using transport::ArenaServer;
using transport::BlockSpec;
using transport::ChildProcess;
using transport::DeviceBlock;
using transport::DeviceName;
using transport::kNoGeneration;
using transport::PeerArena;
using transport::UniqueFd;

const MemberId kOwner{WorkerId(3), Incarnation(2)};
const MemberId kReader{WorkerId(1), Incarnation(1)};
const std::vector<std::byte> kKey(32, std::byte{0x5a});
constexpr std::size_t kFloats = 100'000;
constexpr Duration kLong = std::chrono::seconds(30);

constexpr std::size_t kSum = 1;  // the block
constexpr std::size_t kSpare = 2;

// A device, its memory and an arena there.
struct Device {
  explicit Device(const std::string& kind = "imitated") : memory(MakeFakeMemory(addresses, kind)) {}

  Result<Arena> MakeArena() {
    auto arena = Arena::Create(
        std::vector<BlockSpec>{{.name = "first", .bytes = 100},
                               {.name = "sum", .bytes = kFloats * 4, .page_aligned = true},
                               {.name = "spare", .bytes = 100, .spare = true}},
        memory->sharing());
    EXPECT_TRUE(arena.ok() && arena->Back(kSum).ok());
    return arena;
  }

  const std::shared_ptr<FakeAddresses> addresses = std::make_shared<FakeAddresses>();
  const std::unique_ptr<ExchangeMemory> memory;
};

void Fill(Device& device, const Arena& arena, std::size_t from, std::size_t to, float value) {
  const std::vector<float> values(to - from, value);
  device.memory->FromHost(reinterpret_cast<float*>(arena.block(kSum).data()) + from, values.data(),
                          values.size() * sizeof(float));
}

// A child that owns an arena and obeys: "write G" fills and publishes; "begin G" fills half.
void Own(const ChildProcess::Parent& parent) {
  Device device;
  Arena arena = device.MakeArena().value();
  const auto server = ArenaServer::Start(arena, kKey, {.self = kOwner}).value();
  parent.Say(server->address());
  for (;;) {
    const std::string command = parent.Hear();
    const auto generation = std::stoul(command.substr(command.find(' ')));
    arena.BeginWrite(kSum);
    Fill(device, arena, 0, kFloats / 2, static_cast<float>(generation));
    if (command.starts_with("write")) {
      Fill(device, arena, kFloats / 2, kFloats, static_cast<float>(generation));
      arena.Publish(kSum, generation);
    }
    parent.Say("done");
  }
}

class DeviceArena : public ::testing::Test {
 protected:
  Result<PeerArena> Map(transport::DeviceSharing* device) {
    return MapPeer(address_, kReader, kOwner, kKey, kLong, device);
  }
  void Ask(const std::string& command) {
    child_.Say(command);
    ASSERT_EQ(child_.Hear(), "done");
  }
  // Twice what the peer's block holds, by the device.
  std::vector<float> Doubled(const PeerArena& peer) {
    auto* out = reinterpret_cast<float*>(*device_->memory->Allocate(kFloats * sizeof(float)));
    const Input input{reinterpret_cast<const float*>(peer.data(kSum)), 2};
    device_->memory->WeightedSum({&input, 1}, out, kFloats, /*large=*/false);
    device_->memory->Finish();
    std::vector<float> found(kFloats);
    device_->memory->ToHost(found.data(), out, kFloats * sizeof(float));
    device_->memory->Free(reinterpret_cast<std::byte*>(out), kFloats * sizeof(float));
    return found;
  }

  ChildProcess child_{Own};
  std::string address_ = child_.Hear();
  // After the fork: it has a thread.
  const std::unique_ptr<Device> device_ = std::make_unique<Device>();
};

TEST_F(DeviceArena, IsSummedByThePeersDevice) {
  const auto peer = Map(device_->memory->sharing());
  ASSERT_TRUE(peer.ok()) << peer.error().message;
  EXPECT_EQ(peer->Find("sum"), kSum);
  EXPECT_EQ(peer->bytes(kSum), kFloats * 4);
  EXPECT_EQ(peer->Generation(kSum), kNoGeneration);
  for (const std::uint32_t generation : {1u, 2u, 700u}) {
    Ask("write " + std::to_string(generation));
    EXPECT_EQ(peer->Generation(kSum), generation);
    EXPECT_EQ(Doubled(*peer), std::vector<float>(kFloats, 2.0f * static_cast<float>(generation)));
    EXPECT_TRUE(peer->StillValid(kSum, generation));
  }
}

TEST_F(DeviceArena, APassWhileItIsRewrittenIsTorn) {
  Ask("write 1");
  const auto peer = Map(device_->memory->sharing()).value();
  ASSERT_EQ(peer.Generation(kSum), 1u);
  Ask("begin 2");
  const std::vector<float> found = Doubled(peer);
  EXPECT_EQ(found.front(), 4) << "the pass has seen bytes of both";
  EXPECT_EQ(found.back(), 2);
  EXPECT_FALSE(peer.StillValid(kSum, 1));
  EXPECT_FALSE(peer.StillValid(kSum, 2));
}

TEST_F(DeviceArena, OutlivesItsOwner) {
  Ask("write 9");
  const auto peer = Map(device_->memory->sharing()).value();
  child_.Kill();
  EXPECT_EQ(Doubled(peer), std::vector<float>(kFloats, 18));
  EXPECT_TRUE(peer.StillValid(kSum, 9));
}

TEST_F(DeviceArena, AnOwnerKilledWhileItWritesLeavesNothingToRead) {
  Ask("write 9");
  const auto peer = Map(device_->memory->sharing()).value();
  Ask("begin 10");
  child_.Kill();
  EXPECT_FALSE(peer.StillValid(kSum, 9));
  EXPECT_FALSE(peer.StillValid(kSum, 10));
}

TEST_F(DeviceArena, IsNotForTheHost) {
  const auto peer = Map(nullptr);
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(peer.error().message,
            "cannot map the arena of worker 3 (incarnation 2): it is in the memory of a device "
            "(imitated 0), which the host cannot read");
}

TEST_F(DeviceArena, IsNotForAnotherKindOfDevice) {
  Device other("other");
  const auto peer = Map(other.memory->sharing());
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(peer.error().message,
            "cannot map the arena of worker 3 (incarnation 2): it is in the memory of another kind "
            "of device (imitated, not other)");
}

TEST_F(DeviceArena, ADeviceDoesNotMapTheHostsMemory) {
  const Arena arena = Arena::Create(std::vector<BlockSpec>{{.name = "sum", .bytes = 64}}).value();
  const auto server = ArenaServer::Start(arena, kKey, {.self = kOwner}).value();
  address_ = server->address();
  const auto peer = Map(device_->memory->sharing());
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(peer.error().message.find("it is in the host's memory, and this worker's on a device"),
            std::string::npos);
}

TEST(DeviceArenaDescriptors, AreCheckedAgainstEachOther) {
  Device device;
  transport::DeviceSharing& sharing = *device.memory->sharing();
  const Arena arena = device.MakeArena().value();
  const Arena on_host = Arena::Create(std::vector<BlockSpec>{{.name = "a", .bytes = 64}}).value();
  const auto copy = [](int fd) { return UniqueFd(::dup(fd)); };
  const auto map = [&](const Arena& of, std::size_t block, std::uint64_t bytes, int memory) {
    std::vector<DeviceBlock> blocks;
    blocks.push_back({block, bytes, copy(memory)});
    return PeerArena::FromFds(copy(of.fd()), of.nonce(), blocks, sharing.name(), sharing);
  };
  int sum = -1;
  arena.exported()->Look([&](const auto& blocks) {
    EXPECT_TRUE(blocks[0].fd);
    EXPECT_FALSE(blocks[kSpare].fd) << "nobody has asked for it";
    EXPECT_EQ(blocks[kSum].bytes, kFloats * 4);
    sum = blocks[kSum].fd.get();
  });
  const auto mapped = map(arena, kSum, kFloats * 4, sum);
  ASSERT_TRUE(mapped.ok());
  EXPECT_NE(mapped->data(kSum), nullptr);
  EXPECT_EQ(mapped->data(kSpare), nullptr);
  EXPECT_EQ(PeerArena::FromFd(copy(arena.fd()), arena.nonce()).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(map(on_host, 0, kFloats * 4, sum).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(map(arena, 3, kFloats * 4, sum).error().code, ErrorCode::kInvalid) << "no such block";
  EXPECT_EQ(map(arena, kSum, kFloats * 4 - 4, sum).error().code, ErrorCode::kInvalid);
  const UniqueFd small(::memfd_create("small", MFD_CLOEXEC));
  EXPECT_EQ(map(arena, kSum, kFloats * 4, small.get()).error().code, ErrorCode::kUnavailable);
}

TEST(DeviceArenaBlocks, TakeMemoryWhenTheyAreFirstUsedAndAreHadByAskingAgain) {
  Device device;
  Arena arena = device.MakeArena().value();
  const auto server = ArenaServer::Start(arena, kKey, {.self = kOwner}).value();
  const auto map = [&] {
    return transport::MapPeer(server->address(), kReader, kOwner, kKey, kLong,
                              device.memory->sharing())
        .value();
  };
  const PeerArena before = map();
  EXPECT_NE(before.data(0), nullptr);
  EXPECT_NE(before.data(kSum), nullptr);
  EXPECT_EQ(before.data(kSpare), nullptr);
  EXPECT_FALSE(arena.backed(kSpare));
  const auto made = arena.Back(kSpare);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(arena.backed(kSpare));
  EXPECT_EQ(arena.Back(kSpare)->data(), made->data()) << "once";
  const float value = 7;
  device.memory->FromHost(made->data(), &value, sizeof value);
  EXPECT_EQ(before.data(kSpare), nullptr);
  const PeerArena after = map();
  float found = 0;
  device.memory->ToHost(&found, after.data(kSpare), sizeof found);
  EXPECT_EQ(found, value);
}

TEST(DeviceName, IsCutAndChecked) {
  const DeviceName name = DeviceName::Make("cuda", std::string(100, 'x'));
  EXPECT_TRUE(name.proper());
  EXPECT_FALSE(name.host());
  EXPECT_EQ(name.kind_text(), "cuda");
  EXPECT_EQ(name.unit_text(), std::string(47, 'x'));
  EXPECT_TRUE(DeviceName{}.proper());
  EXPECT_TRUE(DeviceName{}.host());
  DeviceName bad = name;
  bad.unit.fill('x');
  EXPECT_FALSE(bad.proper()) << "no end";
  bad = name;
  bad.kind[0] = '\n';
  EXPECT_FALSE(bad.proper()) << "a line break in somebody's log";
  bad = name;
  bad.kind[10] = 'x';
  EXPECT_FALSE(bad.proper()) << "something behind the end";
}

TEST(DeviceArenaDeathTest, TheHostCannotTouchIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Device device;
  const Arena arena = device.MakeArena().value();
  volatile std::byte* block = arena.block(kSum).data();
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        *block = std::byte{1};
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace lockstep::worker
