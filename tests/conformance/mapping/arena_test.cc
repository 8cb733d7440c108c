// The arena's memory itself: what the kernel holds for us, and what a reader makes of memory that a
// stranger sends.
#include "transport/mapping/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/free_memory.h"
#include "transport/mapping/os.h"
#include "transport/mapping/peer_arena.h"

namespace lockstep::transport {
namespace {

const std::vector<BlockSpec> kSpecs = {{.name = "gradient", .bytes = 1000},
                                       {.name = "sum", .bytes = 5000, .page_aligned = true}};

Arena MakeArena() { return Arena::Create(kSpecs).value(); }

UniqueFd Duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

PeerArena MapOwn(const Arena& arena) {
  return PeerArena::FromFd(Duplicate(arena.fd()), arena.nonce()).value();
}

off_t SizeOf(int fd) {
  struct stat status {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return status.st_size;
}

TEST(Arena, LaysOutItsBlocks) {
  Arena arena = MakeArena();
  const PeerArena peer = MapOwn(arena);
  ASSERT_EQ(peer.blocks(), 2u);
  EXPECT_EQ(peer.name(0), "gradient");
  EXPECT_EQ(peer.Find("sum"), 1u);
  EXPECT_EQ(peer.Find("other"), std::nullopt);
  EXPECT_EQ(arena.Find("sum"), 1u);
  EXPECT_EQ(peer.bytes(1), 5000u);
  EXPECT_EQ(arena.block(1).size(), 5000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.block(0).data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(peer.data(1)) %
                static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
            0u);
  EXPECT_TRUE(std::ranges::all_of(arena.block(1), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, RefusesSpecsThatMakeNoLayout) {
  const auto refused = [](std::vector<BlockSpec> specs) {
    const auto arena = Arena::Create(specs);
    return !arena && arena.error().code == ErrorCode::kInvalid;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{.name = "", .bytes = 1}}));
  EXPECT_TRUE(refused({{.name = "two words", .bytes = 1}}));
  EXPECT_TRUE(refused({{.name = std::string(48, 'x'), .bytes = 1}}));
  EXPECT_TRUE(refused({{.name = "a", .bytes = 1}, {.name = "a", .bytes = 1}}));
  EXPECT_TRUE(refused({{.name = "a", .bytes = ~std::uint64_t{0}}}));
  EXPECT_TRUE(refused({{.name = "a", .bytes = 1ull << 46}, {.name = "b", .bytes = 1ull << 46}}));
  EXPECT_TRUE(refused(std::vector<BlockSpec>(kMaxArenaBlocks + 1)));
}

TEST(Arena, TakesMemoryWhereItIsWritten) {
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  auto made = Arena::Create(
      std::vector<BlockSpec>{{.name = "a", .bytes = 64 * page}, {.name = "b", .bytes = 64 * page}});
  ASSERT_TRUE(made.ok());
  const auto backed = [&] {
    struct stat status {};
    EXPECT_EQ(fstat(made->fd(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  };
  const std::uint64_t before = backed();
  EXPECT_LT(before, 4 * page) << "nothing is written but its header";
  std::ranges::fill(made->block(1).first(32 * page), std::byte{1});
  EXPECT_GE(backed(), before + 32 * page);
  EXPECT_LT(backed(), before + 34 * page);
}

TEST(Arena, ThereNeedBeNoMemoryForWhatIsSpare) {
  const std::uint64_t too_much = 2 * FreeMemoryBytes();
  EXPECT_TRUE(Arena::Create(std::vector<BlockSpec>{{.name = "a", .bytes = 4096},
                                                   {.name = "b", .bytes = too_much, .spare = true}})
                  .ok());
  EXPECT_FALSE(Arena::Create(std::vector<BlockSpec>{{.name = "a", .bytes = too_much}}).ok());
}

TEST(Arena, TooLargeIsAnErrorAtCreation) {
  const std::uint64_t free = FreeMemoryBytes();
  ASSERT_GT(free, 0u);
  const auto arena = Arena::Create(std::vector<BlockSpec>{{.name = "huge", .bytes = 1ull << 45}});
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(arena.error().message.find("free memory"), std::string::npos);
}

TEST(Arena, OverTheFileSizeLimitIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 8192, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto arena = Arena::Create(kSpecs);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.error().code, ErrorCode::kUnavailable);
}

TEST(Arena, CannotShrinkGrowOrLosePages) {
  Arena arena = MakeArena();
  const off_t size = SizeOf(arena.fd());
  EXPECT_EQ(ftruncate(arena.fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(arena.fd(), 2 * size), -1);
  EXPECT_EQ(fallocate(arena.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size), -1);
  EXPECT_EQ(madvise(arena.memory().data(), arena.memory().size(), MADV_REMOVE), -1);
  EXPECT_EQ(fcntl(arena.fd(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "the seals are final";
  EXPECT_EQ(SizeOf(arena.fd()), size);
}

TEST(Arena, NobodyWithTheDescriptorCanWrite) {
  Arena arena = MakeArena();
  arena.block(0)[0] = std::byte{7};
  const std::string path = "/proc/self/fd/" + std::to_string(arena.fd());
  const UniqueFd reopened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(reopened) << "the premise: access modes alone would keep nobody from writing";
  const auto bytes = arena.memory().size();
  for (const int fd : {arena.fd(), reopened.get()}) {
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void* read_only = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(read_only, MAP_FAILED);
    EXPECT_EQ(mprotect(read_only, bytes, PROT_READ | PROT_WRITE), -1) << "no upgrade later";
    munmap(read_only, bytes);
  }
  arena.block(0)[0] = std::byte{8};
  EXPECT_EQ(MapOwn(arena).data(0)[0], std::byte{8}) << "the owner still writes";
}

TEST(ArenaDeathTest, PeersMappingIsReadOnly) {
  const Arena arena = MakeArena();
  const PeerArena peer = MapOwn(arena);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(peer.data(0)) = std::byte{1}, "");
}

TEST(Arena, GenerationsTellWhatMayBeRead) {
  Arena arena = MakeArena();
  const PeerArena peer = MapOwn(arena);
  EXPECT_EQ(peer.Generation(0), kNoGeneration);
  EXPECT_FALSE(peer.StillValid(0, kNoGeneration));

  arena.BeginWrite(0);
  arena.block(0)[999] = std::byte{1};
  arena.Publish(0, 5);
  EXPECT_EQ(peer.Generation(0), 5u);
  EXPECT_EQ(peer.data(0)[999], std::byte{1});
  EXPECT_TRUE(peer.StillValid(0, 5));
  EXPECT_EQ(peer.Generation(1), kNoGeneration) << "each block has its own";

  arena.BeginWrite(0);
  EXPECT_FALSE(peer.StillValid(0, 5));
  EXPECT_EQ(peer.Generation(0), kNoGeneration);
  arena.BeginWrite(0);  // the first write was given up
  arena.Publish(0, 6);
  EXPECT_FALSE(peer.StillValid(0, 5));
  EXPECT_TRUE(peer.StillValid(0, 6));
}

TEST(ArenaDeathTest, GenerationsOnlyGrow) {
  Arena arena = MakeArena();
  EXPECT_DEATH(arena.Publish(0, 1), "was not begun");
  arena.BeginWrite(0);
  arena.Publish(0, 3);
  EXPECT_DEATH(arena.Publish(0, 4), "was not begun");
  arena.BeginWrite(0);
  EXPECT_DEATH(arena.Publish(0, 3), "from generation 3 to 3");
}

TEST(Arena, MappingOutlivesTheOwnersObject) {
  auto arena = std::make_unique<Arena>(MakeArena());
  arena->BeginWrite(1);
  arena->block(1)[4999] = std::byte{9};
  arena->Publish(1, 1);
  const PeerArena peer = MapOwn(*arena);
  arena.reset();
  EXPECT_EQ(peer.data(1)[4999], std::byte{9});
  EXPECT_TRUE(peer.StillValid(1, 1));
}

// Memory such as a hostile or broken peer might send.
class StrangeMemory : public ::testing::Test {
 protected:
  static constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  static constexpr std::size_t kBytes = 16384;

  // An own arena's bytes, changed by `spoil`.
  template <class Spoil>
  UniqueFd Make(Spoil spoil, int seals = kAllSeals, std::size_t bytes = kBytes) {
    std::vector<std::byte> image(arena_.memory().begin(), arena_.memory().end());
    EXPECT_EQ(image.size(), kBytes);
    spoil(reinterpret_cast<ArenaHeader&>(image[0]), reinterpret_cast<BlockEntry&>(image[64]));
    UniqueFd fd(memfd_create("strange", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(pwrite(fd.get(), image.data(), bytes, 0), static_cast<ssize_t>(bytes));
    if (seals != 0) {
      EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    }
    return fd;
  }

  void ExpectRefused(const UniqueFd& fd, const std::string& why) {
    const auto peer = PeerArena::FromFd(fd, arena_.nonce());
    ASSERT_FALSE(peer.ok()) << "wanted: " << why;
    EXPECT_EQ(peer.error().code, ErrorCode::kInvalid);
    EXPECT_NE(peer.error().message.find(why), std::string::npos) << peer.error().message;
  }

  static void AsIs(ArenaHeader&, BlockEntry&) {}

  Arena arena_ = MakeArena();
};

TEST_F(StrangeMemory, AnUnspoiltCopyIsTaken) {
  EXPECT_TRUE(PeerArena::FromFd(Make(AsIs), arena_.nonce()).ok());
}

TEST_F(StrangeMemory, NotAMemoryFile) {
  ExpectRefused(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)), "not a memory file");
  ExpectRefused(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "not a memory file");
  ExpectRefused(UniqueFd(), "not a memory file");
}

TEST_F(StrangeMemory, NotSealed) {
  ExpectRefused(Make(AsIs, 0), "not sealed");
  ExpectRefused(Make(AsIs, F_SEAL_GROW | F_SEAL_FUTURE_WRITE), "not sealed");
  ExpectRefused(Make(AsIs, F_SEAL_SHRINK | F_SEAL_GROW), "not sealed");
}

TEST_F(StrangeMemory, TooSmallOrCutShort) {
  ExpectRefused(Make(AsIs, kAllSeals, 0), "too small");
  ExpectRefused(Make(AsIs, kAllSeals, 63), "too small");
  ExpectRefused(Make(AsIs, kAllSeals, 64), "its size");
  ExpectRefused(Make(AsIs, kAllSeals, kBytes - 1), "its size");
}

TEST_F(StrangeMemory, WithHoles) {
  const UniqueFd fd = Make(AsIs, 0);
  ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals), 0);
  if (TouchingAHoleMayFail()) {
    ExpectRefused(fd, "holes");
    return;
  }
  const auto peer = PeerArena::FromFd(fd, arena_.nonce());
  ASSERT_TRUE(peer.ok()) << peer.error().message;
  const std::span<const std::byte> block(peer->data(1), peer->bytes(1));
  EXPECT_TRUE(std::ranges::all_of(block.first(4096), [](std::byte b) { return b == std::byte{0}; }))
      << "what was never written reads as zeros, and ends nobody";
}

TEST_F(StrangeMemory, WithALyingHeader) {
  using H = ArenaHeader;
  using E = BlockEntry;
  ExpectRefused(Make([](H& h, E&) { h.magic ^= 1; }), "magic");
  ExpectRefused(Make([](H& h, E&) { ++h.version; }), "version");
  ExpectRefused(Make([](H& h, E&) { h.total_bytes *= 2; }), "its size");
  ExpectRefused(Make([](H& h, E&) { h.nonce[15] ^= std::byte{1}; }), "nonce");
  ExpectRefused(Make([](H& h, E&) { h.device_bytes = 1 << 20; }), "not all of its arena");
  ExpectRefused(Make([](H& h, E&) { h.device_bytes = 64; }), "lies outside");
  ExpectRefused(Make([](H& h, E&) { h.block_count = 0; }), "0 blocks");
  ExpectRefused(Make([](H& h, E&) { h.block_count = 1000; }), "1000 blocks");
  ExpectRefused(Make([](H& h, E&) { h.block_count = ~0u; }), "blocks");
}

TEST_F(StrangeMemory, WithALyingTable) {
  using H = ArenaHeader;
  using E = BlockEntry;
  ExpectRefused(Make([](H&, E& e) { e.offset = 0; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.offset += 4; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.offset = kBytes + 64; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.bytes = kBytes - e.offset + 1; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.bytes = ~std::uint64_t{0}; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.offset = ~std::uint64_t{63}; }), "lies outside");
  ExpectRefused(Make([](H&, E& e) { e.name.fill('x'); }), "name");
  ExpectRefused(Make([](H&, E& e) { e.name[0] = 0; }), "name");
}

}  // namespace
}  // namespace lockstep::transport
