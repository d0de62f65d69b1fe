// A library with cuBLASLt's names and meaning for the calls that the trainer makes, for machines
// without GPUs: products are computed on the host. It keeps to the letter what the documentation
// says of descriptors, alignments and the workspace, and refuses what does not fit. What NVIDIA's
// library does with them needs hardware. CUBLASLT_STANDIN makes it go wrong: no-handle,
// no-algorithm, unsupported, fails.
#include <stdlib.h>

#include <cstring>
#include <utility>
#include <vector>

#include "trainer/base/bfloat16.h"
#include "trainer/device/cublaslt_api.h"

namespace sluice::train::cublaslt {

struct HandleTag {};
struct MatmulDescTag {
  std::int32_t transpose_a = kAsItIs, transpose_b = kAsItIs;
};
struct MatrixLayoutTag {
  int type;
  std::uint64_t rows, columns;
  std::int64_t pitch;
};
struct PreferenceTag {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};
};

}  // namespace sluice::train::cublaslt

namespace {

using namespace sluice::train::cublaslt;

constexpr std::uint64_t kSign = 0x736c75696365;
constexpr std::size_t kWorkspace = 4096;  // what its one algorithm needs

bool goes_wrong(const char* how) {
  const char* asked = getenv("CUBLASLT_STANDIN");
  return asked != nullptr && std::strcmp(asked, how) == 0;
}

bool is_half(int type) { return type == kReal16F || type == kReal16Bf; }

float half_wide(std::uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}

float bfloat16_wide(std::uint16_t bits) {
  sluice::train::Bfloat16 value;
  value.bits = bits;
  return value.value();
}

/// A matrix in device memory, brought here, as op() shows it.
class Operand {
 public:
  Operand(const void* at, const MatrixLayoutTag& layout, bool transposed)
      : layout_(layout),
        transposed_(transposed),
        values_(static_cast<std::size_t>(layout.pitch) * layout.columns) {
    failed_ = cuMemcpyDtoH(values_.data(), reinterpret_cast<CUdeviceptr>(at), values_.size() * 2) !=
              CUDA_SUCCESS;
  }
  std::uint64_t rows() const { return transposed_ ? layout_.columns : layout_.rows; }
  std::uint64_t columns() const { return transposed_ ? layout_.rows : layout_.columns; }
  bool failed() const { return failed_; }
  double at(std::uint64_t row, std::uint64_t column) const {
    if (transposed_) std::swap(row, column);
    const std::uint16_t bits = values_[column * static_cast<std::uint64_t>(layout_.pitch) + row];
    return layout_.type == kReal16F ? half_wide(bits) : bfloat16_wide(bits);
  }

 private:
  const MatrixLayoutTag layout_;
  const bool transposed_;
  std::vector<std::uint16_t> values_;
  bool failed_;
};

bool fits(const MatmulDescTag& desc, const MatrixLayoutTag& a, const MatrixLayoutTag& b,
          const MatrixLayoutTag& d) {
  const auto rows = desc.transpose_a == kTransposed ? a.columns : a.rows;
  const auto inner = desc.transpose_a == kTransposed ? a.rows : a.columns;
  const auto inner_b = desc.transpose_b == kTransposed ? b.columns : b.rows;
  const auto columns = desc.transpose_b == kTransposed ? b.rows : b.columns;
  return is_half(a.type) && a.type == b.type && d.type == kReal32F && rows == d.rows &&
         columns == d.columns && inner == inner_b;
}

bool is_aligned(const void* at, std::uint64_t bytes) {
  return reinterpret_cast<std::uint64_t>(at) % bytes == 0;
}

}  // namespace

