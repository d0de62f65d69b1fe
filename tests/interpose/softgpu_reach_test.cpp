// Two GPUs, one of which is above its quota with what nobody asked for: what is loaded there is
// refused, and what is loaded on the other one is not, whichever is current.
#include <stdio.h>
#include <stdlib.h>

#include <string>

#include "tests/interpose/softgpu_devices.h"
#include "tests/interpose/softgpu_residual.h"

namespace {

using namespace sluice::test;

std::string managed_text() {
  return ".version 7.0\n.target sm_70\n.address_size 64\n"
         ".visible .global .attribute(.managed) .align 4 .b8 room[64];\n"
         ".visible .entry store()\n{\n  ret;\n}\n";
}

// What the calls load from.
struct Code {
  std::string text, path;
  CUmodule module = nullptr;
  CUlibrary library = nullptr, managed = nullptr;
  CUkernel kernel = nullptr;
  CUfunction listed = nullptr;
};

// A call that may load on the GPU that is current; on a module's or a function's it is `code`'s.
struct Load {
  const char* name;
  CUresult (*call)(const Code& code, void** out);
  void (*undo)(void* out);
};
void module_undo(void* out) { EXPECT_EQ(cuModuleUnload(static_cast<CUmodule>(out)), CUDA_SUCCESS); }
void library_undo(void* out) {
  EXPECT_EQ(cuLibraryUnload(static_cast<CUlibrary>(out)), CUDA_SUCCESS);
}
void nothing(void*) {}

const Load kModuleLoads[] = {
    {"cuModuleLoad",
     [](const Code& code, void** out) {
       return cuModuleLoad(reinterpret_cast<CUmodule*>(out), code.path.c_str());
     },
     module_undo},
    {"cuModuleLoadData",
     [](const Code& code, void** out) {
       return cuModuleLoadData(reinterpret_cast<CUmodule*>(out), code.text.c_str());
     },
     module_undo},
    {"cuModuleLoadDataEx",
     [](const Code& code, void** out) {
       return cuModuleLoadDataEx(reinterpret_cast<CUmodule*>(out), code.text.c_str(), 0, nullptr,
                                 nullptr);
     },
     module_undo},
    {"cuModuleLoadFatBinary",
     [](const Code& code, void** out) {
       return cuModuleLoadFatBinary(reinterpret_cast<CUmodule*>(out), code.text.c_str());
     },
     module_undo},
};

const Load kLibraryLoads[] = {
    {"cuLibraryLoadData",
     [](const Code& code, void** out) {
       return cuLibraryLoadData(reinterpret_cast<CUlibrary*>(out), code.text.c_str(), nullptr,
                                nullptr, 0, nullptr, nullptr, 0);
     },
     library_undo},
    {"cuLibraryLoadFromFile",
     [](const Code& code, void** out) {
       return cuLibraryLoadFromFile(reinterpret_cast<CUlibrary*>(out), code.path.c_str(), nullptr,
                                    nullptr, 0, nullptr, nullptr, 0);
     },
     library_undo},
};

// Of what belongs to a module, whatever is current.
const Load kLateOfModules[] = {
    {"cuModuleGetFunction",
     [](const Code& code, void** out) {
       return cuModuleGetFunction(reinterpret_cast<CUfunction*>(out), code.module, "store");
     },
     nothing},
    {"cuModuleGetGlobal",
     [](const Code& code, void** out) {
       return cuModuleGetGlobal(reinterpret_cast<CUdeviceptr*>(out), nullptr, code.module, "room");
     },
     nothing},
    {"cuFuncLoad",
     [](const Code& code, void** out) {
       const CUresult result = cuFuncLoad(code.listed);
       if (result == CUDA_SUCCESS) *out = nullptr;
       return result;
     },
     nothing},
};

// In the current context.
const Load kLateHere[] = {
    {"cuLibraryGetKernel",
     [](const Code& code, void** out) {
       return cuLibraryGetKernel(reinterpret_cast<CUkernel*>(out), code.library, "store");
     },
     nothing},
    {"cuKernelGetFunction",
     [](const Code& code, void** out) {
       return cuKernelGetFunction(reinterpret_cast<CUfunction*>(out), code.kernel);
     },
     nothing},
    {"cuFuncLoad of a kernel",
     [](const Code& code, void** out) {
       const CUresult result = cuFuncLoad(reinterpret_cast<CUfunction>(code.kernel));
       if (result == CUDA_SUCCESS) *out = nullptr;
       return result;
     },
     nothing},
    {"cuLibraryGetGlobal",
     [](const Code& code, void** out) {
       return cuLibraryGetGlobal(reinterpret_cast<CUdeviceptr*>(out), nullptr, code.library,
                                 "room");
     },
     nothing},
    {"cuLibraryGetModule",
     [](const Code& code, void** out) {
       return cuLibraryGetModule(reinterpret_cast<CUmodule*>(out), code.library);
     },
     nothing},
    {"cuLibraryGetManaged",
     [](const Code& code, void** out) {
       return cuLibraryGetManaged(reinterpret_cast<CUdeviceptr*>(out), nullptr, code.managed,
                                  "room");
     },
     nothing},
    {"cuCtxSetLimit",
     [](const Code&, void** out) {
       const CUresult result = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 12 * kMiB);
       if (result == CUDA_SUCCESS) *out = nullptr;
       return result;
     },
     [](void*) { EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS); }},
};

