// A process under the shim on a software GPU of its own, with a small broker and one kernel. The
// device knows nothing of the shim, so what both say can be compared.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/interpose/test_broker.h"

namespace sluice::test {

inline constexpr size_t kMiB = 1 << 20;
inline constexpr size_t kContext = 32 * kMiB;
inline constexpr size_t kQuota = 100 * kMiB;

// Counts to n in one thread per block and stores the count.
inline constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r2, 0;
LOOP:
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p1, %r2, %r1;
  @%p1 bra LOOP;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";

class SoftGpuFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(device_make());
    broker = broker_make();
    broker->environment_set();
    ASSERT_NO_FATAL_FAILURE(cuda_begin());
  }
  void device_make(int count = 1) {
    char name[] = "/tmp/sluice-softgpu-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
    setenv("SOFTGPU_DIR", name, 1);
    setenv("SOFTGPU_MEMORY", "256MiB", 1);
    setenv("SOFTGPU_COUNT", std::to_string(count).c_str(), 1);
    ASSERT_TRUE(uuid_read(uuid));
  }
  std::unique_ptr<TestBroker> broker_make() const {
    auto made = std::make_unique<TestBroker>(kQuota, kContext);
    made->gpu_uuid_set(uuid);
    return made;
  }
  void cuda_begin() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (broker != nullptr) broker->lease_store(protocol::kLeaseOpen);
    const std::string command = "rm -rf " + directory;
    EXPECT_EQ(system(command.c_str()), 0);
  }
  // From a child without a tenant: this process must not touch CUDA before its broker knows the
  // GPU. Forked before the broker's thread runs, which may hold a lock of AddressSanitizer's
  // allocator.
  static bool uuid_read(unsigned char out[16], int device = 0) {
    int pipe_fds[2];
    if (pipe(pipe_fds) != 0) return false;
    const pid_t pid = fork();
    if (pid == 0) {
      CUuuid uuid{};
      setenv("SLUICE_SOCKET", "/nonexistent", 1);
      const bool good = cuInit(0) == CUDA_SUCCESS &&
                        cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS &&
                        write(pipe_fds[1], &uuid, sizeof uuid) == sizeof uuid;
      _exit(good ? 0 : 1);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    const bool good = status == 0 && read(pipe_fds[0], out, 16) == 16;
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return good;
  }
  // What the device itself says about a process.
  double device_figure(const char* field, pid_t pid = getpid()) const {
    const std::string command = std::string(SOFTGPU_CTL) + " accounts --json --dir " + directory;
    FILE* out = popen(command.c_str(), "r");
    std::string text(1 << 16, '\0');
    text.resize(fread(text.data(), 1, text.size(), out));
    EXPECT_EQ(pclose(out), 0);
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    const auto process = text.find("\"pid\":" + std::to_string(pid) + ",");
    const auto at = process == std::string::npos
                        ? process
                        : text.find(std::string("\"") + field + "\":", process);
    EXPECT_NE(at, std::string::npos) << field << " of this process in " << text;
    return at == std::string::npos ? -1 : strtod(text.c_str() + text.find(':', at) + 1, nullptr);
  }
  void kernel_load() {
    CUmodule module;
    ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&result, 4), CUDA_SUCCESS);
  }
  CUresult launch(unsigned n, CUstream stream = nullptr, CUdeviceptr out = 0) {
    if (out == 0) out = result;
    void* parameters[] = {&out, &n};
    return cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }
  std::string directory;
  unsigned char uuid[16] = {};
  std::unique_ptr<TestBroker> broker;
  CUcontext context = nullptr;
  CUfunction spin = nullptr;
  CUdeviceptr result = 0;
};

}  // namespace sluice::test
