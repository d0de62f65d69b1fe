// What the course hands out with every exercise: stop on the first CUDA error and say where.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(call)                                                                       \
  do {                                                                                         \
    cudaError_t err = (call);                                                                  \
    if (err != cudaSuccess) {                                                                  \
      fprintf(stderr, "%s:%d: CUDA error: %s\n", __FILE__, __LINE__, cudaGetErrorString(err)); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)