class SoftGpuReachTest : public SoftGpuDevicesTest {
 protected:
  CUcontext of(int gpu) const { return gpu == 0 ? context : second; }
  void with(int gpu, const std::function<void()>& work) const {
    EXPECT_EQ(cuCtxPushCurrent(of(gpu)), CUDA_SUCCESS);
    work();
    EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  }
  // A printf buffer of the default size comes with the kernel that uses it, stays with the context,
  // and is charged when it is there, whatever the quota says.
  void above_make(int gpu) {
    with(gpu, [&] {
      CUmodule module = nullptr;
      CUfunction function = nullptr;
      ASSERT_EQ(cuMemAlloc(&rest, kQuota - held(getpid(), gpu) - kMiB / 2), CUDA_SUCCESS);
      CUresult result = cuModuleLoadData(&module, kPrinter);
      if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, "k");
      ASSERT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    });
    ASSERT_GT(held(getpid(), gpu), kQuota);
  }
  // Of a GPU, whose context is current while it is made.
  Code code_make(int gpu) {
    Code code;
    code.text = module_text(64 * 1024);
    code.path = directory + "/code.ptx";
    FILE* file = fopen(code.path.c_str(), "w");
    EXPECT_NE(file, nullptr);
    fputs(code.text.c_str(), file);
    fclose(file);
    with(gpu, [&] {
      EXPECT_EQ(cuModuleLoadData(&code.module, code.text.c_str()), CUDA_SUCCESS);
      EXPECT_EQ(cuModuleEnumerateFunctions(&code.listed, 1, code.module), CUDA_SUCCESS);
      for (const auto& [library, text] :
           {std::pair{&code.library, code.text}, std::pair{&code.managed, managed_text()}})
        EXPECT_EQ(
            cuLibraryLoadData(library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
      EXPECT_EQ(cuLibraryEnumerateKernels(&code.kernel, 1, code.library), CUDA_SUCCESS);
    });
    return code;
  }
  template <size_t count>
  static void given(const Load (&loads)[count], const Code& code) {
    for (const Load& load : loads) {
      void* out = reinterpret_cast<void*>(0x77);
      EXPECT_EQ(load.call(code, &out), CUDA_SUCCESS) << load.name;
      if (out != reinterpret_cast<void*>(0x77)) load.undo(out);
    }
  }
  template <size_t count>
  static void refused(const Load (&loads)[count], const Code& code) {
    for (const Load& load : loads) {
      void* out = reinterpret_cast<void*>(0x77);
      EXPECT_EQ(load.call(code, &out), CUDA_ERROR_OUT_OF_MEMORY) << load.name;
      EXPECT_EQ(out, reinterpret_cast<void*>(0x77)) << load.name;
    }
  }
  // All that is asked of a GPU while the other one is above its quota, and of that one.
  void one_above(int above) {
    const int other = 1 - above;
    const Code code = code_make(other), there = code_make(above);
    above_make(above);
    const uint64_t before = held(getpid(), other);
    with(other, [&] {
      given(kModuleLoads, code);
      given(kLibraryLoads, code);
      EXPECT_EQ(held(getpid(), other), before) << "and all is gone again";
      refused(kLateOfModules, there);
      given(kLateHere, code);
    });
    EXPECT_EQ(broker->account(0, static_cast<uint32_t>(other)).refused.load(), 0u);
    with(above, [&] {
      given(kLateOfModules, code);
      refused(kModuleLoads, there);
      refused(kLateOfModules, there);
      refused(kLateHere, there);
      given(kLibraryLoads, there);  // nothing of them is loaded yet
    });
    EXPECT_EQ(broker->account(0, static_cast<uint32_t>(other)).refused.load(), 0u);
    agrees("one is above its quota");
  }
  CUdeviceptr rest = 0;
};

TEST_F(SoftGpuReachTest, TheSecondGpuAboveItsQuotaHindersOnlyItself) { one_above(1); }
TEST_F(SoftGpuReachTest, TheFirstGpuAboveItsQuotaHindersOnlyItself) { one_above(0); }

TEST_F(SoftGpuReachTest, AModuleOfALibraryIsWhereItWasAskedFor) {
  const Code code = code_make(1);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  with(1, [&] { ASSERT_EQ(cuLibraryGetModule(&module, code.library), CUDA_SUCCESS); });
  above_make(1);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_ERROR_OUT_OF_MEMORY);
  const Code here = code_make(0);
  ASSERT_EQ(cuLibraryGetModule(&module, here.library), CUDA_SUCCESS);
  with(1, [&] { EXPECT_EQ(cuModuleGetFunction(&function, module, "store"), CUDA_SUCCESS); });
}

