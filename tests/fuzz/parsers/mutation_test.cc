// The parsers under thousands of seeded mutations of good files. A failure prints the seed.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "coordinator/checkpoint/safetensors.h"
#include "tests/fuzz/parsers/targets.h"
#include "tests/temp_folder.h"
#include "tests/unit/data/fixtures.h"

namespace lockstep::fuzz {
namespace {

using Target = bool (*)(std::span<const std::uint8_t>);

bool Run(Target target, const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees each step beyond it.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  return target(exact);
}

void MutateOnce(RandomStream& random, std::string& bytes) {
  const std::size_t at = bytes.empty() ? 0 : random.NextBelow(bytes.size());
  const std::size_t length = random.NextBelow(16);
  switch (bytes.empty() ? 5 : random.NextBelow(6)) {
    case 0:
      bytes[at] = static_cast<char>(random.NextWord());
      break;
    case 1:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.NextBelow(8)));
      break;
    case 2:
      bytes.resize(at);
      break;
    case 3:
      bytes.erase(at, length);
      break;
    case 4:
      bytes.insert(at, bytes.substr(random.NextBelow(bytes.size()), length));
      break;
    default:
      bytes.insert(at, length, random.NextBelow(2) == 0 ? '\xff' : '9');
      break;
  }
}

// Most headers are at the front: the mutations there are the telling ones.
void Mutate(RandomStream& random, std::string& bytes) {
  const std::size_t count = 1 + random.NextBelow(4);
  const std::size_t front = std::min<std::size_t>(bytes.size(), 96);
  for (std::size_t i = 0; i < count; ++i) {
    if (random.NextBelow(2) == 0) {
      std::string head = bytes.substr(0, front);
      MutateOnce(random, head);
      bytes.replace(0, std::min(front, bytes.size()), head);
    } else {
      MutateOnce(random, bytes);
    }
  }
}

void Storm(Target target, const std::vector<std::string>& corpus, std::uint64_t rounds) {
  for (const std::string& seed : corpus) ASSERT_TRUE(Run(target, seed)) << "a good file is refused";
  std::uint64_t refused = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    RandomStream random(1, round);
    std::string bytes = corpus[random.NextBelow(corpus.size())];
    Mutate(random, bytes);
    refused += Run(target, bytes) ? 0 : 1;
  }
  EXPECT_GT(refused, rounds / 4) << "mutations go unnoticed";
}

std::string Gzip(const std::string& bytes) {
  const test::TempFolder folder;
  test::WriteGzip(folder / "a.gz", bytes);
  return test::ReadFile(folder / "a.gz");
}

std::string Safetensors(const std::vector<coordinator::FileTensor>& tensors,
                        coordinator::Metadata metadata) {
  const test::TempFolder folder;
  auto writer = coordinator::SafetensorsWriter::Create(folder / "a", tensors, std::move(metadata));
  LOCKSTEP_CHECK(writer.ok());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::size_t bytes = 4;
    for (std::uint64_t extent : tensors[i].shape) bytes *= extent;
    LOCKSTEP_CHECK((*writer)->Append(i, std::vector<std::byte>(bytes)).ok());
  }
  LOCKSTEP_CHECK((*writer)->Commit().ok());
  return test::ReadFile(folder / "a");
}

TEST(ParserMutations, Idx) {
  Storm(idx,
        {test::IdxHeader({6, 3, 4}) + test::Pixels(6, 12), test::IdxHeader({9}) + "123456789",
         test::IdxHeader({1, 1, 1}) + "1"},
        20000);
}

TEST(ParserMutations, Cifar10) {
  Storm(cifar10, {test::CifarRecord(1, 2), test::CifarRecord(9, 2) + test::CifarRecord(0, 8)},
        4000);
}

TEST(ParserMutations, Gzip) {
  Storm(
      gzip,
      {Gzip(test::IdxHeader({9}) + "123456789"),
       Gzip(test::IdxHeader({3000}) + std::string(3000, 'a')), test::IdxHeader({9}) + "123456789"},
      5000);
}

TEST(ParserMutations, Safetensors) {
  Storm(safetensors,
        {Safetensors({{"weight", "F32", {3, 4}}, {"bias", "F32", {5}}}, {{"round", "17"}}),
         Safetensors({{"a", "F32", {}}, {"b", "I32", {0, 7}}, {"c", "F32", {2}}}, {}),
         Safetensors({}, {})},
        10000);
}

TEST(ParserMutation, Slowdowns) {
  Storm(slowdown,
        {"worker=2,factor=4,from=10s,for=5s,seed=7\nfactor=2",
         "pattern=slow-worker,p=0.1,factor=2..5,delay=10ms..50ms",
         "pattern=disrupted,length=20s,gap=5s,factor=3,workers=8",
         "pattern=power-law,alpha=1.5,max=10\npattern=pause,every=10s,length=1s",
         "pattern=delay,p=0.02,times=18", "pattern=trace,points=0:1;10:4;12.5:1,loop=1",
         "# a trace\n0 1\n2.5 4\n10 1\n"},
        20'000);
}

}  // namespace
}  // namespace lockstep::fuzz
