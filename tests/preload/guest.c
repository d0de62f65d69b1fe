// A program that uses CUDA and does what programs do to the libraries in them; argv[1] says what.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void* library;

static int call(const char* name, ...) {
  // Enough words for any of the functions used here.
  int (*function)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);
  *(void**)&function = dlsym(library, name);
  if (function == NULL) return -1;
  __builtin_va_list list;
  __builtin_va_start(list, name);
  void* a[11];
  for (int i = 0; i < 11; ++i) a[i] = __builtin_va_arg(list, void*);
  __builtin_va_end(list);
  return function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
}
#define CALL(name, ...) call(name, __VA_ARGS__, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L, 0L)

static void* function;
static const char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin() { ret; }\n";

static int begin(void) {
  static void* context;
  static void* module;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  int bad = CALL("cuInit", 0L) || CALL("cuDevicePrimaryCtxRetain", &context, 0L) ||
            CALL("cuCtxSetCurrent", context) || CALL("cuModuleLoadData", &module, kPtx);
  return bad || CALL("cuModuleGetFunction", &function, module, "spin");
}

static int launch(void) {
  return CALL("cuLaunchKernel", function, 1L, 1L, 1L, 32L, 1L, 1L, 0L, NULL, NULL, NULL);
}

static int allocate(void) {
  unsigned long pointer = 0;
  return CALL("cuMemAlloc_v2", &pointer, 1L << 20) || CALL("cuMemFree_v2", (void*)pointer);
}

static void* loop(void* start) {
  void* context = NULL;
  CALL("cuDevicePrimaryCtxRetain", &context, 0L);
  CALL("cuCtxSetCurrent", context);
  for (int n = 0;; ++n) {
    if (launch() != 0 || allocate() != 0) break;
    if (n == 3) pthread_barrier_wait(start);
  }
  return NULL;
}

// Threads in the middle of CUDA calls while the process ends.
static int threads_at_exit(void) {
  static pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, 5);
  for (int i = 0; i < 4; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, loop, &start) != 0) return 1;
  }
  pthread_barrier_wait(&start);
  return 42;
}

// vfork and exec in the middle of CUDA; the parent goes on as before, the child finds nothing open.
static int vfork_exec(const char* self) {
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = vfork();
    if (pid == 0) {
      execl(self, self, "descriptors", (char*)NULL);
      _exit(1);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) return 2;
    if (launch() != 0 || allocate() != 0) return 3;
  }
  return 0;
}

// A child made in one of four ways, three of which run no fork handlers.
static pid_t child(int way) {
  if (way == 0) return fork();
  if (way == 1) return _Fork();
  if (way == 2) return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  return (pid_t)syscall(SYS_fork);
}

static int ended(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// Children that end in all the ways that programs have, with exit handlers and without; and one
// that calls the driver, which may say what it likes to it.
static int fork_only(const char* self) {
  for (int way = 0; way < 4; ++way) {
    pid_t pid = child(way);
    if (pid == 0) _exit(7);
    if (ended(pid) != 7) return 2;
    pid = child(way);
    if (pid == 0) exit(8);
    if (ended(pid) != 8) return 3;
    pid = child(way);
    if (pid == 0) execl(self, self, "true", (char*)NULL);
    if (ended(pid) != 0) return 4;
    pid = child(way);
    if (pid == 0) {
      alarm(30);
      launch();
      allocate();
      launch();
      exit(9);
    }
    if (ended(pid) != 9) return 5;
  }
  return launch() != 0 || allocate() != 0;
}

// A child uses CUDA for the first time, its own children end, and it ends itself.
static int fork_first(void) {
  for (int way = 0; way < 4; ++way) {
    const pid_t pid = child(way);
    if (pid == 0) {
      if (begin() != 0 || launch() != 0 || allocate() != 0) exit(6);
      const pid_t late = child(way);
      if (late == 0) exit(8);
      exit(ended(late) == 8 && launch() == 0 && allocate() == 0 ? 7 : 5);
    }
    if (ended(pid) != 7) return 2 + way;
  }
  return begin() != 0 || launch() != 0 || allocate() != 0;
}

// Closes what it has not opened itself (but the driver's, which no driver survives) and uses the
// numbers for files of its own.
static int close_all(void) {
  for (int fd = 1000; fd < 4096; ++fd) close(fd);
  int own[50];
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 50; ++i) own[i] = fcntl(null, F_DUPFD, 1000);
  if (launch() != 0 || allocate() != 0) return 2;
  usleep(300000);  // the shim notices, and connects again where there is a broker
  if (launch() != 0 || allocate() != 0) return 3;
  for (int i = 0; i < 50; ++i) {
    char link[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", own[i]);
    if (readlink(path, link, sizeof link - 1) < 0 || strcmp(link, "/dev/null") != 0) return 4;
  }
  return 0;
}

// A plug-in host that unloads its driver and loads it again.
static int reload(void) {
  for (int i = 0; i < 5; ++i) {
    if (launch() != 0 || allocate() != 0) return 2;
    dlclose(library);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 3;
  }
  return dlclose(library);
}

static int descriptors(void) {
  int open_count = 0;
  for (int fd = 3; fd < 4096; ++fd) open_count += fcntl(fd, F_GETFD) >= 0;
  return open_count;
}

// More than the limit that the test sets. Only the result may tell of it.
static int refused(void) {
  unsigned long pointer = 0;
  errno = 77;
  return CALL("cuMemAlloc_v2", &pointer, 200L << 20) == 2 && errno == 77;
}

// The reader of stderr is gone; also for a program that keeps such a signal for later.
static int broken_pipe(void) {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], 2) != 2) return 2;
  close(ends[0]);
  if (!refused()) return 3;
  sigset_t set;
  if (sigpending(&set) != 0 || sigismember(&set, SIGPIPE) != 0) return 4;
  if (pthread_sigmask(SIG_BLOCK, NULL, &set) != 0 || sigismember(&set, SIGPIPE) != 0) return 5;
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  raise(SIGPIPE);
  usleep(1100000);  // until the next line may be said
  if (!refused()) return 6;
  return sigpending(&set) != 0 || sigismember(&set, SIGPIPE) != 1;
}

