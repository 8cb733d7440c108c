// Arenas in the GPU's memory, between two processes: sums and copies out of a peer's memory, torn
// passes, and an owner that is killed while a kernel of the reader is in its memory.
//
// The program is its own second process: with --owner it has an arena and obeys what it reads from
// its standard input.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "tests/gpu/cuda/long_reader.h"
#include "tests/gpu/device.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/map_peer.h"
#include "worker/compute/cuda/handles.h"
#include "worker/memory/exchange_memory.h"

extern char** environ;

namespace lockstep::worker {
namespace {

using transport::Arena;
using transport::ArenaServer;
using transport::BlockSpec;
using transport::MapPeer;
using transport::PeerArena;

const MemberId kOwner{WorkerId(3), Incarnation(2)};
const MemberId kReader{WorkerId(1), Incarnation(1)};
const std::vector<std::byte> kKey(32, std::byte{0x5a});
constexpr Duration kLong = std::chrono::seconds(60);
// More than the GPU's caches hold.
constexpr std::size_t kFloats = (256u << 20) / sizeof(float);
constexpr std::size_t kBytes = kFloats * sizeof(float);

void Fill(ExchangeMemory& memory, const Arena& arena, std::size_t count, float value) {
  const std::vector<float> values(count, value);
  memory.FromHost(arena.block(0).data(), values.data(), count * sizeof(float));
}

// "write G" fills and publishes, "begin G" fills half, "random G" fills with RandomFloats(.., G).
int RunOwner() {
  const auto gpu = Gpu();
  const std::shared_ptr<ExchangeMemory> memory = gpu->MakeExchangeMemory();
  auto arena =
      Arena::Create(std::vector<BlockSpec>{{.name = "sum", .bytes = kBytes, .page_aligned = true}},
                    memory->sharing());
  if (!arena) {
    std::cout << "cannot: " << arena.error().message << std::endl;
    return 1;
  }
  const auto server = ArenaServer::Start(*arena, kKey, {.self = kOwner}).value();
  std::cout << server->address() << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    const auto generation = std::stoul(command.substr(command.find(' ')));
    const auto value = static_cast<float>(generation);
    arena->BeginWrite(0);
    if (command.starts_with("begin")) {
      Fill(*memory, *arena, kFloats / 2, value);
    } else {
      if (command.starts_with("random")) {
        const std::vector<float> values = RandomFloats(kFloats, generation);
        memory->FromHost(arena->block(0).data(), values.data(), kBytes);
      } else {
        Fill(*memory, *arena, kFloats, value);
      }
      arena->Publish(0, generation);
    }
    std::cout << "done" << std::endl;
  }
  return 0;
}

// Another process: this one may have no copy of a process that has used CUDA, so it is not forked.
class OwnerProcess {
 public:
  OwnerProcess() {
    int down[2], up[2];
    LOCKSTEP_CHECK(pipe(down) == 0 && pipe(up) == 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, down[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, up[1], STDOUT_FILENO);
    for (const int fd : {down[0], down[1], up[0], up[1]}) {
      posix_spawn_file_actions_addclose(&files, fd);
    }
    std::string program = "/proc/self/exe", option = "--owner";
    char* arguments[] = {program.data(), option.data(), nullptr};
    const int failed = posix_spawn(&pid_, program.c_str(), &files, nullptr, arguments, environ);
    LOCKSTEP_CHECK(failed == 0, "no second process: error {}", failed);
    posix_spawn_file_actions_destroy(&files);
    close(down[0]);
    close(up[1]);
    to_ = down[1];
    from_ = fdopen(up[0], "r");
  }
  ~OwnerProcess() {
    Kill();
    close(to_);
    std::fclose(from_);
  }

  std::string Hear() {
    std::string line;
    for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_)) {
      line += static_cast<char>(c);
    }
    return line;
  }
  std::string Ask(const std::string& command) {
    const std::string line = command + "\n";
    LOCKSTEP_CHECK(write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    return Hear();
  }
  // Returns when it is gone and reaped.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  std::FILE* from_ = nullptr;
};

// Host memory that the device sees.
class ReaderState {
 public:
  ReaderState() {
    cuda::Check(
        cudaHostAlloc(reinterpret_cast<void**>(&state_), sizeof *state_, cudaHostAllocMapped),
        "allocating");
    state_->stop = 0;
    state_->passes = 0;
    state_->wrong = 0;
  }
  ~ReaderState() { cudaFreeHost(state_); }
  cuda::LongReaderState* get() const { return state_; }

  // False: not within a minute.
  bool AwaitPasses(std::uint32_t passes) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (state_->passes < passes) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

 private:
  cuda::LongReaderState* state_ = nullptr;
};

class GpuArena : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(address_.starts_with("mapping:")) << address_; }

  PeerArena Map() {
    auto peer = MapPeer(address_, kReader, kOwner, kKey, kLong, memory_->sharing());
    LOCKSTEP_CHECK(peer.ok(), "{}", peer.error().message);
    return *std::move(peer);
  }
  static const float* Floats(const PeerArena& peer) {
    return reinterpret_cast<const float*>(peer.data(0));
  }
  std::vector<float> Read(const float* device) {
    std::vector<float> values(kFloats);
    memory_->ToHost(values.data(), device, kBytes);
    return values;
  }
  float* NewFloats() { return reinterpret_cast<float*>(memory_->Allocate(kBytes).value()); }
  void Free(float* floats) { memory_->Free(reinterpret_cast<std::byte*>(floats), kBytes); }

  OwnerProcess owner_;
  const std::string address_ = owner_.Hear();
  std::unique_ptr<Compute> gpu_ = Gpu();
  std::shared_ptr<ExchangeMemory> memory_ = gpu_->MakeExchangeMemory();
};

