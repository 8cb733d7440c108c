// Data files that tests write for themselves.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <string>

#include "base/check.h"

namespace lockstep::test {

inline std::string BigEndian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

inline std::string IdxHeader(std::initializer_list<std::uint32_t> dimensions) {
  std::string bytes = BigEndian(0x0800u | static_cast<std::uint32_t>(dimensions.size()));
  for (std::uint32_t extent : dimensions) bytes += BigEndian(extent);
  return bytes;
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteGzip(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  LOCKSTEP_CHECK(file != nullptr);
  LOCKSTEP_CHECK(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
                 static_cast<int>(bytes.size()));
  gzclose(file);
}

// Sample s has pixels s * 10, s * 10 + 1, ...
inline std::string Pixels(std::uint32_t samples, std::uint32_t size) {
  std::string bytes;
  for (std::uint32_t s = 0; s < samples; ++s) {
    for (std::uint32_t i = 0; i < size; ++i) bytes += static_cast<char>(s * 10 + i);
  }
  return bytes;
}

// 6 training and 4 test images of 3x4, labels 0, 1, 2, 0, 1, 2, ...
inline void WriteIdxFolder(const std::string& folder, bool gzip) {
  const auto write = [&](const std::string& name, const std::string& bytes) {
    if (gzip) {
      WriteGzip(folder + "/" + name + ".gz", bytes);
    } else {
      WriteFile(folder + "/" + name, bytes);
    }
  };
  write("train-images-idx3-ubyte", IdxHeader({6, 3, 4}) + Pixels(6, 12));
  write("train-labels-idx1-ubyte", IdxHeader({6}) + std::string("\0\1\2\0\1\2", 6));
  write("t10k-images-idx3-ubyte", IdxHeader({4, 3, 4}) + Pixels(4, 12));
  write("t10k-labels-idx1-ubyte", IdxHeader({4}) + std::string("\0\1\2\0", 4));
}

inline std::string CifarRecord(std::uint8_t label, std::uint8_t first) {
  std::string record(1, static_cast<char>(label));
  for (int i = 0; i < 3072; ++i) record += static_cast<char>(first + i);
  return record;
}

// 2 records in each training file, 1 in the test file.
inline void WriteCifarFolder(const std::string& folder) {
  for (int i = 1; i <= 5; ++i) {
    const auto n = static_cast<std::uint8_t>(i);
    WriteFile(folder + "/data_batch_" + std::to_string(i) + ".bin",
              CifarRecord(n, n) + CifarRecord(static_cast<std::uint8_t>(9 - n), 100));
  }
  WriteFile(folder + "/test_batch.bin", CifarRecord(7, 200));
}

}  // namespace lockstep::test
