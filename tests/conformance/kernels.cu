// The kernels of the conformance rows: small, and each with one purpose.
#undef NDEBUG  // assert_zero asserts in every build
#include <cassert>

extern "C" {

__device__ unsigned counter;
__constant__ unsigned constant_word = 7;
__device__ __managed__ unsigned managed_word = 11;

__global__ void add_one(unsigned* data, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += 1;
}

__global__ void store(unsigned* data, unsigned value) { *data = value; }

/// Runs until *flag is not zero; what it saw goes to *seen.
__global__ void wait_flag(volatile unsigned* flag, unsigned* seen) {
  while (*flag == 0) {
  }
  *seen = *flag;
}

/// Busy for about `rounds` iterations.
__global__ void spin(unsigned* data, unsigned rounds) {
  unsigned value = *data;
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525U + 1013904223U;
  *data = value;
}

__global__ void write_address(unsigned long long address) {
  *reinterpret_cast<unsigned*>(address) = 1;
}

struct Bytes {
  unsigned char at[32756];
};
/// With the most bytes of parameters that a kernel can have.
__global__ void sum_ends(unsigned* sum, Bytes bytes) { *sum = bytes.at[0] + bytes.at[32755]; }

__global__ void trap() { asm volatile("trap;"); }

__global__ void assert_zero(unsigned value) { assert(value == 0); }

/// One of the 16 barriers of a block, by number.
__global__ void use_barrier(unsigned number) { asm volatile("bar.sync %0;" ::"r"(number)); }

/// An atomic operation on a thread's own variable, which only a generic address can reach.
__global__ void add_to_local(unsigned* data) {
  unsigned own = *data;
  unsigned* hidden = &own;
  asm volatile("" : "+l"(hidden)::"memory");  // so that the compiler cannot tell whose it is
  atomicAdd(hidden, 1U);
  *data = own;
}

__device__ __noinline__ unsigned recurse_step(unsigned depth, volatile unsigned* before) {
  volatile unsigned frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = before[i] + depth;
  return depth == 0 ? frame[0] : recurse_step(depth - 1, frame) + frame[63];
}

/// Calls itself `depth` times, with a frame of a quarter KiB each.
__global__ void recurse(unsigned* data, unsigned depth) {
  volatile unsigned frame[64];
  for (int i = 0; i < 64; ++i) frame[i] = *data;
  *data = recurse_step(depth, frame);
}

__global__ void count_threads() { atomicAdd(&counter, 1U); }

__global__ void empty() {}

/// Tells whether malloc on the device gave memory: 1 = it did, 2 = it did not.
__global__ void allocate(unsigned* answer, unsigned bytes) {
  void* volatile block = malloc(bytes);
  *answer = block != nullptr ? 1 : 2;
  free(block);
}

/// Takes blocks from malloc on the device until there is none and keeps them; tells their number.
__global__ void hoard(unsigned* answer, unsigned bytes, unsigned most) {
  unsigned count = 0;
  for (; count < most; ++count) {
    unsigned* volatile block = static_cast<unsigned*>(malloc(bytes));
    if (block == nullptr) break;
    *block = count;
  }
  *answer = count;
}

__global__ void __launch_bounds__(64) bounded_64() {}

/// 40 KiB of static shared memory, all of it in use.
__global__ void static_shared() {
  __shared__ volatile unsigned words[10240];
  words[threadIdx.x] = threadIdx.x;
  words[10239 - threadIdx.x] = words[threadIdx.x];
}

/// Too many values alive at once for a thousand threads of one SM.
__global__ void many_registers(unsigned* data) {
  unsigned values[112];
#pragma unroll
  for (int i = 0; i < 112; ++i) values[i] = reinterpret_cast<volatile unsigned*>(data)[i];
  unsigned mixed = 0;
#pragma unroll
  for (int i = 0; i < 112; ++i) mixed = (mixed ^ values[(i * 37) % 112]) * (values[i] | 1U);
  data[threadIdx.x] = mixed;
}

/// Each thread of a grid of any shape writes its number, counted from 1, to its own place.
__global__ void write_index(unsigned* data) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  data[i] = i + 1;
}

/// Every block waits until all blocks of the grid have come: only a grid that is on the device as a
/// whole gets through.
__global__ void grid_barrier(unsigned* arrived, unsigned* passed) {
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1U);
    while (*reinterpret_cast<volatile unsigned*>(arrived) < gridDim.x) {
    }
    atomicAdd(passed, 1U);
  }
  __syncthreads();
}

/// Where a texture is looked at; the dimensions it lacks are not.
struct Point {
  float x, y, z;
  unsigned layer;
};
#define FETCH(name, type, call)                                                   \
  __global__ void name(cudaTextureObject_t texture, const Point* at, type* out) { \
    const Point p = at[threadIdx.x];                                              \
    out[threadIdx.x] = call;                                                      \
  }
FETCH(fetch_line, float4, tex1D<float4>(texture, p.x))
FETCH(fetch_plane, float4, (tex2D<float4>(texture, p.x, p.y)))
FETCH(fetch_plane_words, uint4, (tex2D<uint4>(texture, p.x, p.y)))
FETCH(fetch_box, float4, (tex3D<float4>(texture, p.x, p.y, p.z)))
FETCH(fetch_line_layer, float4, (tex1DLayered<float4>(texture, p.x, static_cast<int>(p.layer))))
FETCH(fetch_plane_layer, float4,
      (tex2DLayered<float4>(texture, p.x, p.y, static_cast<int>(p.layer))))
FETCH(fetch_index, float4, tex1Dfetch<float4>(texture, static_cast<int>(p.x)))
FETCH(fetch_index_words, uint4, tex1Dfetch<uint4>(texture, static_cast<int>(p.x)))
FETCH(fetch_level, float4, (tex2DLod<float4>(texture, p.x, p.y, 3.0F)))
FETCH(gather_first, float4, (tex2Dgather<float4>(texture, p.x, p.y, 0)))
FETCH(gather_second, float4, (tex2Dgather<float4>(texture, p.x, p.y, 1)))

/// Each thread moves one word of a plane from one surface to the other, with 1 added.
__global__ void surface_move(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
  const int x = static_cast<int>(threadIdx.x * 4), y = static_cast<int>(blockIdx.x);
  surf2Dwrite(surf2Dread<unsigned>(from, x, y) + 1, to, x, y);
}
/// Reads a line at thread - 2, clamped and with zero outside, and writes behind its end.
__global__ void surface_outside(cudaSurfaceObject_t line, unsigned* clamped, unsigned* zero) {
  const int x = (static_cast<int>(threadIdx.x) - 2) * 4;
  clamped[threadIdx.x] = surf1Dread<unsigned>(line, x, cudaBoundaryModeClamp);
  zero[threadIdx.x] = surf1Dread<unsigned>(line, x, cudaBoundaryModeZero);
  __syncthreads();
  if (threadIdx.x == 0) surf1Dwrite(99U, line, 1 << 16, cudaBoundaryModeZero);
}
__global__ void surface_trap(cudaSurfaceObject_t line, unsigned* out) {
  *out = surf1Dread<unsigned>(line, 1 << 16, cudaBoundaryModeTrap);
}
/// One element of four bytes of each layer.
__global__ void surface_layers(cudaSurfaceObject_t layers) {
  surf2DLayeredwrite(threadIdx.x + 1, layers, 4, 1, static_cast<int>(threadIdx.x));
}
}
