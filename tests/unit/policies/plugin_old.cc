#include <cstdint>

extern "C" std::uint32_t lockstep_policy_plugin_version() { return 0; }
extern "C" void lockstep_policy_plugin_make(const void*, std::uint32_t, void*) {}
