// Rows of family `visibility`: the version of the driver, and how entry points are found -
// cuGetProcAddress with versions and flags, and what dlsym finds.
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include "tests/conformance/capture.h"

namespace conformance {
namespace {

struct Found {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};

Found lookup(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  Found found{CUDA_ERROR_UNKNOWN, &found, no_such<CUdriverProcAddressQueryResult>(77)};
  found.result = cuGetProcAddress(name, &found.function, version, flags, &found.status);
  return found;
}

void* exported(const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }

constexpr cuuint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                     kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

ROW(visibility, the_version_needs_no_initialisation) {
  int version = 0;
  ANSWERS(CUDA_SUCCESS, cuDriverGetVersion(&version));
  EXPECT_GE(version, CUDA_VERSION) << "else the program would not run";
  EXPECT_EQ(version % 10, 0);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(nullptr));
}

ROW(visibility, lookups_need_no_initialisation) {
  const Found init = lookup("cuInit", 2000);
  ANSWERS(CUDA_SUCCESS, init.result);
  ASSERT_NE(init.function, nullptr);
  ANSWERS(CUDA_SUCCESS, reinterpret_cast<PFN_cuInit_v2000>(init.function)(0));
  ANSWERS(CUDA_SUCCESS, cuInit(0));
}

ROW(visibility, a_lookup_gives_what_is_exported) {
  for (const char* name : {"cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuCtxSetCurrent",
                           "cuModuleGetFunction", "cuStreamCreate", "cuEventCreate"}) {
    const Found found = lookup(name, CUDA_VERSION);
    ANSWERS(CUDA_SUCCESS, found.result);
    EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SUCCESS) << name;
    EXPECT_NE(found.function, nullptr) << name;
    EXPECT_EQ(found.function, exported(name)) << name;
  }
}

ROW(visibility, the_version_chooses_the_form) {
  EXPECT_EQ(lookup("cuMemAlloc", 2000).function, exported("cuMemAlloc"));
  EXPECT_EQ(lookup("cuMemAlloc", 3019).function, exported("cuMemAlloc"));
  EXPECT_EQ(lookup("cuMemAlloc", 3020).function, exported("cuMemAlloc_v2"));
  EXPECT_EQ(lookup("cuMemAlloc", CUDA_VERSION).function, exported("cuMemAlloc_v2"));
  EXPECT_NE(exported("cuMemAlloc"), exported("cuMemAlloc_v2"));
}

ROW(visibility, a_name_may_mean_more_than_two_forms) {
  EXPECT_EQ(lookup("cuStreamGetCaptureInfo", 10010, kLegacy).function,
            exported("cuStreamGetCaptureInfo"));
  EXPECT_EQ(lookup("cuStreamGetCaptureInfo", 11030, kLegacy).function,
            exported("cuStreamGetCaptureInfo_v2"));
  EXPECT_EQ(lookup("cuStreamGetCaptureInfo", 12030, kLegacy).function,
            exported("cuStreamGetCaptureInfo_v3"));
}

ROW(visibility, forms_of_the_same_name_take_other_arguments) {
  const Context context;
  CUdevice device = -1;
  const auto old =
      reinterpret_cast<PFN_cuCtxGetDevice_v2000>(lookup("cuCtxGetDevice", 2000).function);
  ASSERT_NE(old, nullptr);
  ANSWERS(CUDA_SUCCESS, old(&device));
  EXPECT_EQ(device, context.device());
  const auto now =
      reinterpret_cast<PFN_cuCtxGetDevice_v13000>(lookup("cuCtxGetDevice", 13000).function);
  ASSERT_NE(now, nullptr);
  MUST(cuCtxSetCurrent(nullptr));
  device = -1;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, old(&device));
  ANSWERS(CUDA_SUCCESS, now(&device, context));
  EXPECT_EQ(device, context.device());
}

