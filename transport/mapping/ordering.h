// The order of memory accesses on which readers of an arena rely (Boehm, "Can seqlocks get along
// with programming language memory models?", MSPC 2012).
//
//   owner                                    reader
//   W1  generation = none     (relaxed)      R1  g = generation       (acquire)
//       StoreBeforeLaterWrites()             R2  read the data        (plain)
//   W2  write the data        (plain)            ReadsBeforeLaterLoad()
//       WritesBeforeLaterStore()             R3  g == generation ?    (relaxed)
//   W3  generation = g'       (release)
//
// If R1 sees what W3 stored, R2 sees at least the data of W2 before it. If R2 sees a byte of a
// later W2, the fences make R3 see the W1 before that W2 or something later. That is never g again,
// because generations only grow. So g at R3 means that every byte of R2 belongs to g.
//
// W2 and R2 may run at the same time on the same bytes. In the language that would be a data race
// within one program. Here the two sides are two processes, of which it says nothing, and the
// machine decides. SIMD code may see any mixture of old and new bytes, and R3 throws the result
// away. Therefore R2 must be arithmetic on values only, never an index, a pointer or a length. The
// fences are also barriers to the compiler, which may not move R2 below R3. A thread sanitizer sees
// neither side of this: two mappings have two addresses, and it does not model fences. So its
// silence proves nothing; the argument above and the tests with two processes do.
//
// On x86 stores become visible in order except streaming ones, which the reduction uses: hence the
// explicit sfence.
#pragma once

#include <atomic>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace lockstep::transport {

#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

inline void StoreBeforeLaterWrites() {
  std::atomic_thread_fence(std::memory_order_release);
#if defined(__SSE__)
  _mm_sfence();
#endif
}

inline void WritesBeforeLaterStore() {
#if defined(__SSE__)
  _mm_sfence();
#endif
  std::atomic_thread_fence(std::memory_order_release);
}

inline void ReadsBeforeLaterLoad() { std::atomic_thread_fence(std::memory_order_acquire); }

#pragma GCC diagnostic pop

}  // namespace lockstep::transport
