// Checkpoints beyond what a document promises: callers that die, moves of a process between two
// devices that it uses both, and what the accounts say meanwhile.
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "softgpu/device/device.h"
#include "softgpu/device/directory.h"
#include "tests/softgpu/driver/fixture.h"

namespace {

using softgpu::device::Snapshot;
using softgpu_test::InChild;

/// A process that runs `body`; both sides can stop for the other. The body's turn() ends when the
/// test's does.
class Partner {
 public:
  explicit Partner(const std::function<bool(Partner&)>& body) {
    EXPECT_EQ(pipe(there_), 0);
    EXPECT_EQ(pipe(back_), 0);
    pid_ = fork();
    if (pid_ == 0) _exit(body(*this) ? 0 : 1);
  }
  ~Partner() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  /// In the body: here I am; waits for the test to say go.
  bool turn() {
    char byte = 0;
    return write(back_[1], "x", 1) == 1 && read(there_[0], &byte, 1) == 1;
  }
  /// In the test: waits for the body to be there.
  void meet() {
    char byte = 0;
    ASSERT_EQ(read(back_[0], &byte, 1), 1);
  }
  void go() { ASSERT_EQ(write(there_[1], "x", 1), 1); }
  /// The body has ended and was content.
  void finish() {
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    EXPECT_EQ(status, 0);
  }
  void end() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int there_[2] = {-1, -1}, back_[2] = {-1, -1};
};

class Checkpoint : public softgpu_test::Driver {
 protected:
  Checkpoint() { setenv("SOFTGPU_COUNT", "2", 1); }
  std::uint64_t used(std::size_t index) const {
    std::string error;
    return softgpu::device::Device(softgpu::device::directory_look(devices.path(), error).at(index))
        .used_bytes();
  }
  static CUprocessState state(pid_t pid) {
    CUprocessState now = CU_PROCESS_STATE_FAILED;
    EXPECT_CU(cuCheckpointProcessGetState(pid, &now));
    return now;
  }
};

constexpr std::size_t kWords = 1 << 20;

/// What a process holds on one device.
struct Holdings {
  CUcontext context = nullptr;
  CUstream stream = nullptr, gone = nullptr;
  CUevent event = nullptr;  // recorded in a stream that has been destroyed
  CUdeviceptr plain = 0, pooled = 0;
  std::vector<unsigned> words = std::vector<unsigned>(kWords);

