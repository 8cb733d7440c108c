# LOCKSTEP_WITH_CUDA decides whether programs can compute on NVIDIA GPUs; LOCKSTEP_CUDA is what came of it.
# OFF by default, also where the toolkit is installed: programs that name cuBLAS do not start on machines without it.
set(LOCKSTEP_WITH_CUDA OFF CACHE STRING "Build the CUDA parts: OFF, ON (it is an error if nvcc is missing) or AUTO (if nvcc is found)")
set_property(CACHE LOCKSTEP_WITH_CUDA PROPERTY STRINGS OFF ON AUTO)
# Machine code for A100 and H100/H200; the latter's PTX is what newer GPUs compile when a program starts.
set(LOCKSTEP_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES")

set(LOCKSTEP_CUDA OFF)
if(NOT LOCKSTEP_WITH_CUDA)
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(LOCKSTEP_NVCC)
  if(NOT LOCKSTEP_NVCC)
    if(LOCKSTEP_WITH_CUDA STREQUAL "AUTO")
      message(STATUS "No CUDA: there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda; programs compute on the CPU only")
      return()
    endif()
    message(FATAL_ERROR "LOCKSTEP_WITH_CUDA is ON and there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda. Install the CUDA "
                        "toolkit (12 or newer), name it with -DCMAKE_CUDA_COMPILER=.../nvcc, or build without CUDA (preset release)")
  endif()
  set(CMAKE_CUDA_COMPILER "${LOCKSTEP_NVCC}")
endif()
if(LOCKSTEP_SANITIZE OR LOCKSTEP_FUZZ)
  message(FATAL_ERROR "CUDA parts cannot be built with sanitizers or for fuzzing: leave out LOCKSTEP_WITH_CUDA")
endif()

set(CMAKE_CUDA_ARCHITECTURES "${LOCKSTEP_CUDA_ARCHITECTURES}")
enable_language(CUDA)
# nvcc has C++20 since 12.0; CMake learns of it in 3.26.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit 12 REQUIRED)
set(LOCKSTEP_CUDA ON)
message(STATUS "CUDA ${CUDAToolkit_VERSION}, for GPUs ${CMAKE_CUDA_ARCHITECTURES}")

target_compile_options(lockstep_private_options INTERFACE
  # Bits as on the CPU: no fused multiply-add; host code without it as well. constexpr functions of base/ serve kernels too.
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off>")
if(LOCKSTEP_WARNINGS_AS_ERRORS)
  target_compile_options(lockstep_private_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Werror>")
endif()
