// Facts in, verdicts out; and how they are shown.
#include "tools/doctor/judge.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tools/doctor/render.h"

namespace lockstep::doctor {
namespace {

using ::testing::HasSubstr;

RdmaPort Port() {
  RdmaPort port;
  port.device = "mlx5_0";
  port.state = "ACTIVE";
  port.link_layer = "Ethernet";
  port.rate = "100 Gb/sec (4X EDR)";
  port.netdev = "ens1";
  port.address = "192.168.7.1";
  port.gids = {{0, "fe80::1", "RoCE v2"}};
  port.place = {"pci0000:3a", "0000:3a:00.0", "0000:3c:00.0"};
  return port;
}

// A machine with everything, and everything well.
Facts Well() {
  Facts facts;
  facts.version = "0.1.0";
  facts.machine.kernel_major = 6;
  facts.cuda.built = true;
  facts.cuda.version = "13.0";
  facts.cuda.driver = "13.1";
  facts.cuda.devices = {{0, "NVIDIA H200", std::uint64_t{139} << 30, "0000:3B:00.0"}};
  transport::paths::Gpu gpu;
  gpu.pci = "0000:3b:00.0";
  gpu.place = {"pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"};
  gpu.lanes = gpu.max_lanes = 16;
  facts.machine.gpus = {gpu};
  facts.machine.nvidia.driver = "580.1";
  facts.machine.nvidia.devices = {"/dev/nvidia0"};
  facts.machine.nvidia.peermem = true;
  facts.ucx.built = true;
  facts.ucx.built_with = "1.13";
  facts.ucx.version = "1.13.1";
  facts.ucx.components = {"tcp", "ib", "cuda_cpy"};
  facts.ucx.ways = {{"tcp", "ens1", false}, {"rc_mlx5", "mlx5_0:1", true}};
  facts.ucx.cuda_memory = true;
  facts.machine.rdma = {Port()};
  facts.machine.rdma_device_files = true;
  facts.limits.files = 4096;
  facts.limits.shm_bytes = std::uint64_t{8} << 30;
  facts.limits.shm_free = std::uint64_t{8} << 30;
  facts.limits.cores = 16;
  facts.congestion_control = "cubic";
  Bandwidth tcp;
  tcp.transport = tcp.path = "tcp";
  tcp.gb_per_second = 3.5;
  Bandwidth rdma;
  rdma.transport = "ucx rc over mlx5_0:1";
  rdma.wants_rdma = true;
  rdma.path = "ucx: rc_mlx5/mlx5_0:1 (RDMA)";
  rdma.gb_per_second = 11.9;
  Bandwidth copy;
  copy.transport = "host to cuda:0";
  copy.memory = "cuda:0";
  copy.copy = true;
  copy.path = "pinned memory";
  copy.gb_per_second = 55;
  Bandwidth direct = rdma;
  direct.memory = "cuda:0";
  direct.gb_per_second = 11.5;
  facts.bandwidth = {tcp, rdma, copy, direct};
  return facts;
}

// Exactly one line that is not well.
Line Only(const Facts& facts) {
  std::vector<Line> lines = Judge(facts);
  std::erase_if(lines, [](const Line& line) { return line.verdict == Verdict::kOk; });
  EXPECT_EQ(lines.size(), 1u) << RenderText(Judge(facts), false);
  return lines.empty() ? Line{} : lines[0];
}

void ExpectOnly(const Facts& facts, Verdict verdict, const std::string& name,
                const std::string& remedy) {
  const Line line = Only(facts);
  EXPECT_EQ(Name(line.verdict), Name(verdict)) << line.name;
  EXPECT_EQ(line.name, name);
  EXPECT_THAT(line.remedy, HasSubstr(remedy));
}

TEST(Judge, AMachineThatIsWell) {
  const auto lines = Judge(Well());
  EXPECT_EQ(Worst(lines), Verdict::kOk) << RenderText(lines, false);
  for (const Line& line : lines) EXPECT_TRUE(line.remedy.empty()) << line.name;
}

TEST(Judge, APlainMachineIsWellToo) {
  Facts facts = Well();
  facts.cuda = {};
  facts.machine.nvidia = {};
  facts.machine.gpus.clear();
  facts.machine.rdma.clear();
  facts.machine.rdma_device_files = false;
  facts.ucx.ways = {{"tcp", "eth0", false}};
  facts.bandwidth.resize(1);
  facts.limits.locked_bytes = 8u << 20;  // nobody locks memory without RDMA
  EXPECT_EQ(Worst(Judge(facts)), Verdict::kOk) << RenderText(Judge(facts), false);
}

TEST(Judge, Versions) {
  Facts facts = Well();
  facts.ucx.built = false;
  facts.machine.rdma.clear();
  ExpectOnly(facts, Verdict::kWarning, "UCX", "libucx-dev");
}

TEST(Judge, AUcxThatIsNotThere) {
  Facts facts = Well();
  facts.machine.rdma.clear();
  facts.ucx = {};
  facts.ucx.built = true;
  facts.ucx.built_with = "1.13";
  facts.ucx.error = "UCX is not on this machine: libucp.so.0: no";
  ExpectOnly(facts, Verdict::kWarning, "UCX", "libucx0");
  EXPECT_EQ(Only(facts).value, facts.ucx.error);
  // RDMA is lost by it; nothing else is said of what follows from it.
  facts.machine.rdma = {Port()};
  facts.cuda = {};
  facts.machine.nvidia = {};
  facts.machine.gpus.clear();
  ExpectOnly(facts, Verdict::kProblem, "UCX", "libucx0");
}

TEST(Judge, Gpus) {
  Facts facts = Well();
  facts.cuda = {};
  ExpectOnly(facts, Verdict::kWarning, "NVIDIA driver", "preset cuda");
  facts = Well();
  facts.machine.nvidia.devices.clear();
  ExpectOnly(facts, Verdict::kProblem, "NVIDIA driver", "--gpus all");
  facts = Well();
  facts.machine.nvidia.driver.clear();
  ExpectOnly(facts, Verdict::kProblem, "NVIDIA driver", "install the driver");
  facts = Well();
  facts.cuda.devices.clear();
  ExpectOnly(facts, Verdict::kProblem, "CUDA devices", "CUDA_VISIBLE_DEVICES");
  facts = Well();
  facts.cuda.driver = "12.8";
  ExpectOnly(facts, Verdict::kProblem, "CUDA of the driver", "this build wants 13.0");
}

TEST(Judge, WhereAGpuHangs) {
  Facts facts = Well();
  EXPECT_THAT(RenderText(Judge(facts), false), HasSubstr("nearest RDMA port mlx5_0:1"));
  facts.machine.gpus[0].lanes = 4;
  ExpectOnly(facts, Verdict::kWarning, "GPU 0000:3b:00.0", "fewer lanes");
  facts = Well();
  facts.machine.gpus[0].place = {"pci0000:17"};
  ExpectOnly(facts, Verdict::kWarning, "GPU 0000:3b:00.0", "NUMA");
}

TEST(Judge, GpuDirect) {
  Facts facts = Well();
  facts.machine.nvidia.peermem = false;
  ExpectOnly(facts, Verdict::kWarning, "GPUDirect RDMA", "modprobe nvidia_peermem");
  facts.machine.nvidia.open_driver = true;
  // dma-buf takes a newer UCX.
  ExpectOnly(facts, Verdict::kWarning, "GPUDirect RDMA", "UCX 1.16");
  facts.ucx.version = "1.18.0";
  facts.ucx.built_with = "1.18";
  EXPECT_EQ(Worst(Judge(facts)), Verdict::kOk) << RenderText(Judge(facts), false);
  facts.machine.kernel_major = 5;
  facts.machine.kernel_minor = 11;
  ExpectOnly(facts, Verdict::kWarning, "GPUDirect RDMA", "modprobe nvidia_peermem");
  facts = Well();
  facts.ucx.cuda_memory = false;
  ExpectOnly(facts, Verdict::kWarning, "GPUDirect RDMA", "--with-cuda");
  facts = Well();
  facts.environment = {"UCX_IB_GPU_DIRECT_RDMA=n"};
  ExpectOnly(facts, Verdict::kWarning, "GPUDirect RDMA", "unset it");
}

TEST(Judge, GpuBandwidths) {
  Facts facts = Well();
  facts.bandwidth[3].gb_per_second = 2;
  ExpectOnly(facts, Verdict::kWarning, "ucx rc over mlx5_0:1, cuda:0", "less than half");
  facts.bandwidth[3].path = "ucx: tcp/ens1";
  ExpectOnly(facts, Verdict::kProblem, "ucx rc over mlx5_0:1, cuda:0", "another way");
  facts.bandwidth[3].error = "it crashed (signal 11)";
  ExpectOnly(facts, Verdict::kProblem, "ucx rc over mlx5_0:1, cuda:0", "UCX_TLS=^cuda");
  facts = Well();
  facts.bandwidth[2].transport = "cuda:0 to cuda:1";
  facts.bandwidth[2].path = "through the host: no peer access";
  ExpectOnly(facts, Verdict::kWarning, "cuda:0 to cuda:1", "topo -p2p");
  facts.bandwidth[2].error = "a copy failed: an illegal memory access";
  ExpectOnly(facts, Verdict::kProblem, "cuda:0 to cuda:1", "Xid");
}

TEST(Judge, RdmaPorts) {
  Facts facts = Well();
  facts.machine.rdma[0].gids[0].type = "IB/RoCE v1";
  ExpectOnly(facts, Verdict::kProblem, "mlx5_0:1", "IP address");
  facts = Well();
  facts.machine.rdma[0].address.clear();  // workers need none
  EXPECT_EQ(Worst(Judge(facts)), Verdict::kOk);
  facts = Well();
  facts.machine.rdma.push_back(Port());
  facts.machine.rdma[1].device = "mlx5_1";
  facts.machine.rdma[1].state = "DOWN";
  ExpectOnly(facts, Verdict::kWarning, "mlx5_1:1", "no link");
  facts = Well();
  facts.machine.rdma_device_files = false;
  ExpectOnly(facts, Verdict::kProblem, "/dev/infiniband", "--device");
  // InfiniBand's GIDs have no type of RoCE.
  facts = Well();
  facts.machine.rdma[0].link_layer = "InfiniBand";
  facts.machine.rdma[0].gids[0].type = "IB/RoCE v1";
  EXPECT_EQ(Worst(Judge(facts)), Verdict::kOk);
}

TEST(Judge, RdmaThatUcxDoesNotUse) {
  Facts facts = Well();
  facts.ucx.ways.pop_back();
  ExpectOnly(facts, Verdict::kProblem, "in UCX", "UCX_TLS");
  std::erase(facts.ucx.components, "ib");
  ExpectOnly(facts, Verdict::kProblem, "in UCX", "--with-verbs");
}

TEST(Judge, Ucx) {
  Facts facts = Well();
  facts.machine.rdma.clear();
  facts.ucx.error = "UCX 1.13.1: it does not start";
  facts.ucx.ways.clear();
  facts.ucx.components.clear();
  ExpectOnly(facts, Verdict::kWarning, "start", "ucx_info");
  facts = Well();
  facts.machine.rdma.clear();
  facts.ucx.ways = {{"self", "memory", false}};
  ExpectOnly(facts, Verdict::kWarning, "transports", "UCX_TLS");
  facts = Well();
  facts.environment = {"UCX_MAX_EAGER_LANES=2", "UCX_TLS=rc,self"};
  ExpectOnly(facts, Verdict::kProblem, "environment", "must be 1");
}

TEST(Judge, TellsWhatAutoTakes) {
  const auto rule = [](const Facts& facts) {
    for (const Line& line : Judge(facts)) {
      if (line.name == "exchange.transport = auto") return line.value;
    }
    return std::string();
  };
  Facts facts = Well();
  EXPECT_THAT(rule(facts), HasSubstr("UCX over RDMA, without a port"));
  facts.ucx.ways.pop_back();
  EXPECT_THAT(rule(facts), HasSubstr("our own tcp: UCX has no RDMA"));
  facts.machine.rdma.clear();
  EXPECT_THAT(rule(facts), HasSubstr("our own tcp: its host has no active RDMA port"));
}

TEST(Judge, LockedMemoryMattersToRdma) {
  Facts facts = Well();
  facts.limits.locked_bytes = 8u << 20;
  ExpectOnly(facts, Verdict::kProblem, "locked memory", "ulimit -l unlimited");
  facts.limits.locked_bytes = std::uint64_t{4} << 30;
  ExpectOnly(facts, Verdict::kWarning, "locked memory", "ulimit -l unlimited");
}

TEST(Judge, TheHost) {
  Facts facts = Well();
  facts.limits.sealing_error = "no F_SEAL_FUTURE_WRITE";
  ExpectOnly(facts, Verdict::kWarning, "memory files", "Linux 5.1");
  facts = Well();
  facts.limits.shm_free = 63u << 20;
  ExpectOnly(facts, Verdict::kWarning, "/dev/shm", "--shm-size");
  facts.limits.shm_bytes.reset();
  ExpectOnly(facts, Verdict::kWarning, "/dev/shm", "mount");
  facts = Well();
  facts.limits.files = 256;
  ExpectOnly(facts, Verdict::kWarning, "open files", "ulimit -n");
  facts = Well();
  facts.limits.cpu_quota = 2.5;
  ExpectOnly(facts, Verdict::kWarning, "cores", "cpuset");
  EXPECT_THAT(Only(facts).value, HasSubstr("2.5"));
  facts.limits.cpu_quota = 16;
  EXPECT_EQ(Worst(Judge(facts)), Verdict::kOk);
  facts.congestion_control = "bbr";
  ExpectOnly(facts, Verdict::kWarning, "TCP", "cubic");
}

TEST(Judge, Bandwidths) {
  Facts facts = Well();
  facts.bandwidth[1].path = "ucx: tcp/ens1";
  ExpectOnly(facts, Verdict::kProblem, "ucx rc over mlx5_0:1", "another way");
  facts.bandwidth[1].error = "nothing within 2.5 s";
  ExpectOnly(facts, Verdict::kProblem, "ucx rc over mlx5_0:1", "UCX_IB_GID_INDEX");
  facts = Well();
  facts.bandwidth[0].error = "it crashed";
  ExpectOnly(facts, Verdict::kProblem, "tcp", "loopback");
  facts.bandwidth[0].transport = "mapped";
  ExpectOnly(facts, Verdict::kWarning, "mapped", "next best");
}

TEST(Render, ColumnsAndRemedies) {
  const std::vector<Line> lines = {{"host", "cores", "2", Verdict::kOk, ""},
                                   {"host", "open files", "256", Verdict::kWarning, "ulimit -n"},
                                   {"bandwidth", "tcp", "no", Verdict::kProblem, "try again"}};
  EXPECT_EQ(RenderText(lines, false),
            "host\n"
            "  ok       cores       2\n"
            "  warning  open files  256\n"
            "           -> ulimit -n\n"
            "\n"
            "bandwidth\n"
            "  problem  tcp         no\n"
            "           -> try again\n"
            "\n"
            "1 problem, 1 warning\n");
  EXPECT_EQ(RenderText(lines, false).find('\033'), std::string::npos);
  EXPECT_NE(RenderText(lines, true).find("\033[31mproblem"), std::string::npos);
}

TEST(Render, Json) {
  Facts facts = Well();
  facts.bandwidth[0].error = "it crashed";
  const auto json = nlohmann::json::parse(RenderJson(facts, Judge(facts)));
  EXPECT_EQ(json["verdict"], "problem");
  EXPECT_EQ(json["version"], "0.1.0");
  EXPECT_TRUE(json["bandwidth"][0]["gb_per_s"].is_null());
  EXPECT_EQ(json["bandwidth"][1]["gb_per_s"], 11.9);
  EXPECT_EQ(json["rdma"][0]["gids"][0]["type"], "RoCE v2");
  EXPECT_TRUE(json["rdma"][0]["nearest_gpu"].is_null());
  EXPECT_EQ(json["cuda"]["devices"][0]["device"], "cuda:0");
  EXPECT_EQ(json["cuda"]["driver_version"], "13.1");
  EXPECT_EQ(json["gpus"][0]["nearest_rdma"][0], "mlx5_0:1");
  EXPECT_EQ(json["bandwidth"][3]["memory"], "cuda:0");
  EXPECT_EQ(json["lines"].size(), Judge(facts).size());
}

}  // namespace
}  // namespace lockstep::doctor
