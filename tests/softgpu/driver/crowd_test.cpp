// Many streams, objects and holders: what one process takes of a device's tables costs the others
// nothing, and a process alone has as many streams as it likes.
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "softgpu/device/segment.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu::device::kQueuesEach;
using softgpu::device::kSharedEach;
using softgpu_test::InChild;
using softgpu_test::kMiB;

class Crowd : public softgpu_test::Driver {
 protected:
  ~Crowd() override {
    for (const int end : {ready[0], ready[1], go[0], go[1]}) close(end);
  }
  /// A process of `body` with a context; it lives on until `go` is closed.
  pid_t beside(const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      close(go[1]);
      CUcontext context = nullptr;
      EXPECT_CU(cuInit(0));
      EXPECT_CU(cuCtxCreate(&context, nullptr, 0, 0));
      body();
      char byte = 0;
      EXPECT_EQ(write(ready[1], "r", 1), 1);
      EXPECT_EQ(read(go[0], &byte, 1), 0);
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    return child;
  }
  void end(const std::vector<pid_t>& children) {
    close(go[1]);
    go[1] = -1;
    for (const pid_t child : children) {
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  }
  int ready[2] = {-1, -1}, go[2] = {-1, -1};

  void SetUp() override {
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(go), 0);
  }
};

constexpr int kStreams = 1500;

void streams_use(int count) {
  CUdeviceptr p = 0;
  ASSERT_CU(cuMemAlloc(&p, 16));
  std::vector<CUstream> streams(static_cast<std::size_t>(count));
  for (CUstream& stream : streams) {
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuMemsetD8Async(p, 1, 16, stream));
  }
  for (const CUstream stream : streams) ASSERT_CU(cuStreamSynchronize(stream));
}

TEST_F(Crowd, StreamsWithoutNumberLeaveTheOthersTheirs) {
  const pid_t child = beside([] { streams_use(kStreams); });
  WithContext([](CUcontext) { streams_use(100); });
  end({child});
}

std::size_t threads() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    count += entry.is_directory() ? 1 : 0;
  return count;
}

TEST_F(Crowd, IdleStreamsKeepNoThreads) {
  WithContext([](CUcontext) {
    streams_use(kStreams);
    for (int look = 0; look < 100 && threads() > 400; ++look)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_LE(threads(), 400U);
    streams_use(10);
  });
}

TEST_F(Crowd, WhatTheHostMapsNoMoreIsSaid) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer needs memory itself";
#endif
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    // Room for what any thread takes from the heap, and for no more device memory than there are
    // addresses for already.
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit little{pages * 4096 + 32 * kMiB, RLIM_INFINITY};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
    ::testing::internal::CaptureStderr();
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 100 && result == CUDA_SUCCESS; ++i) result = cuMemAlloc(&p, kMiB);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_NE(said.find("the host maps no more memory"), std::string::npos) << said;
  });
}

// With the modelled time of a kernel each, more of them than a process has queues.
TEST_F(Crowd, MoreStreamsThanQueuesTakeTurns) {
  setenv("SOFTGPU_PACING", "1", 1);
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    unsigned turns = 20'000;
    void* arguments[] = {&turns};
    std::vector<CUstream> streams(2 * kQueuesEach);
    std::vector<CUevent> events(streams.size());
    for (std::size_t round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < streams.size(); ++i) {
        if (round == 0) {
          ASSERT_CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
          ASSERT_CU(cuEventCreate(&events[i], CU_EVENT_DEFAULT));
        }
        ASSERT_CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, streams[i], arguments, nullptr));
        ASSERT_CU(cuEventRecord(events[i], streams[i]));
      }
      ASSERT_CU(cuCtxSynchronize());
      for (const CUevent event : events) EXPECT_CU(cuEventQuery(event));
    }
    float ms = 0;
    ASSERT_CU(cuEventElapsedTime(&ms, events.front(), events.back()));
  });
}

// A stream that always has work lets others go on that wait for a queue.
TEST_F(Crowd, AStreamThatIsNeverIdleStarvesNone) {
  setenv("SOFTGPU_PACING", "1", 1);
  WithContext([](CUcontext) {
    const CUfunction spin = function("spin");
    unsigned turns = 2'000;
    void* arguments[] = {&turns};
    std::vector<CUstream> busy(kQueuesEach);
    CUstream late = nullptr;
    for (CUstream& stream : busy) {
      ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (int i = 0; i < 100; ++i)
        ASSERT_CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
    }
    ASSERT_CU(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, late, arguments, nullptr));
    ASSERT_CU(cuStreamSynchronize(late));
    std::size_t left = 0;
    for (const CUstream stream : busy)
      if (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) ++left;
    EXPECT_GT(left, 0U) << "it waited for the end of all";
    ASSERT_CU(cuCtxSynchronize());
  });
}

void export_all(std::uint32_t count, CUresult last) {
  for (std::uint32_t i = 0; i <= count; ++i) {
    CUdeviceptr p = 0;
    CUipcMemHandle handle{};
    ASSERT_CU(cuMemAlloc(&p, 256));
    ASSERT_EQ(cuIpcGetMemHandle(&handle, p), i < count ? CUDA_SUCCESS : last) << i;
    if (i == count && last != CUDA_SUCCESS) {
      ASSERT_CU(cuMemFree(p));
    }
  }
}

