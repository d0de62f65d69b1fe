// Rows of family `modules`: libraries, whose kernels belong to no context.
#include "tests/conformance/modules.h"

namespace conformance {
namespace {

/// A library of kernels.cu, or of other code; unloaded at the end.
class Library {
 public:
  explicit Library(const void* code = kernels_image().data()) {
    EXPECT_EQ(cuLibraryLoadData(&library_, code, nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
  }
  ~Library() {
    if (library_ != nullptr) cuLibraryUnload(library_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  operator CUlibrary() const { return library_; }  // NOLINT: it stands for the handle

  CUkernel kernel(const char* name) const {
    CUkernel found = nullptr;
    EXPECT_EQ(cuLibraryGetKernel(&found, library_, name), CUDA_SUCCESS) << name;
    return found;
  }

 private:
  CUlibrary library_ = nullptr;
};

int kernel_attribute(CUkernel kernel, CUfunction_attribute attribute, CUdevice device = 0) {
  int value = -1;
  EXPECT_EQ(cuKernelGetAttribute(&value, attribute, kernel, device), CUDA_SUCCESS) << attribute;
  return value;
}

ROW(modules, library_needs_no_context) {
  ASSERT_GT(devices_count(), 0);
  CUlibrary library = nullptr;
  ANSWERS(CUDA_SUCCESS, cuLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0,
                                          nullptr, nullptr, 0));
  CUkernel found = nullptr;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetKernel(&found, library, "empty"));
  const char* name = nullptr;
  ANSWERS(CUDA_SUCCESS, cuKernelGetName(&name, found));
  EXPECT_STREQ(name, "empty");
  ANSWERS(CUDA_SUCCESS, cuLibraryUnload(library));
}

ROW(modules, library_may_be_a_file) {
  const Context context;
  const File file(ptx(ptx_store("answer", 44)));
  CUlibrary library = nullptr;
  MUST(cuLibraryLoadFromFile(&library, file.path(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel found = nullptr;
  MUST(cuLibraryGetKernel(&found, library, "answer"));
  EXPECT_EQ(word_of(reinterpret_cast<CUfunction>(found)), 44U);
  ANSWERS(CUDA_ERROR_FILE_NOT_FOUND,
          cuLibraryLoadFromFile(&library, "/nonexistent/library.fatbin", nullptr, nullptr, 0,
                                nullptr, nullptr, 0));
}

ROW(modules, library_code_may_be_kept_by_the_caller) {
  const Context context;
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* value = reinterpret_cast<void*>(std::uintptr_t{1});
  CUlibrary library = nullptr;
  ANSWERS(CUDA_SUCCESS, cuLibraryLoadData(&library, kernels_image().data(), nullptr, nullptr, 0,
                                          &option, &value, 1));
  const File file(ptx(ptx_store("k", 1)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuLibraryLoadFromFile(&library, file.path(), nullptr, nullptr, 0, &option, &value, 1));
}

ROW(modules, library_copies_its_code) {
  const Context context;
  std::string code = ptx(ptx_store("answer", 45));
  const Library library(code.c_str());
  code.assign(code.size(), '#');
  EXPECT_EQ(word_of(reinterpret_cast<CUfunction>(library.kernel("answer"))), 45U);
}

ROW(modules, library_kernels_by_name) {
  const Context context;
  const Library library;
  CUkernel found = nullptr;
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&found, library, "no_such_kernel"));
  EXPECT_EQ(library.kernel("empty"), library.kernel("empty"));
  EXPECT_NE(library.kernel("empty"), library.kernel("trap"));
}

ROW(modules, library_kernels_are_counted) {
  const Context context;
  const std::string code = ptx(ptx_store("one", 1) + ptx_store("two", 2));
  const Library library(code.c_str());
  unsigned count = 0;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetKernelCount(&count, library));
  EXPECT_EQ(count, 2U);
  CUkernel kernels[2] = {};
  ANSWERS(CUDA_SUCCESS, cuLibraryEnumerateKernels(kernels, 2, library));
  const bool either =
      (kernels[0] == library.kernel("one") && kernels[1] == library.kernel("two")) ||
      (kernels[0] == library.kernel("two") && kernels[1] == library.kernel("one"));
  EXPECT_TRUE(either);
}

ROW(modules, kernel_tells_its_library) {
  const Context context;
  const Library library, other;
  CUlibrary told = nullptr;
  ANSWERS(CUDA_SUCCESS, cuKernelGetLibrary(&told, library.kernel("empty")));
  EXPECT_EQ(told, static_cast<CUlibrary>(library));
}

ROW(modules, kernel_parameters_are_laid_out) {
  const Context context;
  const Library library;
  std::size_t offset = 99, size = 99;
  ANSWERS(CUDA_SUCCESS, cuKernelGetParamInfo(library.kernel("store"), 1, &offset, &size));
  EXPECT_EQ(offset, 8U);
  EXPECT_EQ(size, 4U);
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuKernelGetParamInfo(library.kernel("store"), 2, &offset, &size));
}

ROW(modules, kernel_is_a_function_of_each_context) {
  const Context first;
  const Library library;
  const CUkernel kernel = library.kernel("count_threads");
  CUfunction in_first = nullptr, in_second = nullptr;
  ANSWERS(CUDA_SUCCESS, cuKernelGetFunction(&in_first, kernel));
  const Context second;
  ANSWERS(CUDA_SUCCESS, cuKernelGetFunction(&in_second, kernel));
  EXPECT_NE(in_first, in_second);
  CUfunction again = nullptr;
  ANSWERS(CUDA_SUCCESS, cuKernelGetFunction(&again, kernel));
  EXPECT_EQ(again, in_second);
}

ROW(modules, library_variables_are_of_each_context) {
  const Context first;
  const Library library;
  const auto kernel = reinterpret_cast<CUfunction>(library.kernel("count_threads"));
  CUdeviceptr in_first = 0, in_second = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetGlobal(&in_first, &bytes, library, "counter"));
  EXPECT_EQ(bytes, 4U);
  MUST(launch(kernel, 1, 3, {}));
  MUST(cuCtxSynchronize());
  const Context second;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetGlobal(&in_second, nullptr, library, "counter"));
  EXPECT_NE(in_first, in_second);
  EXPECT_EQ(word_at(in_second), 0U);
  EXPECT_EQ(word_at(in_first), 3U);
}

ROW(modules, library_variables_need_a_context) {
  ASSERT_GT(devices_count(), 0);
  const Library library;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuLibraryGetGlobal(&address, &bytes, library, "counter"));
}

ROW(modules, library_variables_not_there) {
  const Context context;
  const Library library;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal(&address, &bytes, library, "no_such_variable"));
}

