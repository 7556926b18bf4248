# Settings and functions that every folder's CMakeLists.txt uses.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Everything of ours is hidden unless it is marked FARGPU_EXPORT: libcuda.so.1 lives in foreign
# processes (DESIGN D12).
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# The CUDA headers (cuda.h and friends): types and prototypes only, nothing of CUDA is linked.
find_path(CUDA_INCLUDE_DIR cuda.h
          HINTS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include
          DOC "Folder that holds cuda.h of CUDA 13.0" REQUIRED)
add_library(fargpu_cuda_headers INTERFACE)
target_include_directories(fargpu_cuda_headers SYSTEM INTERFACE "${CUDA_INCLUDE_DIR}")

# Flags of our own code. FARGPU_SANITIZE reaches every target; foreign libraries stay as they are.
add_library(fargpu_options INTERFACE)
target_include_directories(fargpu_options INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
target_compile_options(fargpu_options INTERFACE -Wall -Wextra -Wshadow -Wno-unused-parameter)
if(FARGPU_WERROR)
  target_compile_options(fargpu_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(fargpu_options INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
target_compile_definitions(fargpu_options INTERFACE "FARGPU_VERSION=\"${PROJECT_VERSION}\"")
if(FARGPU_SANITIZE)
  target_compile_options(fargpu_options INTERFACE
                         -fsanitize=${FARGPU_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # CUDA's enums are C's: any value may stand in one, and a newer driver knows more than our header.
  # They travel as numbers and the driver judges them.
  if(FARGPU_SANITIZE MATCHES "undefined")
    target_compile_options(fargpu_options INTERFACE -fno-sanitize=enum)
  endif()
  target_link_options(fargpu_options INTERFACE -fsanitize=${FARGPU_SANITIZE})
endif()
# tests/fuzz: everything of ours tells libFuzzer which way it went.
option(FARGPU_FUZZERS "Build libFuzzer programs (clang and FARGPU_SANITIZE=address,undefined)" OFF)
if(FARGPU_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR NOT FARGPU_SANITIZE MATCHES "address")
    message(FATAL_ERROR "FARGPU_FUZZERS needs clang and FARGPU_SANITIZE=address,undefined: "
                        "use --preset fuzz")
  endif()
  target_compile_options(fargpu_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(fargpu_options INTERFACE fargpu_cuda_headers Threads::Threads)

# Abseil comes in two builds of one version, and a library of ours does not choose between them:
# programs link Debian's shared one (gRPC brings it anyway), libcuda.so.1 links a static,
# position-independent one that scripts/setup.sh builds from the same Debian source package,
# because Debian's archives cannot go into a shared object.
add_library(fargpu_absl_shared INTERFACE)
target_link_libraries(fargpu_absl_shared INTERFACE
    absl::status absl::statusor absl::strings absl::str_format absl::span absl::time
    absl::flat_hash_map absl::flat_hash_set absl::synchronization absl::cleanup)

# fargpu_library(NAME SOURCES... DEPS ...): a static library `NAME`.
function(fargpu_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC fargpu_options ${ARG_DEPS})
endfunction()

# fargpu_executable(NAME SOURCES ... DEPS ...): a program in build/bin.
function(fargpu_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fargpu_options ${ARG_DEPS} fargpu_absl_shared)
endfunction()

# fargpu_test(NAME LABEL unit|wire|e2e|gpu|perf|lint SOURCES ... DEPS ... TIMEOUT seconds):
# a GoogleTest program and a ctest of the same name.
function(fargpu_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fargpu_options ${ARG_DEPS} GTest::gmock GTest::gtest_main
                        fargpu_absl_shared)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
