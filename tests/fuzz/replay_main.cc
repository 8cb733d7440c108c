// A target without libFuzzer: its seeds, the files of its corpus, and seeded mutations of both.
//
//   replay_NAME [--refuses] [--mutations N] [FOLDER ...]
//   replay_NAME --only N [FOLDER ...]     mutation N, which a failure names
//   replay_NAME --write FOLDER      the seeds as files, for libFuzzer
//
// --refuses: a quarter of the mutations has to be refused, else they go unnoticed.
#include <fmt/format.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/random.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

// For a failure: the mutation under way. --only runs it alone.
std::atomic<std::uint64_t> g_under_way = ~std::uint64_t{0};

extern "C" void SayMutation(int signal) {
  char line[64] = "mutation ";
  char digits[24];
  std::size_t at = std::strlen(line);
  std::size_t count = 0;
  for (std::uint64_t n = g_under_way; count == 0 || n > 0; n /= 10) {
    digits[count++] = static_cast<char>('0' + n % 10);
  }
  while (count > 0) line[at++] = digits[--count];
  line[at++] = '\n';
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, at);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

bool RunExact(const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees each step beyond it.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  return Run(exact);
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

std::vector<std::string> ReadFolder(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const fs::path& path : paths) {
    std::ifstream in(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return files;
}

void WriteSeeds(const fs::path& folder) {
  fs::create_directories(folder);
  const std::vector<std::string> seeds = Seeds();
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(folder / fmt::format("seed-{}", i), std::ios::binary) << seeds[i];
  }
}

int Main(const std::vector<std::string>& arguments) {
  std::uint64_t first = 0;
  std::uint64_t mutations = 0;
  bool refuses = false;
  std::vector<std::string> inputs = Seeds();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    LOCKSTEP_CHECK(RunExact(inputs[i]), "seed {} is refused", i);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--write") {
      WriteSeeds(arguments.at(i + 1));
      return 0;
    }
    if (arguments[i] == "--refuses") {
      refuses = true;
    } else if (arguments[i] == "--mutations") {
      mutations = std::strtoull(arguments.at(++i).c_str(), nullptr, 10);
    } else if (arguments[i] == "--only") {
      first = std::strtoull(arguments.at(++i).c_str(), nullptr, 10);
      mutations = first + 1;
    } else {
      for (std::string& file : ReadFolder(arguments[i])) {
        RunExact(file);
        inputs.push_back(std::move(file));
      }
    }
  }
  std::uint64_t refused = 0;
  std::signal(SIGABRT, SayMutation);
  for (std::uint64_t i = first; i < mutations; ++i) {
    RandomStream random(1, i);
    std::string bytes = inputs[random.NextBelow(inputs.size())];
    Mutate(random, bytes);
    g_under_way = i;
    refused += RunExact(bytes) ? 0 : 1;
  }
  std::printf("%zu inputs, %llu mutations of which %llu refused\n", inputs.size(),
              static_cast<unsigned long long>(mutations), static_cast<unsigned long long>(refused));
  LOCKSTEP_CHECK(!refuses || refused >= mutations / 4, "mutations go unnoticed");
  return 0;
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  return lockstep::fuzz::Main(std::vector<std::string>(argv + 1, argv + argc));
}