// The names are the library's, and so is that they are exported.
#pragma GCC visibility push(default)
extern "C" {

int cublasLtCreate(Handle* out) {
  if (goes_wrong("no-handle")) return kNotInitialized;
  *out = new HandleTag;
  return kSuccess;
}
int cublasLtDestroy(Handle handle) {
  delete handle;
  return kSuccess;
}
std::size_t cublasLtGetVersion() { return 130000; }

int cublasLtMatmulDescCreate(MatmulDesc* out, int compute, int scale) {
  if (compute != kCompute32F || scale != kReal32F) return kNotSupported;
  *out = new MatmulDescTag;
  return kSuccess;
}
int cublasLtMatmulDescDestroy(MatmulDesc desc) {
  delete desc;
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(MatmulDesc desc, int which, const void* from, std::size_t size) {
  if (size != sizeof(std::int32_t)) return kInvalidValue;
  std::int32_t* to = which == kDescTransA   ? &desc->transpose_a
                     : which == kDescTransB ? &desc->transpose_b
                                            : nullptr;
  if (to == nullptr) return kInvalidValue;
  std::memcpy(to, from, size);
  return kSuccess;
}

int cublasLtMatrixLayoutCreate(MatrixLayout* out, int type, std::uint64_t rows,
                               std::uint64_t columns, std::int64_t pitch) {
  if (rows == 0 || columns == 0 || pitch < static_cast<std::int64_t>(rows)) return kInvalidValue;
  *out = new MatrixLayoutTag{type, rows, columns, pitch};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(MatrixLayout layout) {
  delete layout;
  return kSuccess;
}

int cublasLtMatmulPreferenceCreate(Preference* out) {
  *out = new PreferenceTag;
  return kSuccess;
}
int cublasLtMatmulPreferenceDestroy(Preference preference) {
  delete preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute(Preference preference, int which, const void* from,
                                         std::size_t size) {
  if (which == kPreferenceWorkspace && size == sizeof preference->workspace) {
    std::memcpy(&preference->workspace, from, size);
    return kSuccess;
  }
  const int number = which - kPreferenceAlignmentA;
  if (number < 0 || number > 3 || size != sizeof(std::uint32_t)) return kInvalidValue;
  std::memcpy(&preference->alignments[number], from, size);
  return kSuccess;
}

int cublasLtMatmulAlgoGetHeuristic(Handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b,
                                   MatrixLayout c, MatrixLayout d, Preference preference, int asked,
                                   HeuristicResult* out, int* got) {
  *got = 0;
  if (asked < 1 || c->rows != d->rows || !fits(*desc, *a, *b, *d)) return kInvalidValue;
  if (goes_wrong("no-algorithm") || preference->workspace < kWorkspace) return kNotSupported;
  *out = {};
  out->algorithm.data[0] = kSign;
  for (int i = 0; i < 4; ++i) out->algorithm.data[i + 1] = preference->alignments[i];
  out->workspace_bytes = kWorkspace;
  out->state = kSuccess;
  *got = 1;
  return kSuccess;
}

int cublasLtMatmul(Handle, MatmulDesc desc, const void* alpha, const void* a, MatrixLayout a_layout,
                   const void* b, MatrixLayout b_layout, const void* beta, const void* c,
                   MatrixLayout, void* d, MatrixLayout d_layout, const Algorithm* algorithm,
                   void* workspace, std::size_t workspace_bytes, CUstream stream) {
  if (goes_wrong("fails")) return kExecutionFailed;
  if (goes_wrong("unsupported")) return kNotSupported;
  const std::uint64_t* said = algorithm->data;
  if (said[0] != kSign || workspace_bytes < kWorkspace || !is_aligned(workspace, 256))
    return kInvalidValue;
  if (!is_aligned(a, said[1]) || !is_aligned(b, said[2]) || !is_aligned(c, said[3]) ||
      !is_aligned(d, said[4]) || !fits(*desc, *a_layout, *b_layout, *d_layout))
    return kInvalidValue;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
    return kInvalidValue;
  if (cuStreamSynchronize(stream) != CUDA_SUCCESS) return kExecutionFailed;
  const Operand left(a, *a_layout, desc->transpose_a == kTransposed);
  const Operand right(b, *b_layout, desc->transpose_b == kTransposed);
  if (left.failed() || right.failed()) return kExecutionFailed;
  std::vector<float> out(d_layout->rows * d_layout->columns);
  for (std::uint64_t column = 0; column < d_layout->columns; ++column) {
    for (std::uint64_t row = 0; row < d_layout->rows; ++row) {
      double sum = 0;
      for (std::uint64_t i = 0; i < left.columns(); ++i)
        sum += left.at(row, i) * right.at(i, column);
      out[column * d_layout->rows + row] = static_cast<float>(sum);
    }
  }
  if (d_layout->pitch != static_cast<std::int64_t>(d_layout->rows)) return kNotSupported;
  return cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(d), out.data(), out.size() * sizeof(float)) ==
                 CUDA_SUCCESS
             ? kSuccess
             : kExecutionFailed;
}

}  // extern "C"
#pragma GCC visibility pop
