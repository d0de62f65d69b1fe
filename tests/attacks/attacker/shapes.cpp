// Shapes of processes: how many there are, how each came to be, and what each has lost before its
// first call of the driver.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/attacks/attacker/attack.h"

extern char** environ;

namespace attacks {
namespace {

using Work = std::function<void()>;

void one(const Work& work) {
  work();
  park();
}

/// A child that works and stays; the parent goes on.
pid_t child(const Work& work) {
  const pid_t pid = fork();
  if (pid == 0) one(work);
  return pid;
}

void threads(const Work& work) {
  std::array<std::thread, 4> all;
  for (std::thread& thread : all) thread = std::thread(work);
  for (std::thread& thread : all) thread.join();
  park();
}

void eight(const Work& work) {
  for (int n = 0; n < 7; ++n) child(work);
  one(work);
}

/// Seven processes, each but the last four with two children.
void tree(const Work& work) {
  for (int depth = 0; depth < 2; ++depth) {
    bool parent = true;
    for (int n = 0; n < 2 && parent; ++n) parent = fork() != 0;
    if (parent) break;
  }
  one(work);
}

/// This program anew, in the named shape and with so many generations to come: never more than this
/// one has, so that no chain of programs grows.
void program_again(const std::string& shape, int left) {
  if (left >= options.left) return;
  std::vector<std::string> words{options.program};
  for (std::size_t i = 0; i + 1 < options.words.size(); i += 2)
    if (options.words[i] != "--left" && options.words[i] != "--shape")
      words.insert(words.end(), {options.words[i], options.words[i + 1]});
  words.insert(words.end(), {"--shape", shape, "--left", std::to_string(left)});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv("/proc/self/exe", arguments.data());
}

void exec(const Work& work) {
  work();
  if (options.left > 0) program_again(options.shape, options.left - 1);
  park();
}

/// Every generation leaves a child behind that has taken what it could.
void exec_tree(const Work& work) {
  if (options.left > 0) child(work);
  exec(work);
}

void descriptors_close() { (void)syscall(SYS_close_range, 3U, ~0U, 0U); }

void closed_first(const Work& work) {
  descriptors_close();
  one(work);
}

void closed_after(const Work& work) {
  (void)gpu_open();
  descriptors_close();
  one(work);
}

/// A descriptor that is closed may belong to any library, and its number is soon another one's.
void closing(const Work& work) {
  std::atomic<bool> end{false};
  std::thread closer([&end] {
    while (!end) {
      descriptors_close();
      usleep(500);
    }
  });
  work();
  end = true;
  closer.join();
  park();
}

/// Nothing of the environment is left but what names the software GPU, as hardware needs no name.
void cleared(const Work& work) {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::strncmp(*entry, "SOFTGPU_", 8) == 0) kept.emplace_back(*entry);
  (void)clearenv();
  for (const std::string& entry : kept) {
    const std::size_t equals = entry.find('=');
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
  one(work);
}

/// A daemon whose parents have ended.
void daemon_shape(const Work& work) {
  if (fork() != 0) _exit(0);
  (void)setsid();
  if (fork() != 0) _exit(0);
  one(work);
}

/// The parent takes what it can, and is killed; the children go on.
void orphans(const Work& work) {
  for (int n = 0; n < 3; ++n) child(work);
  work();
  (void)raise(SIGKILL);
}

/// No descriptor is to be had when the driver is first called, and later there are some.
void no_descriptors(const Work& work) {
  rlimit usual{};
  (void)getrlimit(RLIMIT_NOFILE, &usual);
  const rlimit few{3, usual.rlim_max};
  (void)setrlimit(RLIMIT_NOFILE, &few);
  (void)cuInit(0);
  (void)setrlimit(RLIMIT_NOFILE, &usual);
  one(work);
}

/// Just enough descriptors for the driver; none for anything beside it.
void few_descriptors(const Work& work) {
  rlimit usual{};
  (void)getrlimit(RLIMIT_NOFILE, &usual);
  const rlim_t some = 6 + options.seed % 12;
  const rlimit few{some, usual.rlim_max};
  (void)setrlimit(RLIMIT_NOFILE, &few);
  one(work);
}

/// The kernel refuses every new socket.
void no_sockets(const Work& work) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 13),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof rules / sizeof *rules, rules};
  (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  one(work);
}

