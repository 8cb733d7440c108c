// Reading and writing safetensors files. Writing is atomic: under its name there is the last
// complete file or none, whatever happens in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "coordinator/checkpoint/safetensors_header.h"
#include "coordinator/record/whole_file.h"

namespace lockstep::coordinator {

// Writes `path`.partial, then renames it. A path has one writer at a time. After an error the
// partial file is gone and the writer only good for destruction; errors name the path and the
// operating system's reason (disk full, permission).
class SafetensorsWriter {
 public:
  // Reserves the space, so that a full disk shows here and not after the last chunk.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                           const std::vector<FileTensor>& tensors,
                                                           Metadata metadata);
  ~SafetensorsWriter();  // without Commit: removes the partial file
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of a tensor (index into `tensors`). Tensors may be filled side by side.
  Status Append(std::size_t tensor, std::span<const std::byte> bytes);
  // Call it when every tensor is complete: it syncs the file and renames it.
  Status Commit();

 private:
  SafetensorsWriter(std::string path, SafetensorsHeader header, OwnedFd file);
  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);
  Error Fail(const char* action, int error);

  const std::string path_;
  const std::string partial_;
  const SafetensorsHeader header_;
  OwnedFd file_;
  std::uint64_t data_start_ = 0;
  std::vector<std::uint64_t> written_;  // bytes, by tensor
  bool open_ = true;                    // the partial file is there
};

// A file whose header has been checked against its size.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  // Index into header().tensors.
  Result<std::size_t> Find(const std::string& name) const;
  // Bytes [offset, offset + out.size()) of a tensor; an error when the tensor ends before.
  Status Read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  SafetensorsFile(std::string path, OwnedFd file, SafetensorsHeader header,
                  std::uint64_t data_start);

  std::string path_;
  OwnedFd file_;
  SafetensorsHeader header_;
  std::uint64_t data_start_ = 0;
};

}  // namespace lockstep::coordinator