TEST_F(GpuArena, SumsAndCopiesOutOfAPeersMemory) {
  ASSERT_EQ(owner_.Ask("random 7"), "done");
  const PeerArena peer = Map();
  ASSERT_EQ(peer.Generation(0), 7u);
  const std::vector<float> theirs = RandomFloats(kFloats, 7);
  const std::vector<float> ours = RandomFloats(kFloats, 8);
  float* own = NewFloats();
  float* out = NewFloats();
  memory_->FromHost(own, ours.data(), kBytes);
  const std::vector<Input> inputs = {{own, 0.3f}, {Floats(peer), 0.7f}};
  memory_->WeightedSum(inputs, out, kFloats, /*large=*/false);
  memory_->Finish();
  EXPECT_TRUE(peer.StillValid(0, 7));
  std::vector<float> expected(kFloats);
  const std::vector<Input> on_host = {{ours.data(), 0.3f}, {theirs.data(), 0.7f}};
  WeightedSum(on_host, expected.data(), kFloats);
  EXPECT_TRUE(SameBits(Read(out), expected));
  memory_->Copy(out, Floats(peer), kFloats, /*large=*/false);
  memory_->Finish();
  EXPECT_TRUE(SameBits(Read(out), theirs));
  Free(own);
  Free(out);
}

TEST_F(GpuArena, APassWhileItIsRewrittenIsTorn) {
  ASSERT_EQ(owner_.Ask("write 1"), "done");
  const PeerArena peer = Map();
  ASSERT_EQ(peer.Generation(0), 1u);
  ASSERT_EQ(owner_.Ask("begin 2"), "done");
  const std::vector<float> found = Read(Floats(peer));
  EXPECT_EQ(found.front(), 2) << "the pass has seen bytes of both";
  EXPECT_EQ(found.back(), 1);
  EXPECT_FALSE(peer.StillValid(0, 1));
}

TEST_F(GpuArena, SurvivesAnOwnerKilledWhileAKernelReads) {
  ASSERT_EQ(owner_.Ask("write 5"), "done");
  const PeerArena peer = Map();
  ASSERT_EQ(peer.Generation(0), 5u);
  const cuda::Stream stream;
  const ReaderState state;
  cuda::StartLongReader(stream.get(), Floats(peer), kFloats, 5.0f, 10'000, state.get());
  ASSERT_TRUE(state.AwaitPasses(1)) << "the kernel does not run";
  owner_.Kill();
  // Passes that began after it was gone.
  const bool goes_on = state.AwaitPasses(state.get()->passes + 3);
  state.get()->stop = 1;
  cuda::Check(cudaStreamSynchronize(stream.get()), "reading the memory of a process that is gone");
  EXPECT_TRUE(goes_on);
  EXPECT_EQ(state.get()->wrong, 0u);
  EXPECT_TRUE(peer.StillValid(0, 5)) << "nothing was written";
  // And anew.
  float* out = NewFloats();
  const Input input{Floats(peer), 2};
  memory_->WeightedSum({&input, 1}, out, kFloats, /*large=*/false);
  memory_->Finish();
  EXPECT_EQ(Read(out), std::vector<float>(kFloats, 10));
  EXPECT_TRUE(peer.StillValid(0, 5));
  Free(out);
}

TEST_F(GpuArena, AnOwnerKilledWhileItWritesLeavesNothingToRead) {
  ASSERT_EQ(owner_.Ask("write 5"), "done");
  const PeerArena peer = Map();
  const cuda::Stream stream;
  const ReaderState state;
  cuda::StartLongReader(stream.get(), Floats(peer), kFloats, 5.0f, 10'000, state.get());
  ASSERT_TRUE(state.AwaitPasses(1)) << "the kernel does not run";
  ASSERT_EQ(owner_.Ask("begin 6"), "done");
  owner_.Kill();
  const bool goes_on = state.AwaitPasses(state.get()->passes + 3);
  state.get()->stop = 1;
  cuda::Check(cudaStreamSynchronize(stream.get()), "reading the memory of a process that is gone");
  EXPECT_TRUE(goes_on);
  EXPECT_GT(state.get()->wrong, 0u) << "the kernel has seen bytes of both";
  EXPECT_FALSE(peer.StillValid(0, 5));
  EXPECT_FALSE(peer.StillValid(0, 6));
}

TEST_F(GpuArena, IsNotForTheHost) {
  const auto peer = MapPeer(address_, kReader, kOwner, kKey, kLong);
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code, ErrorCode::kUnavailable);
}

}  // namespace

int Main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  if (const auto count = CudaDeviceCount(); !count) {
    std::printf("skipped: %s\n", count.error().message.c_str());
    return kSkipped;
  }
  if (argc > 1 && std::string(argv[1]) == "--owner") return RunOwner();
  return RUN_ALL_TESTS();
}

}  // namespace lockstep::worker

int main(int argc, char** argv) { return lockstep::worker::Main(argc, argv); }
