// What of cuBLASLt's interface is used here, by its public documentation (NVIDIA, "cuBLAS", chapter
// "Using the cuBLASLt API"): the same for libcublasLt 12 and 13. Declared here, because the library
// is found at run time, and the driver and nvcc are all that a build needs; where cublasLt.h is
// there, a test compares (tests/trainer/cublaslt_header_test.cpp).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sluice::train::cublaslt {

using Handle = struct HandleTag*;
using MatmulDesc = struct MatmulDescTag*;
using MatrixLayout = struct MatrixLayoutTag*;
using Preference = struct PreferenceTag*;

// cublasStatus_t
inline constexpr int kSuccess = 0;
inline constexpr int kNotInitialized = 1;
inline constexpr int kInvalidValue = 7;
inline constexpr int kExecutionFailed = 13;
inline constexpr int kNotSupported = 15;
// cublasComputeType_t
inline constexpr int kCompute32F = 68;
// cudaDataType
inline constexpr int kReal32F = 0;
inline constexpr int kReal16F = 2;
inline constexpr int kReal16Bf = 14;
// cublasOperation_t, 32 bits
inline constexpr std::int32_t kAsItIs = 0;
inline constexpr std::int32_t kTransposed = 1;
// cublasLtMatmulDescAttributes_t
inline constexpr int kDescTransA = 3;
inline constexpr int kDescTransB = 4;
// cublasLtMatmulPreferenceAttributes_t: bytes in 64 bits, and alignments of A, B, C, D in 32
inline constexpr int kPreferenceWorkspace = 1;
inline constexpr int kPreferenceAlignmentA = 5;

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t data[8];
};

struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

// member, function, its type. Matrices are column-major: D [m, n] = alpha op(A) op(B) + beta C.
// clang-format off
#define SLUICE_CUBLASLT_CALLS(X)                                                                  \
  X(create, cublasLtCreate, int(Handle*))                                                         \
  X(destroy, cublasLtDestroy, int(Handle))                                                        \
  X(version, cublasLtGetVersion, std::size_t())                                                   \
  X(desc_create, cublasLtMatmulDescCreate, int(MatmulDesc*, int compute, int scale))              \
  X(desc_destroy, cublasLtMatmulDescDestroy, int(MatmulDesc))                                     \
  X(desc_set, cublasLtMatmulDescSetAttribute, int(MatmulDesc, int, const void*, std::size_t))     \
  X(layout_create, cublasLtMatrixLayoutCreate,                                                    \
    int(MatrixLayout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t pitch))  \
  X(layout_destroy, cublasLtMatrixLayoutDestroy, int(MatrixLayout))                               \
  X(preference_create, cublasLtMatmulPreferenceCreate, int(Preference*))                          \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy, int(Preference))                         \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute,                                         \
    int(Preference, int, const void*, std::size_t))                                               \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                    \
    int(Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,       \
        Preference, int asked, HeuristicResult*, int* got))                                       \
  X(matmul, cublasLtMatmul,                                                                       \
    int(Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout, const void* b,        \
        MatrixLayout, const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout,       \
        const Algorithm*, void* workspace, std::size_t workspace_bytes, CUstream))
// clang-format on

struct Table {
#define SLUICE_CUBLASLT_MEMBER(member, function, ...) \
  std::add_pointer_t<__VA_ARGS__> member = nullptr;
  SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_MEMBER)
#undef SLUICE_CUBLASLT_MEMBER
};

}  // namespace sluice::train::cublaslt
