// What calls itself UCX and is not the one that is wanted. Each library of it has one thing wrong.
#ifdef OTHER_UCX_MAJOR
extern "C" void ucp_get_version(unsigned* major, unsigned* minor, unsigned* release) {
  *major = OTHER_UCX_MAJOR;
  *minor = OTHER_UCX_MINOR;
  *release = 3;
}
#else
extern "C" void no_version() {}
#endif
