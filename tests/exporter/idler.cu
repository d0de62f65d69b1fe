// A program whose GPU is idle for one planted cause: idler CAUSE, until SIGTERM. Each round uses
// the GPU for some ten milliseconds and then, for much longer, does what the cause says.
#include "tests/programs/student.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

// Beside it a timer that the host serves late is little.
static const int kIdleMs = 200;
static const char* folder = ".";

__global__ void busy(float* data, int rounds) {
  float x = data[threadIdx.x];
  for (int r = 0; r < rounds; r++) x = x * 0.999f + 0.5f;
  data[threadIdx.x] = x;
}

static void fail(const char* what) {
  perror(what);
  exit(1);
}
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
static void sleepMs(int ms) { usleep(ms * 1000); }
static void spinMs(double ms) {
  for (double end = now() + ms / 1000; now() < end;) {
  }
}
static void spinCpuMs(double ms) {
  timespec t;
  const auto used = [&] {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
  };
  for (const double end = used() + ms / 1000; used() < end;) {
  }
}
/// A child that does `work` for ever, and ends with its parent.
template <class Work>
static void child(Work work) {
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  _exit(0);
}

// Reads past the page cache until the time is over.
static void readMs(double ms) {
  static int file = -1;
  static char* buffer;
  const size_t kBytes = 8 << 20;
  if (file < 0) {
    const std::string path = std::string(folder) + "/data-" + std::to_string(getpid());
    file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600);
    if (file < 0) fail("open with O_DIRECT");
    unlink(path.c_str());
    if (posix_memalign(reinterpret_cast<void**>(&buffer), 4096, kBytes) != 0) fail("memory");
    memset(buffer, 1, kBytes);
    for (int i = 0; i < 8; i++)
      if (write(file, buffer, kBytes) != ssize_t(kBytes)) fail("write");
    fsync(file);
  }
  off_t at = 0;
  for (double end = now() + ms / 1000; now() < end; at = (at + kBytes) % (8 * kBytes))
    if (pread(file, buffer, kBytes, at) <= 0) fail("read");
}

static int connected[2];
static void socketsOpen() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail("listen");
  connected[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connected[0], reinterpret_cast<sockaddr*>(&address), size) != 0) fail("connect");
  connected[1] = accept(listener, nullptr, nullptr);
}

static int queued[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void* owner(void*) {
  for (;;) {
    pthread_mutex_lock(&mutex);
    sleepMs(kIdleMs);
    pthread_mutex_unlock(&mutex);
    sleepMs(2);  // the other one's turn
  }
  return nullptr;
}

static void pinned() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  sched_setaffinity(0, sizeof one, &one);
}

// What comes before CUDA: what starts other processes.
static void prepare(const std::string& cause) {
  if (cause == "network") {
    socketsOpen();
    child([] {
      for (;;) {
        sleepMs(kIdleMs);
        if (write(connected[1], "x", 1) != 1) _exit(0);
      }
    });
  } else if (cause == "runqueue") {
    for (int i = 0; i < 24; i++) {
      child([] {
        pinned();
        for (;;) spinMs(1000);
      });
    }
  } else if (cause == "loader") {
    if (pipe(queued) != 0) fail("pipe");
    child([] {
      for (;;) {
        readMs(kIdleMs);
        if (write(queued[1], "x", 1) != 1) _exit(0);
      }
    });
  }
}

static void idle(const std::string& cause) {
  char byte;
  if (cause == "cpu") {
    spinMs(kIdleMs);
  } else if (cause == "disk") {
    readMs(kIdleMs);
  } else if (cause == "network") {
    if (read(connected[0], &byte, 1) != 1) fail("read");
  } else if (cause == "lock") {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  } else if (cause == "runqueue") {
    spinCpuMs(10);  // of a CPU that 24 others want as well
  } else if (cause == "loader") {
    if (read(queued[0], &byte, 1) != 1) fail("read");
  } else if (cause == "no-work") {
    sleepMs(kIdleMs);
  } else if (cause != "gate") {  // there the broker does it
    fprintf(stderr, "there is no cause '%s'\n", cause.c_str());
    exit(2);
  }
}

int main(int argc, char** argv) {
  const std::string cause = argc > 1 ? argv[1] : "";
  if (argc > 2) folder = argv[2];
  prepare(cause);
  float* data;
  CUDA_CHECK(cudaMalloc(&data, 128 * sizeof(float)));
  CUDA_CHECK(cudaMemset(data, 0, 128 * sizeof(float)));
  if (cause == "disk") readMs(1);
  pthread_t thread;
  if (cause == "lock" && pthread_create(&thread, nullptr, owner, nullptr) != 0) fail("thread");
  if (cause == "runqueue") pinned();
  printf("idler: started\n");
  fflush(stdout);
  for (;;) {
    busy<<<1, 128>>>(data, 2000);
    CUDA_CHECK(cudaDeviceSynchronize());
    idle(cause);
  }
}