/// The kernel starts no thread of the process after the first call of the driver would need one.
void no_threads(const Work& work) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 11),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof rules / sizeof *rules, rules};
  (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  one(work);
}

/// The broker's socket is covered by an empty file, in this process's own view of the file system.
void hidden_socket(const Work& work) {
  const char* socket = getenv("SLUICE_SOCKET");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 && unshare(CLONE_NEWNS) != 0)
    tell("closed no namespace");
  (void)mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  if (socket != nullptr) (void)mount("/dev/null", socket, nullptr, MS_BIND, nullptr);
  one(work);
}

void other_namespace(const Work& work) {
  (void)unshare(CLONE_NEWUSER | CLONE_NEWNET);
  one(work);
}

/// In a PID namespace of its own, beside a process that has in there the number that this one has
/// outside: whoever looks for the broker's number in there finds the other one.
void decoy(const Work& work) {
  int outside[2];
  if (pipe(outside) != 0) return;
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 &&
      unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0)
    tell("closed no namespace");
  const pid_t inner = fork();
  if (inner != 0) {
    (void)!write(outside[1], &inner, sizeof inner);
    park();
  }
  (void)mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  (void)mount("proc", "/proc", "proc", 0, nullptr);
  pid_t number = 0;
  (void)!read(outside[0], &number, sizeof number);
  const std::string last = std::to_string(number - 1);
  const int next = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
  if (write(next, last.c_str(), last.size()) < 0) tell("closed no numbers");
  close(next);
  int opened[2];
  if (pipe(opened) != 0) return;
  if (fork() == 0) {
    (void)gpu_open();
    (void)!write(opened[1], "x", 1);
    park();
  }
  char word = 0;
  (void)!read(opened[0], &word, 1);
  one(work);
}

void undumpable(const Work& work) {
  (void)prctl(PR_SET_DUMPABLE, 0);
  one(work);
}

void spawned(const Work& work) {
  std::vector<std::string> words{options.program};
  for (const std::string& word : options.words) words.push_back(word == "spawned" ? "one" : word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (int n = 0; n < 3; ++n) {
    pid_t pid = 0;
    (void)posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ);
  }
  one(work);
}

/// Children that run no fork handlers.
void bare_forks(const Work& work) {
  for (int n = 0; n < 3; ++n)
    if (syscall(SYS_fork) == 0) one(work);
  one(work);
}

/// Children of a process that has a context: each executes the program anew, and takes what it can.
void forked_late(const Work& work) {
  (void)gpu_open();
  for (int n = 0; n < 3; ++n)
    if (fork() == 0) {
      program_again("one", 0);
      _exit(1);
    }
  one(work);
}

/// Children are killed at random moments of their work; the next ones must have all that these
/// held.
void mortal(const Work& work) {
  std::mt19937 random(options.seed);
  for (int round = 0; round < 12; ++round) {
    const pid_t pid = fork();
    if (pid == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int nowhere = open("/dev/null", O_WRONLY);
      (void)dup2(nowhere, STDOUT_FILENO);
      one(work);
    }
    usleep(static_cast<useconds_t>(random() % 40000));
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, nullptr, 0);
  }
  one(work);
}

/// Every thread ends after its work; the memory is the process's all the same.
void threads_that_end(const Work& work) {
  for (int n = 0; n < 3; ++n) std::thread(work).join();
  park();
}

