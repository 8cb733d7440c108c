#include "transport/ucx/wire.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transport/ucx/path.h"
#include "transport/ucx/report.h"

namespace lockstep::transport::ucx {
namespace {

std::span<const std::byte> Span(const HeaderBytes& header) {
  return std::span(header.data).first(header.size);
}

TEST(Wire, FetchRoundTrips) {
  const PieceName name{1, 2, std::uint64_t{3} << 40, 4, 5, std::uint64_t{6} << 33, 7};
  const auto read = DecodeFetch(Span(EncodeFetch({std::uint64_t{9} << 50, name})));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->fetch, std::uint64_t{9} << 50);
  EXPECT_EQ(read->name, name);
}

TEST(Wire, PieceAndMessageRoundTrip) {
  const auto piece = DecodePiece(Span(EncodePiece({8, PieceStatus::kOk, 4096})));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->fetch, 8u);
  EXPECT_EQ(piece->bytes, 4096u);
  EXPECT_EQ(DecodePiece(Span(EncodePiece({8, PieceStatus::kGone, 0})))->status, PieceStatus::kGone);
  EXPECT_EQ(DecodeMessage(Span(EncodeMessage(77))), 77u);
  EXPECT_TRUE(IsHandshake(Span(EncodeHandshake())));
}

TEST(Wire, NothingElseIsAccepted) {
  HeaderBytes fetch = EncodeFetch({1, {}});
  for (std::size_t bytes = 0; bytes < fetch.size; ++bytes) {
    EXPECT_FALSE(DecodeFetch(Span(fetch).first(bytes)));
  }
  EXPECT_FALSE(DecodePiece(Span(fetch)));
  EXPECT_FALSE(DecodeMessage(Span(fetch)));
  for (std::size_t at = 0; at < 8; ++at) {  // each byte of the prefix has one right value
    HeaderBytes other = fetch;
    other.data[at] ^= std::byte{1};
    EXPECT_FALSE(DecodeFetch(Span(other))) << at;
  }
  EXPECT_FALSE(DecodePiece(Span(EncodePiece({1, static_cast<PieceStatus>(2), 0}))));
  EXPECT_FALSE(DecodePiece(Span(EncodePiece({1, PieceStatus::kGone, 1}))));
  EXPECT_FALSE(IsHandshake({}));
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
      report);
  EXPECT_EQ(report.components, (std::vector<std::string>{"self", "ib"}));
  EXPECT_EQ(report.ways,
            (std::vector<Way>{{"self", "memory0", false}, {"rc_verbs", "rxe0:1", true}}));
}

TEST(Report, OfTheLibraryHere) {
  const Report report = Describe();
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.version.starts_with(report.built_with + ".")) << report.version;
  EXPECT_NE(std::ranges::find(report.components, "tcp"), report.components.end());
  EXPECT_FALSE(report.ways.empty());
}

}  // namespace
}  // namespace lockstep::transport::ucx
