# What every room builds with: the dialect, the warnings, where results go, and the CUDA toolkit's headers and compiler.
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Several files of a target are compiled as one (in batches), which halves a full build: most
# of what a file costs is what its headers make the compiler do.
option(SLUICE_UNITY "Compile files in batches; OFF shortens the build after a change and checks what files include" ON)
set(CMAKE_UNITY_BUILD ${SLUICE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 40)
# The compiler collects its garbage after this much (KiB), and not all the time.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options("SHELL:$<$<COMPILE_LANGUAGE:CXX>:--param ggc-min-heapsize=524288>")
endif()
# bin and lib hold what users get, and nothing else; what only the build and the tests need is elsewhere (tests/CMakeLists.txt).
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/archives)
# Assertions are part of the contract (the programmer's failures) and stay on in every build type.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Werror>)
target_include_directories(sluice_options INTERFACE ${PROJECT_SOURCE_DIR})
# The property SLUICE_PLAIN keeps a target free of sanitizers: for what is preloaded into programs of other people.
if(SLUICE_SANITIZE)
  set(sanitized $<NOT:$<BOOL:$<TARGET_PROPERTY:SLUICE_PLAIN>>>)
  target_compile_options(sluice_options INTERFACE
    $<${sanitized}:-fsanitize=${SLUICE_SANITIZE}> $<${sanitized}:-fno-omit-frame-pointer> $<${sanitized}:-O1>)
  if(SLUICE_SANITIZE MATCHES thread)
    # Fences are not modelled; what they order is atomic in itself, so nothing is reported falsely.
    target_compile_options(sluice_options INTERFACE $<${sanitized}:-Wno-tsan>)
  endif()
  target_link_options(sluice_options INTERFACE $<${sanitized}:-fsanitize=${SLUICE_SANITIZE}>)
endif()

# sluice_program(TARGET): a program that is installed. It has standard streams, and fails if its output could not be written.
add_library(sluice_standard_streams OBJECT ${CMAKE_CURRENT_LIST_DIR}/standard_streams.cpp)
target_link_libraries(sluice_standard_streams PRIVATE sluice_options)
function(sluice_program target)
  target_link_libraries(${target} PRIVATE sluice_standard_streams)
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# For libraries that C programs call, linked after sluice_options: a caller may pass any integer as an enumeration, which
# must be refused and not reported as undefined.
add_library(sluice_c_callers INTERFACE)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_c_callers INTERFACE -fno-sanitize=enum)
endif()

# sluice_plain_objects(OUT TARGET): the object files of a static library without sanitizers. With a sanitizing preset they
# are compiled a second time; otherwise they are the library's own.
function(sluice_plain_objects out target)
  if(SLUICE_SANITIZE)
    get_target_property(sources ${target} SOURCES)
    get_target_property(directory ${target} SOURCE_DIR)
    set(paths)
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${directory})
      list(APPEND paths ${source})
    endforeach()
    add_library(${target}_plain OBJECT ${paths})
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES LINK_LIBRARIES)
      get_target_property(value ${target} ${property})
      if(value)
        set_property(TARGET ${target}_plain PROPERTY ${property} "${value}")
      endif()
    endforeach()
    set_property(TARGET ${target}_plain PROPERTY SLUICE_PLAIN ON)
    add_dependencies(${target}_plain ${target})
    string(APPEND target _plain)
  endif()
  set(${out} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

# The headers of the language that nearly every file reads cost a second per unit, so they are read once for each pace (below), and
# the objects of libraries and programs are all of one kind for it. Not where it is checked what files include, nor with sanitizers,
# whose options differ from target to target.
set(SLUICE_LANGUAGE_HEADERS <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <condition_variable> <cstdio> <cstdlib>
  <cstring> <deque> <filesystem> <fstream> <functional> <iterator> <limits> <map> <memory> <mutex> <numeric> <optional> <set>
  <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <unordered_set> <utility> <variant> <vector>)
# Without optimisation std::move and its like are calls of functions unless the compiler is asked to see through them.
set(SLUICE_PACE_cold $<$<NOT:$<CONFIG:Release>>:-O0> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-ffold-simple-inlines>)
set(SLUICE_PACE_warm $<$<NOT:$<CONFIG:Release>>:-O1>)
set(SLUICE_PACE_hot)
if(SLUICE_UNITY AND NOT SLUICE_SANITIZE)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/language_headers.cpp CONTENT "// See cmake/SluiceBuild.cmake.\n")
  foreach(pace cold warm hot)
    set(headers sluice_${pace}_headers)
    add_library(${headers} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/language_headers.cpp)
    target_link_libraries(${headers} PRIVATE sluice_options)
    target_compile_options(${headers} PRIVATE ${SLUICE_PACE_${pace}})
    target_precompile_headers(${headers} PRIVATE ${SLUICE_LANGUAGE_HEADERS})
  endforeach()
