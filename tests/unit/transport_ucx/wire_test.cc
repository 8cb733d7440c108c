#include "transport/ucx/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "transport/ucx/context.h"
#include "transport/ucx/path.h"
#include "transport/ucx/report.h"
#include "transport/ucx/transport_list.h"
#include "transport/ucx/ucx_transport.h"

namespace lockstep::transport::ucx {
namespace {

std::span<const std::byte> Span(const HeaderBytes& header) {
  return std::span(header.data).first(header.size);
}

constexpr std::uint64_t kTo = std::uint64_t{0xabcdef} << 40;

TEST(Wire, FetchRoundTrips) {
  const PieceName name{1, 2, std::uint64_t{3} << 40, 4, 5, std::uint64_t{6} << 33, 7};
  const auto header = EncodeFetch(kTo, {std::uint64_t{9} << 50, name});
  const auto read = DecodeFetch(Span(header));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->fetch, std::uint64_t{9} << 50);
  EXPECT_EQ(read->name, name);
  EXPECT_EQ(DecodeTo(Span(header)), kTo);
}

TEST(Wire, TheOthersRoundTrip) {
  const auto piece = DecodePiece(Span(EncodePiece(kTo, {8, PieceStatus::kOk, 4096})));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->fetch, 8u);
  EXPECT_EQ(piece->bytes, 4096u);
  EXPECT_EQ(DecodePiece(Span(EncodePiece(kTo, {8, PieceStatus::kGone, 0})))->status,
            PieceStatus::kGone);
  EXPECT_EQ(DecodeMessage(Span(EncodeMessage(kTo, 77))), 77u);
  EXPECT_EQ(DecodeHandshake(Span(EncodeHandshake(0, 5))), 5u);
  EXPECT_EQ(DecodeTo(Span(EncodeHandshake(0, 5))), 0u);
  EXPECT_TRUE(IsGoodbye(Span(EncodeGoodbye(kTo))));
  for (const HeaderBytes& header :
       {EncodeMessage(kTo, 1), EncodeHandshake(kTo, 1), EncodeGoodbye(kTo), EncodePing(kTo)}) {
    EXPECT_EQ(DecodeTo(Span(header)), kTo);
  }
}

TEST(Wire, NothingElseIsAccepted) {
  HeaderBytes fetch = EncodeFetch(kTo, {1, {}});
  for (std::size_t bytes = 0; bytes < fetch.size; ++bytes) {
    EXPECT_FALSE(DecodeFetch(Span(fetch).first(bytes)));
  }
  EXPECT_FALSE(DecodePiece(Span(fetch)));
  EXPECT_FALSE(DecodeMessage(Span(fetch)));
  EXPECT_FALSE(IsGoodbye(Span(fetch)));
  for (std::size_t at = 0; at < 8; ++at) {  // each byte before `to` has one right value
    HeaderBytes other = fetch;
    other.data[at] ^= std::byte{1};
    EXPECT_FALSE(DecodeFetch(Span(other))) << at;
  }
  EXPECT_FALSE(DecodePiece(Span(EncodePiece(kTo, {1, static_cast<PieceStatus>(2), 0}))));
  EXPECT_FALSE(DecodePiece(Span(EncodePiece(kTo, {1, PieceStatus::kGone, 1}))));
  EXPECT_FALSE(DecodeHandshake(Span(EncodeHandshake(kTo, 0))));
  EXPECT_FALSE(DecodeHandshake({}));
  EXPECT_FALSE(DecodeTo({}));
  HeaderBytes older = EncodeMessage(kTo, 1);
  older.data[0] = std::byte{1};
  EXPECT_FALSE(DecodeTo(Span(older)));
}

TEST(Wire, AnIntroductionGoesBeforeTheHandshake) {
  const std::string handshake = "the handshake's";
  const auto body = EncodeIntroduction({7, "an address"}, std::as_bytes(std::span(handshake)));
  std::span<const std::byte> rest = body;
  const auto read = DecodeIntroduction(rest);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->endpoints, 7u);
  EXPECT_EQ(read->address, "an address");
  EXPECT_TRUE(std::ranges::equal(rest, std::as_bytes(std::span(handshake))));
  // Shorter than it says.
  for (std::size_t bytes = 0; bytes < 8 + read->address.size(); ++bytes) {
    std::span<const std::byte> cut = std::span(body).first(bytes);
    EXPECT_FALSE(DecodeIntroduction(cut)) << bytes;
  }
}

TEST(TransportList, LosesTcpAndNothingElse) {
  EXPECT_EQ(WithoutTcp("all"), "^tcp");
  EXPECT_EQ(WithoutTcp("rc,self"), "rc,self");
  EXPECT_EQ(WithoutTcp("rc,tcp,self"), "rc,self");
  EXPECT_EQ(WithoutTcp("tcp"), "");
  EXPECT_EQ(WithoutTcp("tcp,all"), "^tcp");
  EXPECT_EQ(WithoutTcp("\\tcp,tcp:aux,rc_x"), "rc_x");
  EXPECT_EQ(WithoutTcp("tcpx"), "tcpx");
  EXPECT_EQ(WithoutTcp("^ib"), "^ib,tcp");
  EXPECT_EQ(WithoutTcp("^tcp"), "^tcp");
  EXPECT_EQ(WithoutTcp("^tcp,ib"), "^ib,tcp");
  EXPECT_EQ(WithoutTcp(""), "");
}

