// See checkpoint_target.h. Its module is written by hand: it must not hold a managed variable,
// which alone would keep a process from being checkpointed.
#include "tests/conformance/checkpoint_target.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "tests/conformance/harness.h"

namespace conformance {
namespace {

constexpr char kModule[] = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .entry add_one(.param .u64 data, .param .u32 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %rd2, %r5, 4;
  cvta.to.global.u64 %rd3, %rd1;
  add.s64 %rd4, %rd3, %rd2;
  ld.global.u32 %r6, [%rd4];
  add.s32 %r6, %r6, 1;
  st.global.u32 [%rd4], %r6;
DONE:
  ret;
}

.visible .entry until_set(.param .u64 word)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [word];
  cvta.to.global.u64 %rd2, %rd1;
AGAIN:
  ld.volatile.global.u32 %r1, [%rd2];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}

.visible .entry count_then_store(.param .u64 word, .param .u32 rounds, .param .u32 value)
{
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [word];
  ld.param.u32 %r1, [rounds];
  ld.param.u32 %r2, [value];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r3, 0;
AGAIN:
  add.s32 %r3, %r3, 1;
  ld.volatile.global.u32 %r4, [%rd2];
  setp.lt.u32 %p1, %r3, %r1;
  @%p1 bra AGAIN;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";

constexpr unsigned kWords = kTargetBytes / sizeof(unsigned);
constexpr unsigned kChecked = 1u << 16;  // words that launches change and verification reads
constexpr unsigned kPinnedValue = 77;

/// The child's side: everything it holds.
struct Holdings {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  CUevent first = nullptr, second = nullptr;
  CUdeviceptr buffer = 0;
  unsigned* pinned = nullptr;  // [0] the word of the endless kernel, [1] of the slow one
  unsigned launches = 0;

  bool take() {
    CUdevice device = 0;
    return cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
           cuCtxCreate(&context, nullptr, 0, device) == CUDA_SUCCESS &&
           cuModuleLoadData(&module, kModule) == CUDA_SUCCESS &&
           cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           cuEventCreate(&first, 0) == CUDA_SUCCESS && cuEventCreate(&second, 0) == CUDA_SUCCESS &&
           cuMemAlloc(&buffer, kTargetBytes) == CUDA_SUCCESS && fill() &&
           cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, CU_MEMHOSTALLOC_DEVICEMAP) ==
               CUDA_SUCCESS &&
           words_clear() && cuEventRecord(first, stream) == CUDA_SUCCESS &&
           cuCtxSynchronize() == CUDA_SUCCESS;
  }
  bool words_clear() {
    std::memset(pinned, 0, 4096);
    pinned[100] = kPinnedValue;
    return true;
  }
  bool fill() {
    std::vector<unsigned> words(kWords);
    for (unsigned i = 0; i < kWords; ++i) words[i] = i * 3u;
    return cuMemcpyHtoD(buffer, words.data(), kTargetBytes) == CUDA_SUCCESS;
  }
  CUresult run(const char* name, unsigned grid, unsigned block, std::vector<void*> arguments) {
    CUfunction function = nullptr;
    const CUresult found = cuModuleGetFunction(&function, module, name);
    if (found != CUDA_SUCCESS) return found;
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, arguments.data(), nullptr);
  }
  CUresult launch() {
    unsigned count = kChecked;
    ++launches;
    return run("add_one", kChecked / 256, 256, {&buffer, &count});
  }
  CUresult endless() {
    CUdeviceptr word = 0;
    const CUresult found = cuMemHostGetDevicePointer(&word, pinned, 0);
    return found != CUDA_SUCCESS ? found : run("until_set", 1, 1, {&word});
  }
  CUresult slow() {
    CUdeviceptr word = 0;
    const CUresult found = cuMemHostGetDevicePointer(&word, pinned + 1, 0);
    unsigned rounds = 200'000, value = kPinnedValue;
    return found != CUDA_SUCCESS ? found : run("count_then_store", 1, 1, {&word, &rounds, &value});
  }
  long long verify() {
    std::vector<unsigned> words(kWords);
    if (cuCtxSynchronize() != CUDA_SUCCESS) return -2;
    if (cuMemcpyDtoH(words.data(), buffer, kTargetBytes) != CUDA_SUCCESS) return -3;
    long long wrong = 0;
    for (unsigned i = 0; i < kWords; ++i)
      wrong += words[i] != i * 3u + (i < kChecked ? launches : 0) ? 1 : 0;
    return wrong;
  }
  long long events() {
    float milliseconds = -1;
    if (cuEventRecord(second, stream) != CUDA_SUCCESS) return 1;
    if (cuEventSynchronize(second) != CUDA_SUCCESS) return 2;
    if (cuEventElapsedTime(&milliseconds, first, second) != CUDA_SUCCESS) return 3;
    return milliseconds >= 0 ? 0 : 4;
  }
  long long managed() {
    CUdeviceptr p = 0;
    return cuMemAllocManaged(&p, 1 << 20, CU_MEM_ATTACH_GLOBAL);
  }
  long long import(const CUipcMemHandle& handle) {
    CUdeviceptr p = 0;
    return cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  long long uuid() {
    CUuuid id{};
    long long first_bytes = 0;
    if (cuDeviceGetUuid(&id, 0) != CUDA_SUCCESS) return -1;
    std::memcpy(&first_bytes, id.bytes, sizeof first_bytes);
    return first_bytes;
  }
  long long obey(const Message& message) {
    switch (message.order) {
      case Order::kLaunch:
        return launch();
      case Order::kVerify:
        return verify();
      case Order::kSynchronize:
        return cuCtxSynchronize();
      case Order::kAddress:
        return static_cast<long long>(buffer);
      case Order::kManaged:
        return managed();
      case Order::kEvents:
        return events();
      case Order::kEndless:
        return endless();
      case Order::kRelease:
        std::atomic_ref(pinned[0]).store(1);
        return 0;
      case Order::kPinned:
        return (pinned[100] == kPinnedValue ? 0 : 1) + (pinned[1] == kPinnedValue ? 0 : 2);
      case Order::kImport:
        return import(message.handle);
      case Order::kUuid:
        return uuid();
      case Order::kSlow:
        return slow();
      case Order::kQuit:
        break;
    }
    return -1;
  }
};

[[noreturn]] void child_run(int socket) {
  Holdings holdings;
  long long answer = holdings.take() ? 0 : -1;
  for (;;) {
    Message message;
    if (write(socket, &answer, sizeof answer) != sizeof answer) _exit(1);
    if (read(socket, &message, sizeof message) != sizeof message) _exit(0);
    if (message.order == Order::kQuit) _exit(0);
    answer = holdings.obey(message);
  }
}

}  // namespace

Target::Target() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[0]);
    child_run(ends[1]);
  }
  close(ends[1]);
  socket_ = ends[0];
  long long value = -1;
  ready_ = answer(value) && value == 0;
}

Target::~Target() {
  kill();
  close(socket_);
}

void Target::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Target::send(Order order) {
  Message message;
  message.order = order;
  send(message);
}

void Target::send(const Message& message) {
  EXPECT_EQ(::send(socket_, &message, sizeof message, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof message));
}

bool Target::answer(long long& value, int timeout_ms) {
  pollfd waiting{socket_, POLLIN, 0};
  return poll(&waiting, 1, timeout_ms) == 1 && read(socket_, &value, sizeof value) == sizeof value;
}

long long Target::ask(Order order) {
  long long value = -1;
  send(order);
  return answer(value) ? value : -1;
}

Sleeper::Sleeper() : pid_(fork()) {
  if (pid_ != 0) return;
  for (;;) pause();
}

Sleeper::~Sleeper() {
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace conformance
