// LOCKSTEP_VECTOR_CLONES before a function definition compiles it for wider vector units as well;
// the loader picks the best at start. The build forbids contraction, so every clone does the same
// correctly rounded operations in the same order and gives the same bits. Sanitizers and older
// releases of clang do not support the indirect functions behind it, so there the code is plain.
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(LOCKSTEP_SANITIZED)
#define LOCKSTEP_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define LOCKSTEP_VECTOR_CLONES
#endif