endif()

# NO_HEADERS is for targets that precompile what they need themselves, or cannot.
function(sluice_pace pace)
  cmake_parse_arguments(P "NO_HEADERS" "" "" ${ARGN})
  foreach(target IN LISTS P_UNPARSED_ARGUMENTS)
    target_compile_options(${target} PRIVATE ${SLUICE_PACE_${pace}})
    if(TARGET sluice_${pace}_headers AND NOT P_NO_HEADERS)
      target_precompile_headers(${target} REUSE_FROM sluice_${pace}_headers)
      get_target_property(type ${target} TYPE)
      if(type STREQUAL EXECUTABLE)
        target_compile_options(${target} PRIVATE -fPIC)  # behind CMake's own -fPIE, and so the one that counts
      endif()
    endif()
  endforeach()
endfunction()

# sluice_cold([NO_HEADERS] TARGETS...): what runs once per command or scrape is compiled faster instead of running faster, except for
# what is installed.
function(sluice_cold)
  sluice_pace(cold ${ARGN})
endfunction()

# sluice_warm([NO_HEADERS] TARGETS...): what mostly waits for others, or hands on to what is hot: half optimised, except for what is
# installed.
function(sluice_warm)
  sluice_pace(warm ${ARGN})
endfunction()

# sluice_hot([NO_HEADERS] TARGETS...): what is measured, or decides for all who wait: optimised as what is installed.
function(sluice_hot)
  sluice_pace(hot ${ARGN})
endfunction()

# The toolkit gives headers (cuda.h), nvcc and the stub library; nothing of it is linked into the shim.
find_package(CUDAToolkit 13.0 QUIET)
if(NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "sluice: the CUDA 13 toolkit was not found; Sluice compiles against cuda.h and builds its kernels "
                      "with nvcc. Install the toolkit (13.0 or later) and put nvcc into PATH, or set CUDAToolkit_ROOT.")
endif()
# Kernels and programs of nvcc are compiled as strictly as it can: its own warnings, and the host compiler's. What it makes of
# a kernel's call is not pedantic C++.
set(SLUICE_NVCC ${CUDAToolkit_NVCC_EXECUTABLE} -Werror all-warnings -Wreorder -Wext-lambda-captures-this
  -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror)
