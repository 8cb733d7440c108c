# This file is shared by the shell scripts of tools/ and .ci/: source it, in bash only.
# shellcheck shell=bash

# Colour appears only where a person looks and has not disabled it (no-color.org).
if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
  lockstep_bold=$'\e[1m' lockstep_red=$'\e[31m' lockstep_plain=$'\e[0m'
else
  lockstep_bold='' lockstep_red='' lockstep_plain=''
fi

# Prints seconds as m:ss.
lockstep_clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# stage TEXT: prints a header with the time since the script began.
stage() { printf '%s==> [%s] %s%s\n' "$lockstep_bold" "$(lockstep_clock $SECONDS)" "$*" "$lockstep_plain"; }

# fail TEXT: prints one line on stderr and ends with status 1.
fail() {
  printf '%s%s: %s%s\n' "$lockstep_red" "${0##*/}" "$*" "$lockstep_plain" >&2
  exit 1
}

# bad_usage TEXT: prints one line on stderr and ends with status 2.
bad_usage() {
  printf '%s: %s (see %s --help)\n' "${0##*/}" "$*" "${0##*/}" >&2
  exit 2
}

# The number of jobs to build and test with: all cores, but no more than the memory allows (1.5 GiB for a compiler).
lockstep_jobs() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  by_memory=$((memory_kib / 1572864))
  ((by_memory >= 1)) || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Half of the tests mostly wait, for processes and time-outs.
lockstep_test_jobs() {
  local jobs
  jobs=$(lockstep_jobs)
  echo $((jobs + jobs / 2))
}

# A source that is compiled alike in two build folders is compiled once: the cuda preset has most of its objects from release. ccache
# takes precompiled headers with this sloppiness only.
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"

# Configures PRESET with further cmake arguments, and after them those in LOCKSTEP_CMAKE_ARGUMENTS. It uses ccache and lld where they exist
# (nvcc, which links in the cuda preset, does not know lld).
lockstep_configure() {
  local preset=$1
  shift
  local found=()
  if command -v ccache >/dev/null; then
    found=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    [[ $preset != cuda ]] || found+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  if [[ $preset != cuda ]] && command -v ld.lld >/dev/null; then
    found+=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld)
  fi
  local more=()
  read -ra more <<<"${LOCKSTEP_CMAKE_ARGUMENTS:-}"
  cmake --preset "$preset" "${found[@]}" "$@" "${more[@]}" </dev/null
}

# Builds the named targets of PRESET (all: none named). Ninja's line shows the progress.
lockstep_build() {
  local preset=$1
  shift
  local targets=()
  (($# == 0)) || targets=(--target "$@")
  NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" -j "$(lockstep_jobs)" "${targets[@]}" </dev/null
}

# Builds targets of PRESET to be run: an earlier build keeps its configuration, a new one leaves out the tests.
lockstep_programs() {
  local preset=$1
  shift
  local without_tests=()
  [[ -f build/$preset/CMakeCache.txt ]] || without_tests=(-DLOCKSTEP_BUILD_TESTS=OFF)
  lockstep_configure "$preset" "${without_tests[@]}"
  lockstep_build "$preset" "$@"
}