  bool take(int ordinal) {
    std::iota(words.begin(), words.end(), static_cast<unsigned>(ordinal) * 1000U);
    return cuCtxCreate(&context, nullptr, 0, ordinal) == CUDA_SUCCESS &&
           cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           cuEventCreate(&event, 0) == CUDA_SUCCESS && cuEventRecord(event, gone) == CUDA_SUCCESS &&
           cuStreamDestroy(gone) == CUDA_SUCCESS &&
           cuMemAlloc(&plain, kWords * 4) == CUDA_SUCCESS &&
           cuMemAllocAsync(&pooled, kWords * 4, stream) == CUDA_SUCCESS &&
           cuMemcpyHtoD(plain, words.data(), kWords * 4) == CUDA_SUCCESS &&
           cuMemcpyDtoDAsync(pooled, plain, kWords * 4, stream) == CUDA_SUCCESS &&
           cuStreamSynchronize(stream) == CUDA_SUCCESS;
  }
  bool good() {
    std::vector<unsigned> back(kWords);
    const bool first =
        cuCtxSetCurrent(context) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS &&
        cuMemcpyDtoH(back.data(), plain, kWords * 4) == CUDA_SUCCESS && back == words;
    std::fill(back.begin(), back.end(), 0);
    return first && cuMemcpyDtoHAsync(back.data(), pooled, kWords * 4, stream) == CUDA_SUCCESS &&
           cuStreamSynchronize(stream) == CUDA_SUCCESS && back == words &&
           cuMemFreeAsync(pooled, stream) == CUDA_SUCCESS && cuMemFree(plain) == CUDA_SUCCESS &&
           cuCtxSynchronize() == CUDA_SUCCESS;
  }
};

bool on_two_devices(Partner& partner) {
  Holdings first, second;
  CUuuid before{}, after{};
  if (cuInit(0) != CUDA_SUCCESS || !first.take(0) || !second.take(1)) return false;
  if (cuDeviceGetUuid(&before, 0) != CUDA_SUCCESS || !partner.turn()) return false;
  const bool good = first.good() && second.good();
  return cuDeviceGetUuid(&after, 1) == CUDA_SUCCESS &&
         std::equal(before.bytes, before.bytes + 16, after.bytes) && good;
}

TEST_F(Checkpoint, TwoDevicesChangePlaces) {
  Partner partner(on_two_devices);
  partner.meet();
  const std::uint64_t held = used(0);
  EXPECT_GE(held, 2 * kWords * 4);
  EXPECT_EQ(used(1), held);
  InChild([&] {
    CUcheckpointRestoreArgs args{};
    CUuuid uuids[2];
    ASSERT_CU(cuInit(0));
    for (int i = 0; i < 2; ++i) ASSERT_CU(cuDeviceGetUuid(&uuids[i], i));
    CUcheckpointGpuPair pairs[] = {{uuids[0], uuids[1]}, {uuids[1], uuids[0]}};
    args.gpuPairs = pairs;
    args.gpuPairsCount = 2;
    ASSERT_CU(cuCheckpointProcessLock(partner.pid(), nullptr));
    ASSERT_CU(cuCheckpointProcessCheckpoint(partner.pid(), nullptr));
    EXPECT_EQ(used(0), 0U);
    EXPECT_EQ(used(1), 0U);
    ASSERT_CU(cuCheckpointProcessRestore(partner.pid(), &args));
    EXPECT_EQ(used(0), held);
    EXPECT_EQ(used(1), held);
    ASSERT_CU(cuCheckpointProcessUnlock(partner.pid(), nullptr));
  });
  partner.go();
  partner.finish();
  EXPECT_EQ(used(0), 0U);
  EXPECT_EQ(used(1), 0U);
}

TEST_F(Checkpoint, TwoDevicesCannotBecomeOne) {
  Partner partner(on_two_devices);
  partner.meet();
  InChild([&] {
    CUcheckpointRestoreArgs args{};
    CUuuid uuids[2];
    ASSERT_CU(cuInit(0));
    for (int i = 0; i < 2; ++i) ASSERT_CU(cuDeviceGetUuid(&uuids[i], i));
    CUcheckpointGpuPair pairs[] = {{uuids[0], uuids[1]}, {uuids[1], uuids[1]}};
    args.gpuPairs = pairs;
    args.gpuPairsCount = 2;
    ASSERT_CU(cuCheckpointProcessLock(partner.pid(), nullptr));
    ASSERT_CU(cuCheckpointProcessCheckpoint(partner.pid(), nullptr));
    EXPECT_EQ(cuCheckpointProcessRestore(partner.pid(), &args), CUDA_ERROR_INVALID_VALUE);
    args.gpuPairsCount = 1;
    EXPECT_EQ(cuCheckpointProcessRestore(partner.pid(), &args), CUDA_ERROR_INVALID_VALUE)
        << "the second is not named";
    EXPECT_CU(cuCheckpointProcessRestore(partner.pid(), nullptr)) << "nothing has been lost";
  });
}

/// Waits for work that never ends, and then goes on calling.
bool endless(Partner& partner) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  unsigned turns = 0;
  void* arguments[] = {&turns};
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cuModuleLoadData(&module, softgpu_test::kKernels) != CUDA_SUCCESS ||
      cuModuleGetFunction(&spin, module, "spin") != CUDA_SUCCESS ||
      cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr) != CUDA_SUCCESS)
    return false;
  CUdeviceptr p = 0;
  while (partner.turn())
    if (cuMemAlloc(&p, 16) != CUDA_SUCCESS) return false;
  return true;
}

