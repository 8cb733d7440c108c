#include "transport/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

namespace lockstep::transport::ucx {

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name cannot be in them
#define LOCKSTEP_UCX_DEFINE(name) decltype(&::name) name = nullptr;
LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_DEFINE)
#undef LOCKSTEP_UCX_DEFINE

namespace {

// A UCX with another number in its name would have other functions.
constexpr const char* kFile = "libucp.so.0";

// The file with the next such number; empty where the number of this one is not ours.
std::string NextFile(std::string file) {
  if (!file.ends_with(".so.0")) return {};
  file.back() = '1';
  return file;
}

// UCX's libraries stay as long as the process, since UCX patches functions of it. Their symbols are
// not visible to libraries that are loaded later.
void* Load(const std::string& file) {
  return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

std::string FileOf(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

Error Unavailable(std::string message) {
  return Error{ErrorCode::kUnavailable, std::move(message)};
}

Error NotLoaded(const std::string& file) {
  const char* said = dlerror();
  const std::string why = said != nullptr ? said : file + ": cannot be opened";
  // The file exists, whatever else is wrong with it or with a library that it needs. The loader
  // does not always add the reason.
  const std::string missing = file + ": cannot open shared object file";
  if (why != missing && why != missing + ": No such file or directory") {
    return Unavailable(fmt::format("UCX cannot be loaded: {}", why));
  }
  if (const std::string next = NextFile(file); !next.empty() && Load(next) != nullptr) {
    return Unavailable(fmt::format("this works with the UCX of {}, and here is {}", file, next));
  }
  return Unavailable(fmt::format("UCX is not on this machine: {}", why));
}

struct LibraryVersion {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
} opened_version;

}  // namespace

Status OpenLibrary(const std::string& file) {
  void* library = Load(file);
  if (library == nullptr) return NotLoaded(file);
  // It comes first, since another version may lack the other functions.
  void* const get_version = dlsym(library, "ucp_get_version");
  if (get_version == nullptr) {
    return Unavailable(fmt::format("{} is not UCX: it has no ucp_get_version", file));
  }
  const std::string where = FileOf(get_version);
  LibraryVersion found;
  reinterpret_cast<decltype(&::ucp_get_version)>(get_version)(&found.major, &found.minor,
                                                              &found.release);
  const std::string named =
      fmt::format("UCX {}.{}.{} ({})", found.major, found.minor, found.release, where);
  if (found.major != kMajor || found.minor < kOldestMinor) {
    return Unavailable(fmt::format("{} does not fit: it has to be {}.{} or a later {}.x", named,
                                   kMajor, kOldestMinor, kMajor));
  }
#define LOCKSTEP_UCX_NAME(name) #name,
  for (const char* name : {LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_NAME)}) {
    if (dlsym(library, name) == nullptr) {
      return Unavailable(fmt::format("{} is not whole: it has no {}", named, name));
    }
  }
#undef LOCKSTEP_UCX_NAME
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define LOCKSTEP_UCX_TAKE(name) name = reinterpret_cast<decltype(name)>(dlsym(library, #name));
  LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_TAKE)
#undef LOCKSTEP_UCX_TAKE
  opened_version = found;
  return {};
}

Status OpenLibrary() {
  static const Status status = OpenLibrary(kFile);
  return status;
}

bool LibraryHasMinor(unsigned minor) { return opened_version.minor >= minor; }

std::string LibraryFile() { return FileOf(reinterpret_cast<const void*>(ucp_get_version_string)); }

}  // namespace lockstep::transport::ucx