TEST(Context, HasNoTcpWhenToldSo) {
  const auto is_tcp = [](const Way& way) { return way.transport == "tcp"; };
  const auto all = Context::Open("0.0.0.0", Scope::kAll);
  ASSERT_TRUE(all.ok());
  EXPECT_TRUE(std::ranges::any_of((*all)->ways(), is_tcp));
  const auto without = Context::Open("0.0.0.0", Scope::kWithoutTcp);
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE((*without)->ways().empty());
  EXPECT_FALSE(std::ranges::any_of((*without)->ways(), is_tcp));

  // What the user names stays, without tcp.
  const std::map<std::string, std::string> expected = {{"tcp,self", ""},
                                                       {"tcp", "allows nothing but tcp"}};
  for (const auto& [list, error] : expected) {
    ::setenv("UCX_TLS", list.c_str(), 1);
    const auto context = Context::Open("0.0.0.0", Scope::kWithoutTcp);
    ::unsetenv("UCX_TLS");
    EXPECT_EQ(context.ok(), error.empty()) << list;
    if (context) {
      EXPECT_FALSE(std::ranges::any_of((*context)->ways(), is_tcp)) << list;
    } else {
      EXPECT_NE(context.error().message.find(error), std::string::npos) << context.error().message;
    }
  }
}

TEST(RdmaTransport, IsNotHadWithoutRdmaNorForLoopback) {
  Options options;
  options.job_key.assign(32, std::byte{7});
  const auto loopback = MakeUcxRdmaTransport(options);
  ASSERT_FALSE(loopback.ok());
  EXPECT_EQ(loopback.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(loopback.error().message.find("127.0.0.1"), std::string::npos);
  options.listen_host = "192.0.2.1";
  ::setenv("UCX_TLS", "posix,self", 1);
  const auto without = MakeUcxRdmaTransport(options);
  ::unsetenv("UCX_TLS");
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("no RDMA"), std::string::npos) << without.error().message;
}

TEST(Path, SaysRdmaAndLeavesOutLanesThatCarryNothing) {
  EXPECT_EQ(PathFromPrintedInfo("#                 lane[0]: cm rdmacm\n"
                                "#                 lane[1]:  1:rc_verbs/rxe0:1.0 md[1]       -> "
                                "md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0 wireup\n"
                                "#                 lane[2]:  2:ud_verbs/rxe0:1.0 md[1]       -> "
                                "md[1]/ib/sysdev[255] keepalive\n")
                .text,
            "rc_verbs/rxe0:1 (RDMA)");
  EXPECT_EQ(PathFromPrintedInfo("# lane[0]:  3:tcp/eth0.0 md[1]  -> md[1]/tcp/sysdev[255] am "
                                "keepalive\n")
                .text,
            "tcp/eth0");
  const PathReport path =
      PathFromPrintedInfo("# lane[0]:  3:ud_verbs/mlx4_0:1.0 md[1] -> md[1]/ib am\n");
  EXPECT_EQ(path.text, "ud_verbs/mlx4_0:1 (RDMA)");
  EXPECT_TRUE(path.rdma);
  EXPECT_FALSE(PathFromPrintedInfo("# lane[0]:  3:tcp/eth0.0 md[1] -> md[1]/tcp am\n").rdma);
  EXPECT_TRUE(IsRdma("dc_mlx5"));
  EXPECT_FALSE(IsRdma("tcp"));
  EXPECT_FALSE(IsRdma("sysv"));
}

TEST(Path, ReadsTheLanesThatUcxPrints) {
  EXPECT_EQ(
      PathFromPrintedInfo("#\n# UCP endpoint\n"
                          "#                 lane[0]: cm tcp\n"
                          "#                 lane[1]:  3:tcp/eth0.100.0 md[1]  -> md[1]/tcp am\n"
                          "#                 lane[2]: 12:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib\n"
                          "#                 lane[3]: 12:rc_mlx5/mlx5_0:1.1 md[4] -> md[4]/ib\n"
                          "#                am_send: 0..<egr/short>..8184\n")
          .text,
      "tcp/eth0.100 + rc_mlx5/mlx5_0:1");
  EXPECT_EQ(PathFromPrintedInfo("lane[0]: 1:tcp").text, "unknown");
  EXPECT_EQ(PathFromPrintedInfo("lane[0]:").text, "unknown");
  EXPECT_EQ(PathFromPrintedInfo("").text, "unknown");
}

TEST(Report, ReadsTheContextThatUcxPrints) {
  Report report;
  ReadPrintedContext(
      "#\n# UCP context\n#\n"
      "#     component 0  :  self\n"
      "#     component 4  :  ib\n"
      "#\n"
      "#            md 0  :  component 0  self \n"
      "#\n"
      "#      resource 0  :  md 0  dev 0  flags -- self/memory0\n"
      "#      resource 1  :  md 4  dev 1  flags -- rc_verbs/rxe0:1\n"
      "#      resource 2  :  md 4  dev 1  flags -s rc_verbs/rxe0:1\n"
      "#      resource 3  :  md 1  dev 2\n",
      report.components, report.ways);
  EXPECT_EQ(report.components, (std::vector<std::string>{"self", "ib"}));
  EXPECT_EQ(report.ways,
            (std::vector<Way>{{"self", "memory0", false}, {"rc_verbs", "rxe0:1", true}}));
}

TEST(Report, OfTheLibraryHere) {
  const Report report = Describe();
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.version.starts_with("1.")) << report.version;
  EXPECT_NE(report.library.find("libucp.so"), std::string::npos) << report.library;
  EXPECT_NE(std::ranges::find(report.components, "tcp"), report.components.end());
  EXPECT_FALSE(report.ways.empty());
}

}  // namespace
}  // namespace lockstep::transport::ucx
