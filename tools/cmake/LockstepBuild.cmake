# Build settings and the small functions that every folder's CMakeLists.txt uses.

option(LOCKSTEP_BUILD_TESTS "Build the tests" ON)
option(LOCKSTEP_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" ON)
option(LOCKSTEP_FUZZ "Build the fuzz targets with libFuzzer (takes clang)" OFF)
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# An assert that is off in release protects nobody; ours (LOCKSTEP_CHECK) do not depend on NDEBUG.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Boost 1.74 looks for clang's coroutines in <experimental/coroutine>, which libstdc++ does not have; with this it takes the
  # <coroutine> that is there.
  add_compile_definitions(BOOST_ASIO_HAS_CO_AWAIT)
endif()

add_library(lockstep_options INTERFACE)
add_library(lockstep::options ALIAS lockstep_options)
set_target_properties(lockstep_options PROPERTIES EXPORT_NAME options)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_include_directories(lockstep_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/lockstep>)

# Settings of our own compilation; they do not reach those who link the installed package.
add_library(lockstep_private_options INTERFACE)
target_compile_options(lockstep_private_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough>
  # Sums are correctly rounded operations in a fixed order: no fused multiply-add behind our back.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(LOCKSTEP_WARNINGS_AS_ERRORS)
  target_compile_options(lockstep_private_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
  add_compile_definitions(LOCKSTEP_SANITIZED=1)
  # GCC loses track of values behind the instrumentation; the other builds have the warning.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(LOCKSTEP_SANITIZE MATCHES "undefined")
    # clang 14 cannot place this check's data in front of a coroutine ("cannot represent a difference across sections").
    add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  endif()
  if(LOCKSTEP_SANITIZE MATCHES "thread")
    # The thread sanitizer does not model fences; Asio's locks order the same accesses.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
  # Quick to build, fast enough to run, and stacks that can be read.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  if(LOCKSTEP_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes 1.6 times as long with -O1 for what the checks of undefined behaviour add to the code; without them it does not.
    set(CMAKE_CXX_FLAGS_RELEASE "-Og -g1")
  endif()
endif()
# The presets have the sources of a target compiled some at a time, for which names in unnamed namespaces must differ, and headers that
# nearly all include once. `tools/lint --alone` finds what a source forgets to include.
if(CMAKE_UNITY_BUILD)
  # ccache can do with precompiled headers when the preprocessor names them.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
if(LOCKSTEP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "LOCKSTEP_FUZZ takes clang: cmake --preset fuzz")
  endif()
  # Coverage everywhere; the fuzz targets themselves link with -fsanitize=fuzzer, which brings main().
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Sources with a name in an unnamed namespace that others of their target have for something else.
function(lockstep_compile_alone)
  set_source_files_properties(${ARGV} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# lockstep_precompile(MAKER OPTIONS ... HEADERS ...): a target that precompiles the headers that nearly all sources include, and HEADERS.
# Asio's, protobuf's and others are in few of what is compiled then. OPTIONS has the definitions that all users have, and no others.
function(lockstep_precompile maker)
  cmake_parse_arguments(ARG "" "" "OPTIONS;HEADERS" ${ARGN})
  if(CMAKE_UNITY_BUILD)
    file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/${maker}.cc" CONTENT "")
    add_library(${maker} OBJECT "${PROJECT_BINARY_DIR}/${maker}.cc")
    target_link_libraries(${maker} PRIVATE lockstep_options fmt::fmt spdlog::spdlog ${ARG_OPTIONS})
    target_precompile_headers(${maker} PRIVATE <algorithm> <array> <chrono> <cstdint> <deque> <functional> <map> <memory> <optional>
      <set> <span> <string> <string_view> <tuple> <utility> <variant> <vector> <fmt/format.h> <spdlog/spdlog.h> ${ARG_HEADERS})
  endif()
endfunction()

# lockstep_precompiled(TARGET MAKER): TARGET's sources take the headers from MAKER; both are compiled with the same options.
function(lockstep_precompiled target maker)
  if(CMAKE_UNITY_BUILD)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  endif()
endfunction()

lockstep_precompile(lockstep_precompiled_library OPTIONS lockstep_private_options)

# For the sources of tests alone: with -O3 they take nearly twice as long to compile as with -Og, and test the same. What they test
# keeps its own options. With -Og GCC takes values for uninitialized that are not; libraries and programs keep that warning.
add_library(lockstep_test_options INTERFACE)
target_link_libraries(lockstep_test_options INTERFACE lockstep_private_options)
target_compile_options(lockstep_test_options INTERFACE
  $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>
  $<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-maybe-uninitialized>)
# It is the libraries and programs that are to have no undefined behaviour; to look for it in the tests themselves takes half of the
# time that it takes to compile them.
if(LOCKSTEP_SANITIZE MATCHES "undefined")
  target_compile_options(lockstep_test_options INTERFACE -fno-sanitize=undefined)
endif()

# tests-LABEL builds what the tests with that label run, and no more.
if(LOCKSTEP_BUILD_TESTS)
  foreach(label unit golden property sim faults conformance cluster rdma fuzz smoke threads gpu)
    add_custom_target(tests-${label})
  endforeach()
endif()

# lockstep_library(NAME SOURCES a.cc ... DEPS lib ... PRIVATE_DEPS lib ...): target lockstep_NAME, alias lockstep::NAME.
function(lockstep_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(lockstep_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(lockstep_${name} PUBLIC lockstep_options ${ARG_DEPS}
                          PRIVATE $<BUILD_INTERFACE:lockstep_private_options> ${ARG_PRIVATE_DEPS})
    lockstep_precompiled(lockstep_${name} lockstep_precompiled_library)
  else()
    add_library(lockstep_${name} INTERFACE)
    target_link_libraries(lockstep_${name} INTERFACE lockstep_options ${ARG_DEPS})
  endif()
  add_library(lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES lockstep_${name})
endfunction()

# lockstep_program(NAME SOURCES ... DEPS ...): an installed executable called NAME.
function(lockstep_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_private_options ${ARG_DEPS})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_PROGRAMS ${name})
  if(LOCKSTEP_BUILD_TESTS)
    add_dependencies(tests-cluster ${name})
    if(name MATCHES "^lockstep-(coordinator|worker)$")
      add_dependencies(tests-smoke ${name})
    endif()
  endif()
endfunction()

# lockstep_reports_fail(TEST ...): in a sanitized build a test fails by any report in its output, also by one of a child process
# whose exit status nobody looks at (it was killed, say).
function(lockstep_reports_fail)
  if(LOCKSTEP_SANITIZE)
    set_tests_properties(${ARGN} PROPERTIES FAIL_REGULAR_EXPRESSION
                         "(WARNING|ERROR): [A-Za-z]+Sanitizer|:[0-9]+: runtime error: ")
  endif()
endfunction()

# lockstep_test(NAME SOURCES ... DEPS ... LABELS ... [TIMEOUT s] [ARGS ...]): a GoogleTest program, one ctest. The labels: the kind
# of test (unit golden property sim conformance cluster rdma fuzz gpu), smoke for the job of several processes that runs under the
# sanitizers, faults for simulated jobs under faults, and threads for unit tests with more than one thread: the thread sanitizer runs those alone.
function(lockstep_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(LOCKSTEP_SANITIZE)  # ten times as slow, and a processor is shared
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lockstep_test_options GTest::gmock GTest::gtest GTest::gtest_main ${ARG_DEPS})
  lockstep_precompiled(${name} lockstep_precompiled_test)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  lockstep_reports_fail(${name})
  foreach(label IN LISTS ARG_LABELS)
    if(TARGET tests-${label})
      add_dependencies(tests-${label} ${name})
    endif()
  endforeach()
endfunction()