add_library(sluice_cuda_headers INTERFACE)
target_include_directories(sluice_cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
include(GoogleTest)

# sluice_unsanitized(OUT SANITIZER NAME REASON): whether a test is left out under this preset because it cannot run with a
# sanitizer ("any": with none of them), and says so.
function(sluice_unsanitized out sanitizer name reason)
  if(SLUICE_SANITIZE AND (sanitizer STREQUAL any OR SLUICE_SANITIZE MATCHES "${sanitizer}"))
    message(STATUS "sluice: not tested with -fsanitize=${SLUICE_SANITIZE}: ${name} (${reason})")
    set(${out} ON PARENT_SCOPE)
  else()
    set(${out} OFF PARENT_SCOPE)
  endif()
endfunction()

# Tests wait for the compiler more often than for themselves, and failures say their lines without a debugger's help.
set(SLUICE_TEST_OPTIONS "-O0;-g0" CACHE STRING "How GoogleTest programs are compiled (for a debugger: -O0;-g)")
set(SLUICE_TEST_PACE ${SLUICE_TEST_OPTIONS} $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-ffold-simple-inlines>)
if(SLUICE_SANITIZE)
  set(SLUICE_TEST_PACE -O0)
endif()

# GoogleTest's headers and the language's are most of what compiling a test costs, so all test programs read them precompiled from one
# place. With a sanitizer some programs are built without it, and each compiles its own.
if(NOT SLUICE_SANITIZE)
  set(test_headers <gtest/gtest.h> <gmock/gmock.h>)
  if(SLUICE_UNITY)
    list(PREPEND test_headers ${SLUICE_LANGUAGE_HEADERS} <random>)
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gtest_headers.cpp CONTENT "int main() { return 0; }\n")
  add_executable(sluice_gtest_headers ${PROJECT_BINARY_DIR}/gtest_headers.cpp)
  target_link_libraries(sluice_gtest_headers PRIVATE sluice_options GTest::gtest GTest::gmock)
  target_precompile_headers(sluice_gtest_headers PRIVATE ${test_headers})
  target_compile_options(sluice_gtest_headers PRIVATE ${SLUICE_TEST_PACE})
  set_target_properties(sluice_gtest_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endif()

# Of the linkers that come with the compiler the one that takes half the time, for programs of tests alone.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold SLUICE_HAS_GOLD)

# sluice_gtest(NAME SOURCES... LIBS... [LABELS...] [ENVIRONMENT...] [TIMED cases]): one GoogleTest
# program, its cases as ctest tests. TIMED names cases (a filter) that compare times: other tests beside them would distort
# them, and sanitizers do.
function(sluice_gtest name)
  cmake_parse_arguments(T "" "TIMED" "SOURCES;LIBS;LABELS;ENVIRONMENT" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE sluice_options ${T_LIBS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(SLUICE_HAS_GOLD)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  if(TARGET sluice_gtest_headers)
    target_precompile_headers(${name} REUSE_FROM sluice_gtest_headers)
    target_compile_options(${name} PRIVATE ${SLUICE_TEST_PACE})
  endif()
  set(filter)
  if(T_TIMED)
    sluice_unsanitized(skip any "${name}: ${T_TIMED}" "sanitizers distort the times it compares")
    if(skip)
      set(filter TEST_FILTER "-${T_TIMED}")
    endif()
  endif()
  # Cases are asked for when ctest starts, so that a build runs no test program.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}." ${filter} DISCOVERY_TIMEOUT 600)
  # gtest_discover_tests keeps only the first element of a list-valued property, so lists are set by a script of our own that
  # ctest reads after the discovered tests.
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
  string(REPLACE "*" ".*" timed "^${name}\\.(${T_TIMED})\$")
  string(REPLACE ":" "|" timed "${timed}")
  file(GENERATE OUTPUT ${script} CONTENT "foreach(test IN LISTS ${name}_TESTS)
  set_tests_properties(\${test} PROPERTIES LABELS [==[${T_LABELS}]==] ENVIRONMENT [==[${T_ENVIRONMENT}]==])
  if(test MATCHES [==[${timed}]==])
    set_tests_properties(\${test} PROPERTIES RUN_SERIAL ON)
  endif()
endforeach()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# sluice_fatbin(NAME SOURCE [FLAGS...]): a .cu file compiled to NAME.fatbin where libraries go, target NAME_fatbin.
function(sluice_fatbin name source)
  set(out ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${name}.fatbin)
  set(depfile ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin.d)
  file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  add_custom_command(OUTPUT ${out}
    COMMAND ${SLUICE_NVCC} -std=c++20 -fatbin ${ARGN} -I${PROJECT_SOURCE_DIR} -MD -MF ${depfile} -o ${out} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} DEPFILE ${depfile} COMMENT "nvcc -fatbin ${name}" VERBATIM)
  add_custom_target(${name}_fatbin ALL DEPENDS ${out})
endfunction()
