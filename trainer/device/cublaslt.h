// Matrix products of 16-bit operands by NVIDIA's cuBLASLt, where it is installed: many times as
// fast on tensor cores as the readable kernel of kernels/gemm_tensor.cuh, which does the same
// product everywhere else. The library is opened at run time, so that nothing depends on it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "trainer/device/cublaslt_api.h"
#include "trainer/device/device.h"

namespace sluice::train {

/// Who computes products of 16-bit operands.
enum class GemmEngine : std::uint8_t { kOwn, kCublaslt };
/// What the options ask for; kAuto is cuBLASLt on a GPU where it works.
enum class GemmChoice : std::uint8_t { kAuto, kOwn, kCublaslt };

const char* gemm_choice_name(GemmChoice choice);
std::optional<GemmChoice> gemm_choice_parse(const std::string& name);

/// The library's functions; `missing` says why there are none.
struct CublasLtFound {
  const cublaslt::Table* table = nullptr;
  std::string missing;
};
/// The one of the installed library, looked for once.
const CublasLtFound& cublaslt_library();
/// Of the first of `names` that can be opened. What it opens stays.
CublasLtFound cublaslt_open(std::initializer_list<const char*> names);

/// The engine for `choice`. Where kAuto would have had cuBLASLt and there is none, `note` is a line
/// for people; where kCublaslt cannot be had throws Failure. Software GPUs run none of NVIDIA's own
/// code, so they get it only when it is asked for. `library`: cublaslt_library, called only where
/// the answer depends on it.
GemmEngine gemm_engine(GemmChoice choice, bool is_software,
                       const std::function<const CublasLtFound&()>& library, std::string* note);

class CublasLt {
 public:
  /// For products on `stream` alone: they share one workspace. Throws Failure.
  CublasLt(const CublasLtFound& found, Stream& stream);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// c[m, n] (fp32) = op(a) op(b), row-major as in kernels/kernels.h; on the stream. False where
  /// the library has no algorithm for it, and nothing was done: the first of those is said on
  /// standard error. Throws Failure where the library fails.
  bool product(kernels::GemmForm form, kernels::HalfFormat format, const kernels::GemmShape& shape,
               CUdeviceptr a, CUdeviceptr b, CUdeviceptr c);
  std::size_t version() const;
  /// Products so far, and those that it had no algorithm for.
  std::uint64_t products() const { return products_; }
  std::uint64_t refused() const { return refused_; }

 private:
  struct Plan;  // of one kind of product: descriptors and the algorithm
  // Form, format, m, n, k, alignments of the left, the right operand and the result.
  using Key = std::tuple<int, int, int, int, int, std::uint32_t, std::uint32_t, std::uint32_t>;

  Plan& plan_of(const Key& key);
  void refuse(Plan& plan, const Key& key);

  const cublaslt::Table& table_;
  Stream& stream_;
  cublaslt::Handle handle_ = nullptr;
  std::optional<DeviceArray<std::uint8_t>> workspace_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::uint64_t products_ = 0, refused_ = 0;
};

}  // namespace sluice::train