TEST_F(Checkpoint, ALockWhoseCallerDiesIsGivenUp) {
  setenv("SOFTGPU_PACING", "1", 1);
  Partner target(endless);
  target.meet();
  Partner caller([&](Partner&) {
    if (cuInit(0) != CUDA_SUCCESS) return false;
    (void)cuCheckpointProcessLock(target.pid(), nullptr);  // for ever: the work does not end
    return false;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  target.go();  // its next call waits at the gate
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  caller.end();
  target.meet();  // and has come through
  InChild([&] {
    ASSERT_CU(cuInit(0));
    EXPECT_EQ(state(target.pid()), CU_PROCESS_STATE_RUNNING);
  });
}

TEST_F(Checkpoint, ACallerThatDiesAfterwardsLeavesTheStateToOthers) {
  Partner partner(on_two_devices);
  partner.meet();
  InChild([&] {
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuCheckpointProcessLock(partner.pid(), nullptr));
    ASSERT_CU(cuCheckpointProcessCheckpoint(partner.pid(), nullptr));
  });
  InChild([&] {
    ASSERT_CU(cuInit(0));
    EXPECT_EQ(state(partner.pid()), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_CU(cuCheckpointProcessRestore(partner.pid(), nullptr));
    EXPECT_CU(cuCheckpointProcessUnlock(partner.pid(), nullptr));
  });
}

TEST_F(Checkpoint, AProcessLocksItself) {
  WithContext([](CUcontext) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, 1 << 20));
    ASSERT_CU(cuCheckpointProcessLock(getpid(), nullptr));
    EXPECT_EQ(state(getpid()), CU_PROCESS_STATE_LOCKED);
    ASSERT_CU(cuCheckpointProcessCheckpoint(getpid(), nullptr));
    ASSERT_CU(cuCheckpointProcessRestore(getpid(), nullptr));
    ASSERT_CU(cuCheckpointProcessUnlock(getpid(), nullptr));
    EXPECT_CU(cuMemFree(p));
  });
}

TEST_F(Checkpoint, AForkedChildIsNotHeldAtTheGate) {
  WithContext([](CUcontext) {
    ASSERT_CU(cuCheckpointProcessLock(getpid(), nullptr));
    InChild([] {
      int count = 0;
      EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    });
    ASSERT_CU(cuCheckpointProcessUnlock(getpid(), nullptr));
  });
}

/// Connects without end to the checkpoint socket of `pid` and says nothing.
bool silent_connections(Partner& partner, pid_t pid, uid_t user) {
  if (user != 0 && (setgid(user) != 0 || setuid(user) != 0)) return false;
  std::string name, word;
  for (std::ifstream sockets("/proc/net/unix"); sockets >> word;)
    if (word.starts_with("@softgpu-checkpoint/") && word.ends_with("/" + std::to_string(pid)))
      name = word;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  constexpr int kConnections = 500;
  std::vector<int> held;
  for (int i = 0; i < kConnections; ++i) {
    held.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connect(held.back(), reinterpret_cast<sockaddr*>(&address), length) != 0) return false;
  }
  return partner.turn();
}

void suspend_within(pid_t pid, std::chrono::seconds limit) {
  InChild([&] {
    ASSERT_CU(cuInit(0));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_CU(cuCheckpointProcessLock(pid, nullptr));
    EXPECT_CU(cuCheckpointProcessCheckpoint(pid, nullptr));
    EXPECT_CU(cuCheckpointProcessRestore(pid, nullptr));
    EXPECT_CU(cuCheckpointProcessUnlock(pid, nullptr));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, limit);
  });
}

TEST_F(Checkpoint, SilentConnectionsHoldUpNoOther) {
  Partner partner(on_two_devices);
  partner.meet();
  constexpr std::chrono::seconds kLimit{5};
  Partner same([&](Partner& self) { return silent_connections(self, partner.pid(), 0); });
  same.meet();
  suspend_within(partner.pid(), kLimit);
  same.go();
  same.finish();
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  Partner other([&](Partner& self) { return silent_connections(self, partner.pid(), 20001); });
  other.meet();
  suspend_within(partner.pid(), kLimit);
  other.go();
  other.finish();
}

TEST_F(Checkpoint, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  ASSERT_EQ(chmod(devices.path().c_str(), 01777), 0);
  Partner partner(on_two_devices);
  partner.meet();
  InChild([&] {
    ASSERT_EQ(setgid(20001), 0);
    ASSERT_EQ(setuid(20001), 0);
    ASSERT_CU(cuInit(0));
    for (int i = 0; i < 200; ++i)
      ASSERT_EQ(cuCheckpointProcessLock(partner.pid(), nullptr), CUDA_ERROR_NOT_PERMITTED) << i;
  });
  InChild([&] {
    ASSERT_CU(cuInit(0));
    EXPECT_EQ(state(partner.pid()), CU_PROCESS_STATE_RUNNING);
  });
}

}  // namespace
