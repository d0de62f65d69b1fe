// What trainer/device/cublaslt_api.h declares is what cublasLt.h declares, where that is installed.
#include "trainer/device/cublaslt_api.h"

#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace sluice::tests {
namespace {

namespace lt = train::cublaslt;

/// The same call for a caller: a pointer for a pointer, and for a number or an enumeration one of
/// the same size.
template <class Ours, class Theirs>
constexpr bool passes_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) &&
           (std::is_integral_v<Ours> || std::is_enum_v<Ours>)&&(std::is_integral_v<Theirs> ||
                                                                std::is_enum_v<Theirs>);
  }
}
template <class A, class... As, class B, class... Bs>
constexpr bool calls_alike(A (*)(As...), B (*)(Bs...)) {
  if constexpr (sizeof...(As) != sizeof...(Bs)) {
    return false;
  } else {
    return passes_alike<A, B>() && (passes_alike<As, Bs>() && ...);
  }
}

#define SLUICE_CUBLASLT_COMPARE(member, function, ...) \
  static_assert(calls_alike(decltype(lt::Table::member){}, decltype(&::function){}), #function);
SLUICE_CUBLASLT_CALLS(SLUICE_CUBLASLT_COMPARE)
#undef SLUICE_CUBLASLT_COMPARE

static_assert(lt::kSuccess == CUBLAS_STATUS_SUCCESS);
static_assert(lt::kNotInitialized == CUBLAS_STATUS_NOT_INITIALIZED);
static_assert(lt::kInvalidValue == CUBLAS_STATUS_INVALID_VALUE);
static_assert(lt::kExecutionFailed == CUBLAS_STATUS_EXECUTION_FAILED);
static_assert(lt::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(lt::kCompute32F == CUBLAS_COMPUTE_32F);
static_assert(lt::kReal32F == CUDA_R_32F && lt::kReal16F == CUDA_R_16F &&
              lt::kReal16Bf == CUDA_R_16BF);
static_assert(lt::kAsItIs == CUBLAS_OP_N && lt::kTransposed == CUBLAS_OP_T &&
              sizeof(cublasOperation_t) == sizeof(lt::kAsItIs));
static_assert(lt::kDescTransA == CUBLASLT_MATMUL_DESC_TRANSA &&
              lt::kDescTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(lt::kPreferenceWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(lt::kPreferenceAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              lt::kPreferenceAlignmentA + 1 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES &&
              lt::kPreferenceAlignmentA + 2 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES &&
              lt::kPreferenceAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

TEST(CublasLtHeader, SaysWhatIsDeclaredHere) {
  using Result = cublasLtMatmulHeuristicResult_t;
  EXPECT_EQ(sizeof(lt::Algorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(lt::HeuristicResult), sizeof(Result));
  EXPECT_EQ(offsetof(lt::HeuristicResult, workspace_bytes), offsetof(Result, workspaceSize));
  EXPECT_EQ(offsetof(lt::HeuristicResult, state), offsetof(Result, state));
}

}  // namespace
}  // namespace sluice::tests
#else

TEST(CublasLtHeader, SaysWhatIsDeclaredHere) {
  GTEST_SKIP() << "needs cublasLt.h, of the CUDA toolkit's package libcublas-dev";
}

#endif