// The reader of stderr does not read; what it missed is counted in the next line.
static int full_pipe(void) {
  static char text[1 << 20];
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], 2) != 2) return 2;
  const int flags = fcntl(2, F_GETFL);
  fcntl(2, F_SETFL, flags | O_NONBLOCK);
  while (write(2, text, 4096) > 0) continue;
  fcntl(2, F_SETFL, flags);
  if (!refused()) return 3;
  if (read(ends[0], text, sizeof text - 1) <= 0) return 4;
  usleep(1100000);
  if (!refused()) return 5;
  text[read(ends[0], text, sizeof text - 1)] = '\0';
  return strncmp(text, "sluice: refused 200.0 MiB", 25) != 0 ||
         strstr(text, "(1 more since") == NULL;
}

// A file at descriptor 2 from before or after the first CUDA call on; whether a line is in it.
static int file_at_2(const char* path, int flags, const char* when) {
  const int early = strcmp(when, "early") == 0;
  char text[400] = "";
  for (int now = 1; now >= 0; --now) {
    if (now == early) {
      if (strcmp(when, "kept") == 0 && dup(2) < 0) return 2;
      close(2);
      if (open(path, flags | O_CREAT | O_TRUNC, 0600) != 2 || write(2, "DATA\n", 5) != 5) return 2;
    } else if (begin() != 0) {
      return 100;
    }
  }
  if (!refused() || write(2, "MORE\n", 5) != 5) return 3;
  const int file = open(path, O_RDONLY);
  const ssize_t size = read(file, text, sizeof text - 1);
  if (size < 10 || strncmp(text, "DATA\n", 5) != 0 || strcmp(text + size - 5, "MORE\n") != 0)
    return 4;
  return size == 10 ? 10 : strncmp(text + 5, "sluice: refused", 15) == 0 ? 11 : 5;
}

static void* first_calls(void* result) {
  void* context = NULL;
  volatile char own[4096];  // the caller's own needs, and its libraries' thread-local storage
  own[0] = 0;
  *(int*)result = CALL("cuInit", 0L) || CALL("cuDevicePrimaryCtxRetain", &context, 0L) ||
                  CALL("cuCtxSetCurrent", context) || allocate();
  return NULL;
}

// The first calls come from a thread with the smallest stack that there is.
static int small_stack(void) {
  int result = 2;
  pthread_attr_t attributes;
  pthread_t thread;
  library = dlopen("libcuda.so.1", RTLD_NOW);
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)) != 0) return 3;
  if (pthread_create(&thread, &attributes, first_calls, &result) != 0) return 4;
  pthread_join(thread, NULL);
  return result;
}

// As daemons do that start with a clean environment.
static int forget(void) {
  static const char* const names[] = {"LD_PRELOAD", "SLUICE_TENANT", "SLUICE_SOCKET",
                                      "SLUICE_MEMORY", "SLUICE_SM"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) unsetenv(names[i]);
  size_t available = 0, total = 0;
  if (begin() != 0 || CALL("cuMemGetInfo_v2", &available, &total) != 0) return 2;
  return total == 100u << 20 ? 0 : 3;
}

// What valgrind knows not of mremap: a second mapping of the same pages, which is an old size of 0.
static int mremap_deny(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog filter = {sizeof code / sizeof *code, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0;
}

static int mapped_once(int closes) {
  size_t available = 0, total = 0;
  if (mremap_deny() != 0) return 77;
  for (int fd = 1000; closes && fd < 4096; ++fd) close(fd);
  if (begin() != 0) return 3;
  return CALL("cuMemGetInfo_v2", &available, &total) != 0 || total != 100u << 20 ? 2 : 0;
}

// As many descriptors as `count`, standard streams included, and nothing is wrong.
static int few_descriptors(rlim_t count) {
  const struct rlimit few = {count, count};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
  return begin() != 0 || launch() != 0;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "true") == 0) return 0;
  if (strcmp(what, "descriptors") == 0) return descriptors();
  if (strcmp(what, "file_at_2") == 0) {
    return file_at_2(argv[2], (int)strtol(argv[3], NULL, 0), argv[4]);
  }
  if (strcmp(what, "small_stack") == 0) return small_stack();
  if (strcmp(what, "fork_first") == 0) return fork_first();
  if (strcmp(what, "forget") == 0) return forget();
  if (strcmp(what, "few_descriptors") == 0) return few_descriptors((rlim_t)strtoul(argv[2], NULL, 10));
  if (strcmp(what, "mapped_once") == 0) return mapped_once(argc > 2);
  if (begin() != 0) return 100;
  if (launch() != 0 || allocate() != 0) return 101;
  if (strcmp(what, "allocates") == 0) return 0;
  if (strcmp(what, "threads_at_exit") == 0) return threads_at_exit() == 42 ? 0 : 1;
  if (strcmp(what, "vfork_exec") == 0) return vfork_exec(argv[0]);
  if (strcmp(what, "fork_only") == 0) return fork_only(argv[0]);
  if (strcmp(what, "close_all") == 0) return close_all();
  if (strcmp(what, "reload") == 0) return reload();
  if (strcmp(what, "broken_pipe") == 0) return broken_pipe();
  if (strcmp(what, "refuse") == 0) return !refused();
  if (strcmp(what, "full_pipe") == 0) return full_pipe();
  return 99;
}