ROW(visibility, an_unknown_name_is_no_error) {
  const Found found = lookup("cuNoSuchFunction", CUDA_VERSION);
  ANSWERS(CUDA_SUCCESS, found.result);
  EXPECT_EQ(found.function, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

ROW(visibility, a_name_newer_than_the_version_is_no_error) {
  const Found found = lookup("cuMemAllocAsync", 11010);
  ANSWERS(CUDA_SUCCESS, found.result);
  EXPECT_EQ(found.function, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(lookup("cuMemAllocAsync", 11020).status, CU_GET_PROC_ADDRESS_SUCCESS);
}

ROW(visibility, a_version_newer_than_the_driver_is_refused) {
  int version = 0;
  MUST(cuDriverGetVersion(&version));
  ANSWERS(CUDA_SUCCESS, lookup("cuMemAlloc", version).result);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, lookup("cuMemAlloc", version + 10).result);
}

ROW(visibility, lookup_arguments_are_checked) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuGetProcAddress("cuInit", &function, 12000, 1U << 10, &status));
}

ROW(visibility, the_status_of_a_lookup_is_optional) {
  void* function = nullptr;
  ANSWERS(CUDA_SUCCESS, cuGetProcAddress("cuInit", &function, 12000, 0, nullptr));
  EXPECT_EQ(function, exported("cuInit"));
}

ROW(visibility, the_older_lookup_has_no_status) {
  const auto old =
      reinterpret_cast<PFN_cuGetProcAddress_v11030>(lookup("cuGetProcAddress", 11030).function);
  ASSERT_NE(old, nullptr);
  EXPECT_NE(lookup("cuGetProcAddress", 12000).function, lookup("cuGetProcAddress", 11030).function);
  void* function = nullptr;
  ANSWERS(CUDA_SUCCESS, old("cuMemAlloc", &function, 3020, 0));
  EXPECT_EQ(function, exported("cuMemAlloc_v2"));
  ANSWERS(CUDA_ERROR_NOT_FOUND, old("cuNoSuchFunction", &function, 3020, 0));
}

ROW(visibility, flags_choose_the_default_stream) {
  EXPECT_EQ(lookup("cuLaunchKernel", CUDA_VERSION, kLegacy).function, exported("cuLaunchKernel"));
  EXPECT_EQ(lookup("cuLaunchKernel", CUDA_VERSION, kPerThread).function,
            exported("cuLaunchKernel_ptsz"));
  EXPECT_EQ(lookup("cuMemcpyHtoD", CUDA_VERSION, kPerThread).function,
            exported("cuMemcpyHtoD_v2_ptds"));
  EXPECT_NE(exported("cuLaunchKernel"), exported("cuLaunchKernel_ptsz"));
}

ROW(visibility, without_flags_the_legacy_stream_is_meant) {
  for (const char* name : {"cuLaunchKernel", "cuMemcpyHtoDAsync", "cuStreamSynchronize"})
    EXPECT_EQ(lookup(name, CUDA_VERSION).function, lookup(name, CUDA_VERSION, kLegacy).function);
}

ROW(visibility, what_has_one_form_has_it_with_every_flag) {
  const Found found = lookup("cuStreamCreate", CUDA_VERSION, kPerThread);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_EQ(found.function, exported("cuStreamCreate"));
}

ROW(visibility, the_per_thread_form_works_in_the_threads_stream) {
  const Context context;
  const Cell cell;
  const auto own = reinterpret_cast<PFN_cuMemsetD32Async_v7000_ptsz>(
      lookup("cuMemsetD32Async", CUDA_VERSION, kPerThread).function);
  ASSERT_NE(own, nullptr);
  MUST(capture_begin(CU_STREAM_PER_THREAD));
  MUST(own(cell, 5, 1, nullptr));
  EXPECT_EQ(nodes_count(capture_end(CU_STREAM_PER_THREAD)), 1U) << "captured: it was that stream";
}

ROW(visibility, the_library_exports_every_form) {
  for (const char* symbol :
       {"cuMemAlloc", "cuMemAlloc_v2", "cuCtxCreate_v2", "cuCtxCreate_v4", "cuGetProcAddress",
        "cuGetProcAddress_v2", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemcpyHtoD_v2_ptds"})
    EXPECT_NE(exported(symbol), nullptr) << symbol;
  EXPECT_EQ(exported("cuNoSuchFunction"), nullptr);
}

}  // namespace
}  // namespace conformance