// With everything loaded when it is handed over, a library is loaded into every context there is.
class SoftGpuReachEagerTest : public SoftGpuReachTest {
 protected:
  void SetUp() override {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    SoftGpuReachTest::SetUp();
  }
};

TEST_F(SoftGpuReachEagerTest, ALibraryThatDoesNotFitOnOneGpuIsLoadedOnNone) {
  const std::string text = module_text(3 * kMiB);
  for (const int full : {0, 1}) {
    CUlibrary library = nullptr;
    with(full, [&] { ASSERT_EQ(cuMemAlloc(&rest, kQuota - kContext - kMiB), CUDA_SUCCESS); });
    for (const int current : {0, 1}) {
      with(current, [&] {
        EXPECT_EQ(
            cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
      });
      EXPECT_EQ(library, nullptr);
      EXPECT_EQ(held(getpid(), 1 - full), kContext);
      EXPECT_EQ(held(getpid(), full), kQuota - kMiB);
      agrees("taken back");
    }
    ASSERT_EQ(cuMemFree(rest), CUDA_SUCCESS);
  }
}

TEST_F(SoftGpuReachEagerTest, AboveItsQuotaAGpuGetsNothingOfALibraryAndTheOtherItsModules) {
  for (const int above : {0, 1}) {
    const Code code = code_make(1 - above);
    above_make(above);
    for (const int current : {0, 1}) with(current, [&] { refused(kLibraryLoads, code); });
    with(1 - above, [&] { given(kModuleLoads, code); });
    with(above, [&] { refused(kModuleLoads, code); });
    agrees("one is above its quota");
    // The buffer stays with its context: the next one is in its place.
    EXPECT_EQ(cuDevicePrimaryCtxReset(above), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryUnload(code.library), CUDA_SUCCESS);
    EXPECT_EQ(cuLibraryUnload(code.managed), CUDA_SUCCESS);
    if (above == 0) {
      ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    }
  }
}

}  // namespace
