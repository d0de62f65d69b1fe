// The smallest frame for checks inside an nvcc-built program: what failed, where, and how many. Not
// GoogleTest, because these programs must be what a student would build: plain nvcc, linked with
// the runtime and nothing else.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>

extern int g_failures;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      ++g_failures;                                                        \
    }                                                                      \
  } while (0)

#define CHECK_ERROR(expected, call)                                                            \
  do {                                                                                         \
    const cudaError_t got_ = (call);                                                           \
    if (got_ != (expected)) {                                                                  \
      std::printf("%s:%d: %s gave %d (%s), not %d\n", __FILE__, __LINE__, #call,               \
                  static_cast<int>(got_), cudaGetErrorName(got_), static_cast<int>(expected)); \
      ++g_failures;                                                                            \
    }                                                                                          \
  } while (0)

#define CHECK_OK(call) CHECK_ERROR(cudaSuccess, call)

void check_copies();
void check_devices();
void check_errors();
void check_graphs();
void check_illegal_address();
void check_launches();
void check_memory();
void check_no_driver();
void check_streams();
void check_symbols();
