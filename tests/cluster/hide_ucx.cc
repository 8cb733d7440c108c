// For LD_AUDIT: the dynamic loader finds no libucp.so.0, as on a machine without UCX, and a program
// that needed it would not start.
#include <link.h>

#include <cstdint>
#include <cstring>

extern "C" unsigned la_version(unsigned version) { return version; }

extern "C" char* la_objsearch(const char* name, std::uintptr_t* /*cookie*/, unsigned flag) {
  const bool candidate = flag != LA_SER_ORIG;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the interface has it so
  return candidate && std::strstr(name, "/libucp.so.0") != nullptr ? nullptr
                                                                   : const_cast<char*>(name);
}
