// The other process of ucx_process_test: serves a pattern, answers each message with how many it
// has seen, and ends with its standard input. Prints its address.
#include <cstdio>

#include "tests/unit/transport_ucx/node.h"

namespace lockstep::transport::test {
namespace {

int Main() {
  std::vector<std::byte> source = Pattern(4u << 20);
  RegionId region;
  Node node(MakeOptions(1), [&](PeerId, const PieceName& name) {
    ServeAnswer answer;
    answer.have = name.offset <= source.size() && name.bytes <= source.size() - name.offset;
    answer.slice = {region, name.offset, name.bytes};
    return answer;
  });
  node.Start();
  region = *node.Call(
      [&] { return node.transport().Register(MemoryKind::kHost, source.data(), source.size()); });
  std::size_t messages = 0;
  node.Call([&] {
    node.on_message = [&](PeerId peer) {
      ++messages;
      static_cast<void>(node.transport().Send(peer, Bytes(std::to_string(messages))));
    };
  });
  std::printf("%s\n", node.transport().address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::transport::test

int main() { return lockstep::transport::test::Main(); }
