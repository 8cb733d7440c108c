// Facts in, words out: which path it is, and why it is not a better one.
#include "transport/paths/judge.h"

#include <gmock/gmock.h>

namespace lockstep::transport::paths {
namespace {

using ::testing::HasSubstr;

RdmaPort Port(const std::string& device, const std::string& bridge) {
  RdmaPort port;
  port.device = device;
  port.state = "ACTIVE";
  port.place = {"pci0000:3a", bridge, "nic"};
  return port;
}

Facts OnGpu() {
  Facts facts;
  facts.gpu = true;
  facts.gpu_pci = "0000:3B:00.0";
  facts.device_exchange = true;
  facts.machine.kernel_major = 6;
  Gpu gpu;
  gpu.pci = "0000:3b:00.0";
  gpu.place = {"pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"};
  facts.machine.gpus = {gpu};
  facts.machine.rdma = {Port("mlx5_0", "0000:3a:00.0"), Port("mlx5_1", "0000:3a:02.0")};
  facts.machine.rdma_device_files = true;
  facts.machine.nvidia.driver = "580.1";
  facts.machine.nvidia.peermem = true;
  return facts;
}

Capabilities Ucx(bool cuda = true, const std::string& version = "1.18.0") {
  Capabilities capabilities;
  capabilities.name = "ucx";
  capabilities.version = version;
  capabilities.cuda_memory = cuda;
  return capabilities;
}

Capabilities Tcp() {
  Capabilities capabilities;
  capabilities.name = "tcp";
  return capabilities;
}

const Link kRdma{.path = {.text = "ucx: rc_mlx5/mlx5_0:1 (RDMA)", .rdma = true}};
const Link kFarRdma{.path = {.text = "ucx: rc_mlx5/mlx5_1:1 (RDMA)", .rdma = true}};
const Link kUcxTcp{.path = {.text = "ucx: tcp/eth0"}};
const Link kTcp{.path = {.text = "tcp"}};
const Link kMapped{.path = {.text = "tcp"}, .mapped = true, .same_host = true};

void ExpectLacking(const Finding& finding, Way expected, const std::string& why,
                   const std::string& remedy) {
  EXPECT_NE(Name(finding.had), Name(finding.expected));
  EXPECT_EQ(Name(finding.expected), Name(expected));
  EXPECT_THAT(finding.lacking.why, HasSubstr(why));
  EXPECT_THAT(finding.lacking.remedy, HasSubstr(remedy));
}

TEST(Paths, AllThatGpuDirectTakes) {
  const Finding finding = Judge(OnGpu(), Ucx(), kRdma);
  EXPECT_EQ(finding.had, Way::kGpuDirect);
  EXPECT_EQ(finding.expected, Way::kGpuDirect);
  EXPECT_EQ(finding.path, "ucx: rc_mlx5/mlx5_0:1 (RDMA), GPUDirect");
  EXPECT_FALSE(finding.lacking);
  EXPECT_FALSE(finding.advice);
}

TEST(Paths, AnythingLessIsStagedAndSaysWhy) {
  const Finding finding = Judge(OnGpu(), Ucx(/*cuda=*/false, "1.13.1"), kRdma);
  EXPECT_EQ(finding.had, Way::kRdma);
  EXPECT_EQ(finding.path, "ucx: rc_mlx5/mlx5_0:1 (RDMA), staged through host memory");
  ExpectLacking(finding, Way::kGpuDirect, "this UCX (1.13.1) was built without CUDA", "HPC-X");
}

TEST(Paths, ATransportThatStagesSaysSoItself) {
  Link link = kRdma;
  link.path.staged = true;
  EXPECT_EQ(Judge(OnGpu(), Ucx(false), link).path, link.path.text);
  link = kTcp;
  link.path.staged = true;
  EXPECT_EQ(Judge(OnGpu(), Tcp(), link).path, "tcp");
}

TEST(Paths, AUcxThatIsNotThereIsTheReason) {
  Facts facts = OnGpu();
  facts.gpu = false;
  facts.no_ucx = "UCX is not on this machine: libucp.so.0";
  ExpectLacking(Judge(facts, Tcp(), kTcp), Way::kRdma, facts.no_ucx, "lockstep-doctor");
  facts.machine.rdma.clear();
  EXPECT_FALSE(Judge(facts, Tcp(), kTcp).lacking);
}

TEST(Paths, GpuMemoryThatUcxMayNotUse) {
  Facts facts = OnGpu();
  facts.environment = {"UCX_TLS=rc,self"};
  ExpectLacking(Judge(facts, Ucx(false), kRdma), Way::kGpuDirect, "UCX_TLS=rc,self leaves CUDA out",
                "add cuda");
  for (const char* tls :
       {"UCX_TLS=rc,cuda", "UCX_TLS=rc,cuda_copy", "UCX_TLS=all", "UCX_TLS=^ud"}) {
    facts.environment = {tls};
    EXPECT_THAT(Judge(facts, Ucx(false), kRdma).lacking.why, HasSubstr("built without CUDA"))
        << tls;
  }
  facts.environment = {"UCX_TLS=^cuda"};
  EXPECT_THAT(Judge(facts, Ucx(false), kRdma).lacking.why, HasSubstr("leaves CUDA out"));
}

TEST(Paths, TheKernelsPart) {
  Facts facts = OnGpu();
  facts.machine.nvidia.peermem = false;
  ExpectLacking(Judge(facts, Ucx(), kRdma), Way::kGpuDirect, "neither nvidia_peermem nor dma-buf",
                "modprobe nvidia_peermem");
  facts.machine.nvidia.open_driver = true;
  EXPECT_EQ(Judge(facts, Ucx(), kRdma).had, Way::kGpuDirect);
  facts.machine.kernel_major = 5;
  facts.machine.kernel_minor = 11;
  ExpectLacking(Judge(facts, Ucx(), kRdma), Way::kGpuDirect, "neither", "Linux 5.12");
}

// UCX has dma-buf since 1.14, in the protocols that are the default since 1.16.
TEST(Paths, DmaBufTakesANewUcx) {
  Facts facts = OnGpu();
  facts.machine.nvidia.peermem = false;
  facts.machine.nvidia.open_driver = true;
  ExpectLacking(Judge(facts, Ucx(true, "1.13.1"), kRdma), Way::kGpuDirect,
                "UCX 1.13.1 knows no dma-buf", "1.16");
  ExpectLacking(Judge(facts, Ucx(true, "1.15.0"), kRdma), Way::kGpuDirect, "UCX_PROTO_ENABLE=y",
                "1.16");
  EXPECT_EQ(Judge(facts, Ucx(true, "1.16.0"), kRdma).had, Way::kGpuDirect);
  EXPECT_EQ(Judge(facts, Ucx(true, "2.0"), kRdma).had, Way::kGpuDirect);
  facts.environment = {"UCX_PROTO_ENABLE=y"};
  EXPECT_EQ(Judge(facts, Ucx(true, "1.15.0"), kRdma).had, Way::kGpuDirect);
  facts.environment = {"UCX_PROTO_ENABLE=n"};
  EXPECT_EQ(Judge(facts, Ucx(true, "1.18.0"), kRdma).had, Way::kRdma);
}

TEST(Paths, SwitchedOff) {
  Facts facts = OnGpu();
  facts.environment = {"UCX_IB_GPU_DIRECT_RDMA=n"};
  ExpectLacking(Judge(facts, Ucx(), kRdma), Way::kGpuDirect, "UCX_IB_GPU_DIRECT_RDMA=n", "unset");
  facts.environment = {"UCX_IB_GPU_DIRECT_RDMA=y"};
  EXPECT_EQ(Judge(facts, Ucx(), kRdma).had, Way::kGpuDirect);
}

TEST(Paths, AnExchangeInHostMemoryIsNotGpuDirect) {
  Facts facts = OnGpu();
  facts.device_exchange = false;
  ExpectLacking(Judge(facts, Ucx(), kRdma), Way::kGpuDirect, "host's memory", "exchange.memory");
}

TEST(Paths, RdmaThatIsThereAndNotTaken) {
  Facts facts = OnGpu();
  facts.gpu = false;
  EXPECT_EQ(Judge(facts, Ucx(), kRdma).had, Way::kRdma);
  EXPECT_FALSE(Judge(facts, Ucx(), kRdma).lacking);
  EXPECT_EQ(Judge(facts, Ucx(), kRdma).path, kRdma.path.text);
  ExpectLacking(Judge(facts, Tcp(), kTcp), Way::kRdma, "transport is tcp", "exchange.transport");
  ExpectLacking(Judge(facts, Tcp(), {.path = {.text = "tcp (TLS 1.3)", .encrypted = true}}),
                Way::kRdma, "exchange.encryption is on", "nobody else");
  ExpectLacking(Judge(facts, Ucx(), kUcxTcp), Way::kRdma, "another way", "lockstep-doctor");
  facts.environment = {"UCX_TLS=tcp,self"};
  ExpectLacking(Judge(facts, Ucx(), kUcxTcp), Way::kRdma, "UCX_TLS=tcp,self leaves RDMA out", "rc");
  facts.environment = {"UCX_NET_DEVICES=eth0"};
  ExpectLacking(Judge(facts, Ucx(), kUcxTcp), Way::kRdma, "UCX_NET_DEVICES=eth0", "mlx5_0:1");
  facts.environment = {"UCX_NET_DEVICES=mlx5_1:1", "UCX_TLS=rc,self"};
  ExpectLacking(Judge(facts, Ucx(), kUcxTcp), Way::kRdma, "another way", "lockstep-doctor");
  facts.machine.rdma_device_files = false;
  ExpectLacking(Judge(facts, Ucx(), kUcxTcp), Way::kRdma, "uverbs", "--device=/dev/infiniband");
  // A GPU's worker hears the same first.
  facts = OnGpu();
  ExpectLacking(Judge(facts, Tcp(), kTcp), Way::kGpuDirect, "transport is tcp",
                "exchange.transport");
}

TEST(Paths, WithoutRdmaTcpIsAllThatCanBeExpected) {
  Facts facts = OnGpu();
  for (RdmaPort& port : facts.machine.rdma) port.state = "DOWN";
  const Finding finding = Judge(facts, Ucx(), kUcxTcp);
  EXPECT_EQ(finding.had, Way::kUcxWithoutRdma);
  EXPECT_FALSE(finding.lacking);
  EXPECT_EQ(finding.path, "ucx: tcp/eth0, staged through host memory");
  // Who requires GPUDirect hears why all the same.
  EXPECT_THAT(WhyNotGpuDirect(facts, Ucx(), kUcxTcp).why, HasSubstr("no active RDMA port"));
  facts.gpu = false;
  EXPECT_THAT(WhyNotGpuDirect(facts, Ucx(), kUcxTcp).why, HasSubstr("CPU"));
}

TEST(Paths, OnOneHostNothingBetterIsExpected) {
  const Finding mapped = Judge(OnGpu(), Ucx(), kMapped);
  EXPECT_EQ(mapped.had, Way::kMapped);
  EXPECT_EQ(mapped.path, "mapped (device memory)");
  EXPECT_FALSE(mapped.lacking);
  Facts facts = OnGpu();
  facts.device_exchange = false;
  EXPECT_EQ(Judge(facts, Ucx(), kMapped).path, "mapped, staged through host memory");
  facts.gpu = false;
  EXPECT_EQ(Judge(facts, Ucx(), kMapped).path, "mapped");
  EXPECT_FALSE(Judge(OnGpu(), Tcp(), {.path = {.text = "tcp"}, .same_host = true}).lacking);
}

TEST(Paths, UcxCopiesBetweenGpusOfAHostByItself) {
  const Link link{.path = {.text = "ucx: tcp/lo + cuda_ipc/cuda"}, .same_host = true};
  EXPECT_EQ(Judge(OnGpu(), Ucx(), link).path,
            "ucx: tcp/lo + cuda_ipc/cuda, from GPU memory to GPU memory");
  EXPECT_EQ(Judge(OnGpu(), Ucx(false), link).path,
            "ucx: tcp/lo + cuda_ipc/cuda, staged through host memory");
  Facts facts = OnGpu();
  facts.device_exchange = false;
  EXPECT_EQ(Judge(facts, Ucx(), link).path,
            "ucx: tcp/lo + cuda_ipc/cuda, staged through host memory");
}

TEST(Paths, APortThatIsFartherFromTheGpuThanAnother) {
  const Finding finding = Judge(OnGpu(), Ucx(), kFarRdma);
  EXPECT_EQ(finding.had, Way::kGpuDirect);
  EXPECT_EQ(finding.advice.why, "mlx5_1:1 is farther from the GPU 0000:3B:00.0 than mlx5_0:1");
  EXPECT_EQ(finding.advice.remedy, "UCX_NET_DEVICES=mlx5_0:1");
  Facts facts = OnGpu();
  facts.gpu_pci.clear();
  EXPECT_FALSE(Judge(facts, Ucx(), kFarRdma).advice);
}

TEST(Paths, WhyThereIsNoGpuMemory) {
  EXPECT_FALSE(WhyNoGpuMemory(OnGpu(), Ucx()));
  EXPECT_THAT(WhyNoGpuMemory(OnGpu(), Tcp()).why, HasSubstr("tcp carries host memory only"));
  EXPECT_THAT(WhyNoGpuMemory(OnGpu(), Ucx(false, "1.13.1")).remedy, HasSubstr("--with-cuda"));
}

}  // namespace
}  // namespace lockstep::transport::paths