ROW(modules, library_managed_variables) {
  const Context context;
  if (device_attribute(context, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0)
    GTEST_SKIP() << "needs managed memory";
  const Library library;
  CUmodule module = nullptr;
  MUST(cuLibraryGetModule(&module, library));
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetManaged(&address, &bytes, library, "managed_word"));
  EXPECT_EQ(bytes, 4U);
  MUST(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<volatile unsigned*>(address), 11U);
  ANSWERS(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&address, &bytes, library, "counter"));
}

ROW(modules, library_has_no_unified_functions) {
  const Context context;
  const Library library;
  void* function = nullptr;
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuLibraryGetUnifiedFunction(&function, library, "no_such_function"));
}

ROW(modules, library_modules_are_not_unloaded_alone) {
  const Context context;
  const Library library;
  CUmodule module = nullptr;
  ANSWERS(CUDA_SUCCESS, cuLibraryGetModule(&module, library));
  ANSWERS(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
  CUfunction function = nullptr;
  ANSWERS(CUDA_SUCCESS, cuModuleGetFunction(&function, module, "empty"));
}

ROW(modules, library_outlives_contexts) {
  CUlibrary library = nullptr;
  {
    const Context context;
    const std::string code = ptx(ptx_store("answer", 46));
    MUST(cuLibraryLoadData(&library, code.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  }
  const Context context;
  CUkernel found = nullptr;
  MUST(cuLibraryGetKernel(&found, library, "answer"));
  EXPECT_EQ(word_of(reinterpret_cast<CUfunction>(found)), 46U);
  ANSWERS(CUDA_SUCCESS, cuLibraryUnload(library));
}

ROW(modules, kernel_attributes_need_no_context) {
  ASSERT_GT(devices_count(), 0);
  const Library library;
  EXPECT_EQ(kernel_attribute(library.kernel("static_shared"), CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            40 * 1024);
  EXPECT_EQ(kernel_attribute(library.kernel("bounded_64"), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            64);
}

ROW(modules, kernel_attributes_reach_its_functions) {
  const Context context;
  const Library library;
  const CUkernel kernel = library.kernel("empty");
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  MUST(cuKernelSetAttribute(attribute, 60 * 1024, kernel, context.device()));
  EXPECT_EQ(kernel_attribute(kernel, attribute), 60 * 1024);
  ANSWERS(CUDA_SUCCESS, cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1,
                                       60 * 1024, nullptr, nullptr, nullptr));
  MUST(cuCtxSynchronize());
  const Context second;
  ANSWERS(CUDA_SUCCESS,
          cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 60 * 1024, nullptr,
                         nullptr, nullptr));  // in later contexts, too
  MUST(cuCtxSynchronize());
}

ROW(modules, function_attributes_win_over_the_kernels) {
  const Context context;
  const Library library;
  const CUkernel kernel = library.kernel("empty");
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CUfunction function = nullptr;
  MUST(cuKernelGetFunction(&function, kernel));
  MUST(cuFuncSetAttribute(function, attribute, 50 * 1024));
  MUST(cuKernelSetAttribute(attribute, 60 * 1024, kernel, context.device()));
  EXPECT_EQ(attribute_of(function, attribute), 50 * 1024);
  EXPECT_EQ(kernel_attribute(kernel, attribute), 60 * 1024);
}

ROW(modules, kernel_attributes_need_a_device) {
  const Context context;
  const Library library;
  int value = 0;
  const auto attribute = CU_FUNC_ATTRIBUTE_NUM_REGS;
  ANSWERS(CUDA_ERROR_INVALID_DEVICE,
          cuKernelGetAttribute(&value, attribute, library.kernel("empty"), devices_count()));
  ANSWERS(CUDA_ERROR_INVALID_VALUE,
          cuKernelSetAttribute(attribute, 8, library.kernel("empty"), 0));  // read-only
}

ROW(modules, kernel_cache_preference_is_a_hint) {
  const Context context;
  const Library library;
  ANSWERS(CUDA_SUCCESS, cuKernelSetCacheConfig(library.kernel("empty"), CU_FUNC_CACHE_PREFER_L1,
                                               context.device()));
  ANSWERS(
      CUDA_ERROR_INVALID_DEVICE,
      cuKernelSetCacheConfig(library.kernel("empty"), CU_FUNC_CACHE_PREFER_L1, devices_count()));
}

}  // namespace
}  // namespace conformance