/// Five children, one after the other: each takes what it can, leaves a process that keeps its
/// address space, and dies.
template <class End>
void kept_each(const Work& work, End end) {
  constexpr int kChildren = 5;
  constexpr useconds_t kPause_us = 200'000;
  for (int n = 0; n < kChildren; ++n) {
    const pid_t pid = fork();
    if (pid == 0) {
      work();
      end();
    }
    (void)waitpid(pid, nullptr, WUNTRACED);
    usleep(kPause_us);
  }
  park();
}

void kept(const Work& work) {
  kept_each(work, [] {
    keeper_start();
    (void)raise(SIGKILL);
  });
}

/// The keeper is the child of vfork, and kills its parent.
void kept_vfork(const Work& work) {
  kept_each(work, [] {
    const pid_t self = getpid();
    if (vfork() == 0) {
      (void)kill(self, SIGKILL);
      park();
    }
  });
}

/// The process ends by itself, without a word to the driver.
void kept_exit(const Work& work) {
  kept_each(work, [] {
    keeper_start();
    _exit(0);
  });
}

/// Shares the descriptors of its parent, and nothing else.
pid_t child_with_descriptors() {
  return static_cast<pid_t>(
      syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, 0));
}

/// Another process, which calls no driver, has the descriptors of all these. They die `pause_us`
/// after their work.
void heirs_each(const Work& work, useconds_t pause_us) {
  constexpr int kChildren = 5;
  if (child_with_descriptors() == 0) park();
  for (int n = 0; n < kChildren; ++n) {
    const pid_t pid = child_with_descriptors();
    if (pid == 0) {
      work();
      usleep(pause_us);
      (void)raise(SIGKILL);
    }
    (void)waitpid(pid, nullptr, 0);
  }
  park();
}

void heirs(const Work& work) { heirs_each(work, 0); }

/// What they leave was on the device when the broker last looked.
void heirs_late(const Work& work) { heirs_each(work, 1'300'000); }

/// Descriptors outlive the program that made them, in its process.
void heirs_exec(const Work& work) {
  if (options.left == 0 && child_with_descriptors() == 0) park();
  work();
  usleep(1'300'000);
  for (int file = 3; file < 1024; ++file)
    if (fcntl(file, F_GETFD) >= 0) (void)fcntl(file, F_SETFD, 0);
  if (options.left > 0) program_again(options.shape, options.left - 1);
  park();
}

struct Shape {
  const char* name;
  void (*run)(const Work& work);
};
constexpr Shape kShapes[] = {{"one", one},
                             {"threads", threads},
                             {"eight", eight},
                             {"tree", tree},
                             {"exec", exec},
                             {"exec_tree", exec_tree},
                             {"closed_first", closed_first},
                             {"closed_after", closed_after},
                             {"closing", closing},
                             {"cleared", cleared},
                             {"daemon", daemon_shape},
                             {"orphans", orphans},
                             {"no_descriptors", no_descriptors},
                             {"few_descriptors", few_descriptors},
                             {"no_sockets", no_sockets},
                             {"no_threads", no_threads},
                             {"hidden_socket", hidden_socket},
                             {"other_namespace", other_namespace},
                             {"decoy", decoy},
                             {"undumpable", undumpable},
                             {"spawned", spawned},
                             {"bare_forks", bare_forks},
                             {"forked_late", forked_late},
                             {"mortal", mortal},
                             {"threads_that_end", threads_that_end},
                             {"kept", kept},
                             {"kept_vfork", kept_vfork},
                             {"kept_exit", kept_exit},
                             {"heirs", heirs},
                             {"heirs_late", heirs_late},
                             {"heirs_exec", heirs_exec}};

}  // namespace

void keeper_start() {
  constexpr std::size_t kStackBytes = 65'536;
  auto* stack = static_cast<char*>(std::malloc(kStackBytes));
  (void)clone([](void*) -> int { park(); }, stack + kStackBytes, CLONE_VM, nullptr);
}

bool shape_run(const std::string& name, const std::function<void()>& work) {
  for (const Shape& shape : kShapes) {
    if (name != shape.name) continue;
    shape.run(work);
    return true;
  }
  return false;
}

}  // namespace attacks
