#include "coordinator/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

Error Invalid(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

std::optional<std::uint64_t> ElementBytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
      {"I8", 1},  {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}};
  const auto found = sizes.find(dtype);
  if (found == sizes.end()) return std::nullopt;
  return found->second;
}

Result<std::uint64_t> TensorBytes(const FileTensor& info) {
  const auto element = ElementBytes(info.dtype);
  if (!element)
    return Invalid(fmt::format("tensor '{}' has unknown dtype '{}'", info.name, info.dtype));
  std::uint64_t bytes = *element;
  for (std::uint64_t extent : info.shape) {
    if (extent != 0 && bytes > kMaxBytes / extent) {
      return Invalid(fmt::format("tensor '{}' is too large", info.name));
    }
    bytes *= extent;
  }
  return bytes;
}

Result<StoredTensor> ParseTensor(const std::string& name, const Json& entry) {
  const Error malformed =
      Invalid(fmt::format("tensor '{}' is not {{dtype, shape, data_offsets}}", name));
  if (!entry.is_object() || entry.size() != 3) return malformed;
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string() || shape == entry.end() || !shape->is_array() ||
      offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return malformed;
  }
  StoredTensor tensor;
  tensor.info.name = name;
  tensor.info.dtype = dtype->get<std::string>();
  for (const Json& extent : *shape) {
    if (!extent.is_number_unsigned()) return malformed;
    tensor.info.shape.push_back(extent.get<std::uint64_t>());
  }
  if (!(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) return malformed;
  const auto begin = (*offsets)[0].get<std::uint64_t>();
  const auto end = (*offsets)[1].get<std::uint64_t>();
  const auto bytes = TensorBytes(tensor.info);
  if (!bytes) return bytes.error();
  if (end < begin || end - begin != *bytes) {
    return Invalid(
        fmt::format("tensor '{}' needs {} bytes but lies at {} to {}", name, *bytes, begin, end));
  }
  tensor.offset = begin;
  tensor.bytes = *bytes;
  return tensor;
}

Result<Metadata> ParseMetadata(const Json& entry) {
  if (!entry.is_object()) return Invalid("__metadata__ is not an object");
  Metadata metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return Invalid(fmt::format("__metadata__ entry '{}' is not a string", key));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

Result<SafetensorsHeader> LayOut(const std::vector<FileTensor>& tensors, Metadata metadata) {
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  std::set<std::string> names;
  for (const FileTensor& info : tensors) {
    const auto bytes = TensorBytes(info);
    if (!bytes) return bytes.error();
    if (info.name == kMetadataKey || !names.insert(info.name).second) {
      return Invalid(fmt::format("tensor name '{}' is taken", info.name));
    }
    header.tensors.push_back({info, header.data_bytes, *bytes});
    header.data_bytes += *bytes;
    if (header.data_bytes > kMaxBytes) return Invalid("the tensors are too large");
  }
  return header;
}

std::string EncodeHeader(const SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) json[kMetadataKey] = header.metadata;
  for (const StoredTensor& tensor : header.tensors) {
    json[tensor.info.name] = {{"dtype", tensor.info.dtype},
                              {"shape", tensor.info.shape},
                              {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}};
  }
  // Names or values that are not UTF-8 are kept readable rather than refused.
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string encoded;
  for (int i = 0; i < 8; ++i) {
    encoded += static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xFF);
  }
  return encoded + text;
}

Result<SafetensorsHeader> ParseHeader(std::string_view json, std::uint64_t data_bytes) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) return Invalid("the header is not a JSON object");
  SafetensorsHeader header;
  for (const auto& [name, entry] : root.items()) {
    if (name == kMetadataKey) {
      auto metadata = ParseMetadata(entry);
      if (!metadata) return metadata.error();
      header.metadata = *std::move(metadata);
      continue;
    }
    auto tensor = ParseTensor(name, entry);
    if (!tensor) return tensor.error();
    header.tensors.push_back(*std::move(tensor));
  }
  // Empty tensors go before the one that begins where they lie.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.offset != header.data_bytes) {
      return Invalid(fmt::format("tensor '{}' begins at {}, not where the one before it ends ({})",
                                 tensor.info.name, tensor.offset, header.data_bytes));
    }
    header.data_bytes += tensor.bytes;
  }
  if (header.data_bytes != data_bytes) {
    return Invalid(fmt::format("the tensors take {} bytes, the file has {} for them",
                               header.data_bytes, data_bytes));
  }
  return header;
}

}  // namespace lockstep::coordinator
