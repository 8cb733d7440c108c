#include "coordinator/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/temp_folder.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::span<const std::byte> Bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<float> Counting(std::size_t count, float from) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = from + static_cast<float>(i);
  return values;
}

const std::vector<FileTensor> kTensors = {{"weight", "F32", {3, 4}}, {"bias", "F32", {5}}};

Status Write(const std::string& path, float from) {
  auto writer = SafetensorsWriter::Create(path, kTensors, {{"round", "17"}});
  if (!writer) return writer.error();
  Status status = (*writer)->Append(0, Bytes(Counting(12, from)));
  if (status) status = (*writer)->Append(1, Bytes(Counting(5, -from)));
  if (status) status = (*writer)->Commit();
  return status;
}

std::vector<float> ReadTensor(const std::string& path, const std::string& name) {
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.error().message;
  const auto index = file->Find(name);
  EXPECT_TRUE(index.ok());
  std::vector<float> values(file->header().tensors[*index].bytes / sizeof(float));
  EXPECT_TRUE(file->Read(*index, 0, std::as_writable_bytes(std::span(values))).ok());
  return values;
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::string WithHeader(const std::string& json, std::size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return text + json + std::string(data_bytes, 'x');
}

TEST(Safetensors, GivesBackWhatWasWritten) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 1));
  EXPECT_EQ(ReadTensor(path, "bias"), Counting(5, -1));
  const auto file = SafetensorsFile::Open(path);
  EXPECT_THAT(file->header().metadata, ElementsAre(std::pair("round", "17")));
  EXPECT_EQ(file->header().tensors[0].info, kTensors[0]);
  EXPECT_THAT(Names(folder.path()), ElementsAre("a.safetensors"));
}

TEST(Safetensors, HasTheFormatsBytes) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  auto writer = SafetensorsWriter::Create(path, {{"b", "F32", {1}}}, {{"k", "v"}});
  ASSERT_TRUE(writer.ok());
  const float one = 1.0f;
  ASSERT_TRUE((*writer)->Append(0, std::as_bytes(std::span(&one, 1))).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const std::string json =
      R"({"__metadata__":{"k":"v"},"b":{"data_offsets":[0,4],"dtype":"F32","shape":[1]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(ReadText(path), WithHeader(padded, 0) + std::string("\x00\x00\x80\x3f", 4));
}

TEST(Safetensors, TensorsAreFilledInChunksSideBySide) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  auto writer = SafetensorsWriter::Create(path, kTensors, {});
  ASSERT_TRUE(writer.ok());
  const std::vector<float> weight = Counting(12, 7);
  const std::vector<float> bias = Counting(5, 70);
  ASSERT_TRUE((*writer)->Append(1, Bytes(bias).first(3)).ok());  // not even whole numbers
  ASSERT_TRUE((*writer)->Append(0, Bytes(weight).first(40)).ok());
  ASSERT_TRUE((*writer)->Append(1, Bytes(bias).subspan(3)).ok());
  ASSERT_TRUE((*writer)->Append(0, Bytes(weight).subspan(40)).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  EXPECT_EQ(ReadTensor(path, "weight"), weight);
  EXPECT_EQ(ReadTensor(path, "bias"), bias);
}

TEST(Safetensors, TheOldFileStaysUntilTheNewOneIsComplete) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  {
    auto writer = SafetensorsWriter::Create(path, kTensors, {});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(0, Bytes(Counting(12, 2))).ok());
    EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 1));
  }
  EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 1));
  EXPECT_THAT(Names(folder.path()), ElementsAre("a.safetensors"));
  ASSERT_TRUE(Write(path, 3).ok());
  EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 3));
}

// Writing beyond `bytes` fails, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Safetensors, AFullDiskLeavesTheLastGoodFile) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  Status status;
  {
    const FileSizeLimit limit(200);
    status = Write(path, 2);
  }
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, StartsWith(path));
  EXPECT_THAT(status.error().message, HasSubstr("File too large"));
  EXPECT_THAT(Names(folder.path()), ElementsAre("a.safetensors"));
  EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 1));
}

TEST(Safetensors, AFailureInTheMiddleLeavesTheLastGoodFile) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  auto writer = SafetensorsWriter::Create(path, kTensors, {});
  ASSERT_TRUE(writer.ok());
  Status status;
  {
    const FileSizeLimit limit(100);
    status = (*writer)->Append(0, Bytes(Counting(12, 2)));
  }
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(Names(folder.path()), ElementsAre("a.safetensors"));
  EXPECT_EQ(ReadTensor(path, "weight"), Counting(12, 1));
}

TEST(Safetensors, AFolderThatIsNotThereIsNamed) {
  const auto writer = SafetensorsWriter::Create("/nonexistent/a.safetensors", kTensors, {});
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(writer.error().message, StartsWith("/nonexistent/a.safetensors"));
  EXPECT_THAT(writer.error().message, HasSubstr("No such file"));
  EXPECT_EQ(SafetensorsFile::Open("/nonexistent/a").error().code, ErrorCode::kNotFound);
}

TEST(Safetensors, ACutFileIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  const std::string whole = ReadText(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    WriteText(path, whole.substr(0, size));
    const auto file = SafetensorsFile::Open(path);
    ASSERT_FALSE(file.ok()) << size;
    ASSERT_THAT(file.error().message, StartsWith(path));
  }
  WriteText(path, whole + "x");
  EXPECT_FALSE(SafetensorsFile::Open(path).ok());
}

TEST(Safetensors, AHeaderThatLiesIsRefused) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  const auto message = [&](const std::string& json) {
    WriteText(path, WithHeader(json, 8));
    const auto file = SafetensorsFile::Open(path);
    return file.ok() ? std::string("accepted") : file.error().message;
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  EXPECT_EQ(message(R"({"t":)" + tensor("F32", "[2]", "[0,8]") + "}"), "accepted");
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F33", "[2]", "[0,8]") + "}"), HasSubstr("dtype 'F33'"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[3]", "[0,8]") + "}"), HasSubstr("needs 12"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[2]", "[8,0]") + "}"), HasSubstr("lies at"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[2]", "[-8,0]") + "}"), HasSubstr("is not {"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[1]", "[4,8]") + "}"), HasSubstr("begins at 4"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[4294967296,4294967296,4]", "[0,0]") + "}"),
              HasSubstr("too large"));
  EXPECT_THAT(message(R"({"a":)" + tensor("F32", "[2]", "[0,8]") + R"(,"b":)" +
                      tensor("F32", "[1]", "[4,8]") + "}"),
              HasSubstr("'b' begins at 4"));
  EXPECT_THAT(message(R"({"t":)" + tensor("F32", "[1]", "[0,4]") + "}"),
              HasSubstr("take 4 bytes, the file has 8"));
  EXPECT_THAT(message(R"({"__metadata__":{"k":1},"t":)" + tensor("F32", "[2]", "[0,8]") + "}"),
              HasSubstr("__metadata__ entry 'k'"));
}

TEST(Safetensors, ReadsStayWithinTheirTensor) {
  const test::TempFolder folder;
  const std::string path = folder / "a.safetensors";
  ASSERT_TRUE(Write(path, 1).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> out(8);
  EXPECT_TRUE(file->Read(0, 40, out).ok());
  EXPECT_FALSE(file->Read(0, 44, out).ok());
  EXPECT_FALSE(file->Read(0, ~std::uint64_t{0}, out).ok());
  EXPECT_FALSE(file->Find("momentum").ok());
}

}  // namespace
}  // namespace lockstep::coordinator
