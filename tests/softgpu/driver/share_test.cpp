// Memory and events that processes share, when one of them dies or lets go at the wrong moment; and
// pools under many threads.
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using Driver = softgpu_test::Driver;
using softgpu_test::InChild;
using softgpu_test::kMiB;

/// A child that runs `body` with one end of a connection.
class Peer {
 public:
  explicit Peer(const std::function<void(int)>& body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid = fork();
    if (pid == 0) {
      close(ends[0]);
      body(ends[1]);
      std::fflush(stdout);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    socket = ends[0];
  }
  ~Peer() { end(SIGKILL); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  int end(int signal_number) {
    if (pid <= 0) return 0;
    int status = 0;
    if (signal_number != 0) kill(pid, signal_number);
    waitpid(pid, &status, 0);
    close(socket);
    pid = -1;
    return status;
  }
  pid_t pid = -1;
  int socket = -1;
};

template <typename T>
void put(int socket, const T& value) {
  if (send(socket, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) _exit(0);
}

template <typename T>
T get(int socket) {
  T value{};
  if (recv(socket, &value, sizeof value, 0) != sizeof value) _exit(0);  // the other one is dead
  return value;
}

void context_take() {
  CUcontext context = nullptr;
  EXPECT_CU(cuInit(0));
  EXPECT_CU(cuCtxCreate(&context, nullptr, 0, 0));
}

CUmemPoolProps shareable() {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return props;
}

/// Shares new memory for ever, and lets it go when the other side may just be opening it.
[[noreturn]] void export_for_ever(int socket) {
  context_take();
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = shareable();
  EXPECT_CU(cuMemPoolCreate(&pool, &props));
  for (;;) {
    CUdeviceptr p = 0, pooled = 0;
    CUipcMemHandle handle{};
    CUmemPoolPtrExportData data{};
    EXPECT_CU(cuMemAlloc(&p, kMiB));
    EXPECT_CU(cuMemAllocFromPoolAsync(&pooled, kMiB, pool, nullptr));
    EXPECT_CU(cuMemPoolExportPointer(&data, pooled));
    EXPECT_CU(cuIpcGetMemHandle(&handle, p));
    put(socket, handle);
    EXPECT_CU(cuMemFree(pooled));
    EXPECT_CU(cuMemFree(p));
  }
}

[[noreturn]] void import_for_ever(int socket) {
  context_take();
  for (;;) {
    const auto handle = get<CUipcMemHandle>(socket);
    CUdeviceptr p = 0;
    if (cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS)
      continue;  // gone already
    EXPECT_CU(cuMemsetD32(p, 7, 16));
    EXPECT_CU(cuIpcCloseMemHandle(p));
  }
}

std::size_t entries(const std::filesystem::path& directory) {
  std::error_code none;
  const std::filesystem::directory_iterator begin(directory, none), end;
  return static_cast<std::size_t>(std::distance(begin, end));
}

/// Files in /dev/shm that a process has mapped. Their names outlive it, unlike memory files; what
/// else is in that folder is everybody's, and comes and goes.
std::string shared_files_mapped(pid_t pid, const std::string& but_for) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::string line, found;
  while (std::getline(maps, line)) {
    const auto path = line.find("/dev/shm/");
    if (path != std::string::npos && line.compare(path, but_for.size(), but_for) != 0)
      found += line.substr(path) + "\n";
  }
  return found;
}

TEST_F(Driver, SharersKilledAtAnyMomentLeaveNothing) {
  std::string error;
  const auto segments = softgpu::device::directory_open(devices.path(), error);
  ASSERT_EQ(segments.size(), 1U) << error;
  softgpu::device::Device device(segments[0]);
  const std::size_t files = entries(devices.path());
  std::mt19937 random(20250301);
  for (int round = 0; round < 30; ++round) {
    Peer exporter(export_for_ever);
    const int link = exporter.socket;
    const pid_t importer = fork();
    if (importer == 0) import_for_ever(link);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    ASSERT_EQ(shared_files_mapped(exporter.pid, devices.path()), "") << "round " << round;
    ASSERT_EQ(shared_files_mapped(importer, devices.path()), "") << "round " << round;
    const bool exporter_first = random() % 2 == 0;
    if (exporter_first) exporter.end(SIGKILL);
    kill(importer, SIGKILL);
    waitpid(importer, nullptr, 0);
    exporter.end(SIGKILL);
    ASSERT_EQ(device.used_bytes(), 0U) << "round " << round;
    ASSERT_EQ(device.users(), 0U) << "round " << round;
  }
  EXPECT_EQ(entries(devices.path()), files);
}

TEST_F(Driver, OpenedMemoryOutlivesTheExportersFree) {
  Peer exporter([](int socket) {
    context_take();
    CUdeviceptr p = 0;
    CUipcMemHandle handle{};
    ASSERT_CU(cuMemAlloc(&p, 8 * kMiB));
    ASSERT_CU(cuMemsetD32(p, 5, 4));
    ASSERT_CU(cuCtxSynchronize());
    ASSERT_CU(cuIpcGetMemHandle(&handle, p));
    put(socket, handle);
    (void)get<char>(socket);
    ASSERT_CU(cuMemFree(p));
    put(socket, 'f');
    (void)get<char>(socket);
  });
  InChild([&] {
    context_take();
    CUdeviceptr p = 0;
    std::size_t before = 0, after = 0, total = 0;
    unsigned value = 0;
    const auto handle = get<CUipcMemHandle>(exporter.socket);
    ASSERT_CU(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    put(exporter.socket, 'o');
    (void)get<char>(exporter.socket);
    ASSERT_CU(cuMemcpyDtoH(&value, p, 4));
    EXPECT_EQ(value, 5U);
    ASSERT_CU(cuMemGetInfo(&before, &total));
    ASSERT_CU(cuIpcCloseMemHandle(p));
    ASSERT_CU(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before + 8 * kMiB);
    put(exporter.socket, 'd');
  });
  EXPECT_EQ(exporter.end(0), 0);
}

/// What was recorded behind work that does not end has been come to when the recorder goes.
void recorder_goes(const std::function<void(Peer&)>& go) {
  Peer recorder([](int socket) {
    context_take();
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUipcEventHandle handle{};
    unsigned* word = nullptr;
    CUdeviceptr at = 0;
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuIpcGetEventHandle(&handle, event));
    ASSERT_CU(cuMemHostAlloc(reinterpret_cast<void**>(&word), 64, CU_MEMHOSTALLOC_DEVICEMAP));
    *word = 0;
    ASSERT_CU(cuMemHostGetDevicePointer(&at, word, 0));
    ASSERT_CU(cuStreamWaitValue32(stream, at, 1, CU_STREAM_WAIT_VALUE_EQ));  // for ever
    ASSERT_CU(cuEventRecord(event, stream));
    put(socket, handle);
    (void)get<char>(socket);
    execl("/bin/sleep", "sleep", "60", nullptr);
  });
  Peer waiter([&](int socket) {
    context_take();
    CUstream stream = nullptr;
    CUevent event = nullptr;
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuIpcOpenEventHandle(&event, get<CUipcEventHandle>(recorder.socket)));
    ASSERT_CU(cuStreamWaitEvent(stream, event, 0));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    put(socket, 'w');
    EXPECT_CU(cuEventSynchronize(event));
    EXPECT_CU(cuStreamSynchronize(stream));
    put(socket, 'd');
  });
  EXPECT_EQ(get<char>(waiter.socket), 'w');
  go(recorder);
  EXPECT_EQ(get<char>(waiter.socket), 'd');
  EXPECT_EQ(waiter.end(0), 0);
}

TEST_F(Driver, AKilledRecorderHoldsNobody) {
  recorder_goes([](Peer& recorder) { recorder.end(SIGKILL); });
}

TEST_F(Driver, ARecorderThatExecutesAnotherProgramHoldsNobody) {
  recorder_goes([](Peer& recorder) { put(recorder.socket, 'x'); });
}

/// Blocks of many sizes through one pool: each holds what its owner wrote until it is freed.
void blocks_use(CUcontext context, unsigned seed) {
  EXPECT_CU(cuCtxSetCurrent(context));
  std::mt19937 random(seed);
  CUstream streams[2] = {};
  CUevent event = nullptr;
  for (CUstream& stream : streams) EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (unsigned round = 0; round < 200; ++round) {
    const CUstream first = streams[round % 2], second = streams[random() % 2];
    const std::size_t words = 64 + random() % 40000;
    const unsigned value = seed * 1000 + round;
    CUdeviceptr p = 0;
    unsigned ends[2] = {};
    EXPECT_CU(cuMemAllocAsync(&p, words * 4, first));
    EXPECT_CU(cuMemsetD32Async(p, value, words, first));
    EXPECT_CU(cuEventRecord(event, first));
    EXPECT_CU(cuStreamWaitEvent(second, event, 0));
    EXPECT_CU(cuMemcpyDtoHAsync(&ends[0], p, 4, second));
    EXPECT_CU(cuMemcpyDtoHAsync(&ends[1], p + words * 4 - 4, 4, second));
    EXPECT_CU(cuMemFreeAsync(p, second));
    if (round % 7 == 0) {
      EXPECT_CU(cuStreamSynchronize(second));
    }
    EXPECT_EQ(ends[0], value);
    EXPECT_EQ(ends[1], value);
  }
  for (const CUstream stream : streams) {
    EXPECT_CU(cuStreamSynchronize(stream));
    EXPECT_CU(cuStreamDestroy(stream));
  }
}

TEST_F(Driver, PoolsServeManyThreads) {
  WithContext([](CUcontext context) {
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(blocks_use, context, seed);
    for (std::thread& thread : threads) thread.join();
    ASSERT_CU(cuCtxSynchronize());
    CUmemoryPool pool = nullptr;
    cuuint64_t used = 1, reserved = 1;
    ASSERT_CU(cuDeviceGetDefaultMemPool(&pool, 0));
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(used, 0U);
    EXPECT_EQ(reserved, 0U) << "all blocks have become whole chunks again";
  });
}

}  // namespace