TEST_F(Crowd, AProcessThatExportsAllItMayLeavesTheOthersTheirs) {
  const pid_t child = beside([] { export_all(kSharedEach, CUDA_ERROR_OUT_OF_MEMORY); });
  WithContext([](CUcontext) { export_all(100, CUDA_SUCCESS); });
  end({child});
  WithContext([](CUcontext) { export_all(kSharedEach, CUDA_ERROR_OUT_OF_MEMORY); });
}

TEST_F(Crowd, ManyProcessesHoldOneObject) {
  setenv("SOFTGPU_CONTEXT", "1MiB", 1);
  int handles[2];
  ASSERT_EQ(pipe(handles), 0);
  std::vector<pid_t> children;
  children.push_back(beside([&] {
    CUdeviceptr p = 0;
    CUipcMemHandle handle{};
    EXPECT_CU(cuMemAlloc(&p, kMiB));
    EXPECT_CU(cuMemsetD32(p, 42, 1));
    EXPECT_CU(cuCtxSynchronize());
    EXPECT_CU(cuIpcGetMemHandle(&handle, p));
    EXPECT_EQ(write(handles[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  }));
  CUipcMemHandle handle{};
  ASSERT_EQ(read(handles[0], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
  for (int i = 0; i < 24; ++i)
    children.push_back(beside([&] {
      CUdeviceptr p = 0;
      unsigned value = 0;
      EXPECT_CU(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      EXPECT_CU(cuMemcpyDtoH(&value, p, 4));
      EXPECT_EQ(value, 42U);
    }));
  end(children);
  for (const int file : handles) close(file);
}

/// Mappings that this process has.
std::size_t mappings() {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  std::size_t lines = 0;
  for (int c = 0; (c = std::fgetc(maps)) != EOF;) lines += c == '\n' ? 1 : 0;
  std::fclose(maps);
  return lines;
}

// A process may have 65,530 mappings (vm.max_map_count).
TEST_F(Crowd, SmallAllocationsShareMappings) {
  WithContext([](CUcontext) {
    const std::size_t before = mappings();
    std::vector<CUdeviceptr> pieces(1000);
    for (CUdeviceptr& p : pieces) ASSERT_CU(cuMemAlloc(&p, 256));
    EXPECT_LT(mappings() - before, 100U);
    // Each is its own all the same.
    for (std::size_t i = 0; i < pieces.size(); ++i)
      ASSERT_CU(cuMemsetD8(pieces[i], static_cast<unsigned char>(i), 256));
    for (std::size_t i = 0; i < pieces.size(); i += 2) ASSERT_CU(cuMemFree(pieces[i]));
    for (std::size_t i = 1; i < pieces.size(); i += 2) {
      unsigned char value = 0;
      ASSERT_CU(cuMemcpyDtoH(&value, pieces[i], 1));
      ASSERT_EQ(value, static_cast<unsigned char>(i));
    }
  });
}

/// What threads with little stack call.
struct Ordinary {
  CUcontext context;
  CUfunction add;
};

void* ordinary_calls(void* with) {
  const auto* const ordinary = static_cast<Ordinary*>(with);
  CUdeviceptr p = 0;
  unsigned n = 32, value = 41;
  void* arguments[] = {&p, &n};
  CUstream stream = nullptr;
  CUcontext context = nullptr;
  EXPECT_CU(cuCtxSetCurrent(ordinary->context));
  EXPECT_CU(cuMemAlloc(&p, 128));
  EXPECT_CU(cuMemcpyHtoD(p, &value, 4));
  EXPECT_CU(cuLaunchKernel(ordinary->add, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_CU(cuMemcpyDtoH(&value, p, 4));
  EXPECT_EQ(value, 42U);
  EXPECT_CU(cuMemFree(p));
  EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  EXPECT_CU(cuMemAllocAsync(&p, 128, stream));
  EXPECT_CU(cuMemFreeAsync(p, stream));
  EXPECT_CU(cuStreamSynchronize(stream));
  EXPECT_CU(cuStreamDestroy(stream));
  EXPECT_CU(cuCtxCreate(&context, nullptr, 0, 0));
  EXPECT_CU(cuCtxDestroy(context));
  return nullptr;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kLittle = 1 << 20;  // instrumented code needs many times as much
#else
constexpr std::size_t kLittle = 24 * 1024;
#endif

TEST_F(Crowd, AThreadWithLittleStackMakesOrdinaryCalls) {
  setenv("SOFTGPU_PACING", "1", 1);  // the model of time has something to do
  WithContext([](CUcontext context) {
    Ordinary ordinary{context, function("add_one")};
    pthread_attr_t attributes;
    pthread_t thread{};
    pthread_attr_init(&attributes);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, kLittle), 0);
    ASSERT_EQ(pthread_create(&thread, &attributes, ordinary_calls, &ordinary), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
  });
}

}  // namespace
