// Strict mode: host code that follows a device pointer dies, everything else goes on as before.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;
using softgpu_test::InChild;

constexpr std::size_t kBytes = 1 << 20;

bool keys_there() {
  const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);  // a freed key keeps its rights
  if (key >= 0) pkey_free(key);
  return key >= 0;
}

void read_word(CUdeviceptr p) { (void)*reinterpret_cast<volatile unsigned*>(p); }

/// The signal that `body` dies of in a child, 0 when it comes to its end.
int signal_of(const std::function<void()>& body) {
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "the preparations failed";
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void context_make() {
  CUcontext context = nullptr;
  ASSERT_CU(cuInit(0));
  ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
}

CUdeviceptr device_memory() {
  CUdeviceptr p = 0;
  EXPECT_CU(cuMemAlloc(&p, kBytes));
  return p;
}

/// Adds one to all words of `p`, with as many blocks as keep all helpers busy.
void add_one(CUfunction function, CUdeviceptr p) {
  unsigned count = kBytes / 4;
  void* arguments[] = {&p, &count};
  EXPECT_CU(cuLaunchKernel(function, count / 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
}

class Strict : public Driver {
 protected:
  Strict() { setenv("SOFTGPU_STRICT", "1", 1); }
  ~Strict() override { unsetenv("SOFTGPU_STRICT"); }
  void SetUp() override {
    if (!keys_there()) GTEST_SKIP() << "this machine has no memory protection keys";
  }
};

TEST_F(Strict, ReadingDeviceMemoryKills) {
  EXPECT_EQ(signal_of([] {
              context_make();
              read_word(device_memory() + 4096);
            }),
            SIGSEGV);
}

TEST_F(Strict, WithoutItDeviceMemoryIsReadable) {
  unsetenv("SOFTGPU_STRICT");
  EXPECT_EQ(signal_of([] {
              context_make();
              read_word(device_memory() + 4096);
            }),
            0);
}

TEST_F(Strict, WritingDeviceMemoryKills) {
  EXPECT_EQ(signal_of([] {
              context_make();
              *reinterpret_cast<volatile unsigned*>(device_memory()) = 1;
            }),
            SIGSEGV);
}

TEST_F(Strict, AnyThreadIsKeptOut) {
  EXPECT_EQ(signal_of([] {
              context_make();
              const CUdeviceptr p = device_memory();
              std::thread([p] { read_word(p); }).join();
            }),
            SIGSEGV);
}

TEST_F(Strict, ThreadsThatWereThereBeforeAreKeptOut) {
  EXPECT_EQ(signal_of([] {
              std::atomic<CUdeviceptr> p{0};
              std::thread early([&p] {
                while (p == 0) std::this_thread::yield();
                read_word(p);
              });
              context_make();
              p = device_memory();
              early.join();
            }),
            SIGSEGV);
}

TEST_F(Strict, PooledMemoryIsDeviceMemory) {
  EXPECT_EQ(signal_of([] {
              context_make();
              CUdeviceptr p = 0;
              ASSERT_CU(cuMemAllocAsync(&p, kBytes, nullptr));
              ASSERT_CU(cuStreamSynchronize(nullptr));
              read_word(p);
            }),
            SIGSEGV);
}

TEST_F(Strict, MappedMemoryIsDeviceMemory) {
  EXPECT_EQ(
      signal_of([] {
        context_make();
        CUmemAllocationProp prop{};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        std::size_t size = 0;
        CUdeviceptr p = 0;
        CUmemGenericAllocationHandle handle = 0;
        ASSERT_CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        ASSERT_CU(cuMemCreate(&handle, size, &prop, 0));
        ASSERT_CU(cuMemAddressReserve(&p, size, 0, 0, 0));
        ASSERT_CU(cuMemMap(p, size, 0, handle, 0));
        ASSERT_CU(cuMemSetAccess(p, size, &access, 1));
        ASSERT_CU(cuMemsetD8(p, 1, size));
        ASSERT_CU(cuCtxSynchronize());
        read_word(p);
      }),
      SIGSEGV);
}

TEST_F(Strict, VariablesOfModulesAreDeviceMemory) {
  EXPECT_EQ(signal_of([] {
              context_make();
              CUmodule module = nullptr;
              CUdeviceptr p = 0;
              ASSERT_CU(cuModuleLoadData(&module, softgpu_test::kKernels));
              ASSERT_CU(cuModuleGetGlobal(&p, nullptr, module, "counter"));
              read_word(p);
            }),
            SIGSEGV);
}

TEST_F(Strict, HostFunctionsAreHostCode) {
  EXPECT_EQ(signal_of([] {
              context_make();
              CUdeviceptr p = device_memory();
              const auto body = [](void* data) { read_word(*static_cast<CUdeviceptr*>(data)); };
              ASSERT_CU(cuLaunchHostFunc(nullptr, body, &p));
              ASSERT_CU(cuCtxSynchronize());
            }),
            SIGSEGV);
}

TEST_F(Strict, TheSystemIsKeptOutToo) {
  WithContext([](CUcontext) {
    const int null = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    errno = 0;
    EXPECT_EQ(read(null, reinterpret_cast<void*>(device_memory()), 16), -1);
    EXPECT_EQ(errno, EFAULT);
    close(null);
  });
}

TEST_F(Strict, TheDeviceWorksOnItsMemory) {
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("add_one");
    const CUdeviceptr from = device_memory(), to = device_memory();
    std::vector<unsigned> words(kBytes / 4, 40);
    ASSERT_CU(cuMemcpyHtoD(from, words.data(), kBytes));
    ASSERT_CU(cuMemsetD32(to, 0, kBytes / 4));
    add_one(function, from);
    ASSERT_CU(cuMemcpyDtoD(to, from, kBytes));
    add_one(function, to);
    ASSERT_CU(cuMemcpyDtoH(words.data(), to, kBytes));
    EXPECT_EQ(words, std::vector<unsigned>(kBytes / 4, 42));
  });
}

TEST_F(Strict, MemoryOfTheHostStaysReadable) {
  WithContext([](CUcontext) {
    const CUfunction function = Driver::function("add_one");
    CUdeviceptr managed = 0;
    void* pinned = nullptr;
    ASSERT_CU(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    ASSERT_CU(cuMemHostAlloc(&pinned, kBytes, 0));
    for (const CUdeviceptr p : {managed, reinterpret_cast<CUdeviceptr>(pinned)}) {
      auto* words = reinterpret_cast<unsigned*>(p);
      std::fill_n(words, kBytes / 4, 41U);
      add_one(function, p);
      ASSERT_CU(cuCtxSynchronize());
      EXPECT_EQ(words[0], 42U);
      EXPECT_EQ(words[kBytes / 4 - 1], 42U);
    }
  });
}

// A fault leaves the kernel by a jump out of a signal handler, which takes the thread's right.
TEST_F(Strict, AfterAFaultAnotherContextWorks) {
  WithContext([](CUcontext) {
    ASSERT_CU(cuLaunchKernel(Driver::function("write_null"), 64, 1, 1, 32, 1, 1, 0, nullptr,
                             nullptr, nullptr));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    context_make();
    const CUfunction function = Driver::function("add_one");
    const CUdeviceptr p = device_memory();
    std::vector<unsigned> words(kBytes / 4, 0);
    ASSERT_CU(cuMemsetD32(p, 0, kBytes / 4));
    for (int i = 0; i < 5; ++i) add_one(function, p);
    ASSERT_CU(cuMemcpyDtoH(words.data(), p, kBytes));
    EXPECT_EQ(words, std::vector<unsigned>(kBytes / 4, 5));
    EXPECT_EQ(signal_of([p] { read_word(p); }), SIGSEGV) << "a child of this thread";
  });
}

// How a machine without keys answers: one that has no key left is in the same place.
TEST_F(Driver, StrictModeWithoutAKeyIsRefusedInOneLine) {
  setenv("SOFTGPU_STRICT", "1", 1);
  ::testing::internal::CaptureStderr();
  InChild([] {
    while (pkey_alloc(0, 0) >= 0) {
    }
    EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("softgpu: no device: SOFTGPU_STRICT needs a memory protection key"), 0U)
      << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
  unsetenv("SOFTGPU_STRICT");
}

TEST_F(Driver, StrictModeIsOnOrOff) {
  setenv("SOFTGPU_STRICT", "maybe", 1);
  ::testing::internal::CaptureStderr();
  InChild([] { EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("SOFTGPU_STRICT: \"maybe\" is no value"), std::string::npos) << said;
  unsetenv("SOFTGPU_STRICT");
}

}  // namespace
