# SPDX-License-Identifier: Apache-2.0
# Each dependency is taken from the machine when it is there and downloaded at a pinned commit otherwise.
# FETCHCONTENT_SOURCE_DIR_EIGEN3 (…_GOOGLETEST, …_BENCHMARK, …_NLOHMANN_JSON) names a local source tree to use instead.
# No SYSTEM in the declarations: with GIT_REPOSITORY CMake 3.25.1 takes the word for the name of a remote.
include(FetchContent)

# A parent project links mha::mha from its own directory and must see what that links. FetchContent of CMake 3.25
# stumbles over this variable unless GLOBAL is also said below.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

# Header-only dependencies never run their own CMake code as a subproject: Eigen's adds thousands of targets, and a
# target that is built here cannot be named by an installed package.
macro(mha_header_only_dependency name target include_dir)
  if(NOT TARGET ${target})
    FetchContent_MakeAvailable(${name})
    if(NOT TARGET ${target})
      string(TOLOWER ${name} mha_lower)
      add_library(${target} INTERFACE IMPORTED GLOBAL)
      target_include_directories(${target} SYSTEM INTERFACE "${${mha_lower}_SOURCE_DIR}${include_dir}")
    endif()
  endif()
endmacro()

# No version in the request: the version files of Eigen 3.4 and of Eigen 5 each refuse a range over both.
FetchContent_Declare(
  Eigen3
  GIT_REPOSITORY https://gitlab.com/libeigen/eigen.git
  GIT_TAG d71c30c47858effcbd39967097a2d99ee48db464 # 3.4.1
  SOURCE_SUBDIR _no_build_
  FIND_PACKAGE_ARGS NO_MODULE GLOBAL)
mha_header_only_dependency(Eigen3 Eigen3::Eigen "")
if(Eigen3_VERSION AND Eigen3_VERSION VERSION_LESS 3.4)
  message(FATAL_ERROR "mha needs Eigen 3.4 or newer, found ${Eigen3_VERSION} in ${Eigen3_DIR}")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(NOT MHA_WITH_OPENMP STREQUAL "OFF" AND NOT TARGET OpenMP::OpenMP_CXX)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(MHA_WITH_OPENMP STREQUAL "ON" AND NOT TARGET OpenMP::OpenMP_CXX)
    message(FATAL_ERROR "MHA_WITH_OPENMP is ON, but ${CMAKE_CXX_COMPILER} has no OpenMP")
  endif()
endif()

if(NOT MHA_WITH_CUDA STREQUAL "OFF" AND NOT TARGET CUDA::cudart_static)
  find_package(CUDAToolkit 12.0 QUIET)
  if(MHA_WITH_CUDA STREQUAL "ON" AND NOT (TARGET CUDA::cudart_static AND TARGET CUDA::cublasLt))
    message(FATAL_ERROR "MHA_WITH_CUDA is ON, but no CUDA toolkit from 12.0 on with cuBLASLt was found: set CUDAToolkit_ROOT")
  endif()
endif()

if(NOT MHA_WITH_IO STREQUAL "OFF" AND NOT TARGET nlohmann_json::nlohmann_json)
  if(MHA_WITH_IO STREQUAL "AUTO" AND NOT FETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON)
    find_package(nlohmann_json QUIET)
  else()
    FetchContent_Declare(
      nlohmann_json
      GIT_REPOSITORY https://github.com/nlohmann/json.git
      GIT_TAG 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03 # 3.11.3
      SOURCE_SUBDIR _no_build_
      FIND_PACKAGE_ARGS GLOBAL)
    mha_header_only_dependency(nlohmann_json nlohmann_json::nlohmann_json "/include")
  endif()
endif()

if(MHA_BUILD_TESTS AND NOT TARGET GTest::gtest_main)
  set(INSTALL_GTEST OFF)
  FetchContent_Declare(
    googletest
    GIT_REPOSITORY https://github.com/google/googletest.git
    GIT_TAG 52eb8108c5bdec04579160ae17225d66034bd723 # 1.17.0
    FIND_PACKAGE_ARGS NAMES GTest GLOBAL)
  FetchContent_MakeAvailable(googletest)
  if(googletest_SOURCE_DIR)
    set_target_properties(gtest gtest_main PROPERTIES SYSTEM ON)
  endif()
endif()

if(MHA_BUILD_BENCHMARKS AND NOT TARGET benchmark::benchmark)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  FetchContent_Declare(
    benchmark
    GIT_REPOSITORY https://github.com/google/benchmark.git
    GIT_TAG 192ef10025eb2c4cdd392bc502f0c852196baa48 # 1.9.5
    FIND_PACKAGE_ARGS GLOBAL)
  FetchContent_MakeAvailable(benchmark)
  if(benchmark_SOURCE_DIR)
    set_target_properties(benchmark PROPERTIES SYSTEM ON)
  endif()
endif()
