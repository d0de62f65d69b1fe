// The broker's side of checkpoint jobs: helpers are started, their lines read as they come, their
// ends waited for through pidfds, deadlines kept by one timer; all of it behind one epoll
// descriptor. A job whose helper died or was killed gets a second one, which puts a broken take
// right and asks for the states.
#include "broker/devices/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>

#include "broker/devices/checkpoint_task.h"
#include "broker/devices/probe.h"

namespace sluice::devices {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr std::int64_t kLookAfter_ns = 50'000'000;

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

bool shares_process(const CheckpointJob& a, const CheckpointJob& b) {
  return std::any_of(a.targets.begin(), a.targets.end(), [&](const CheckpointTarget& mine) {
    return std::any_of(b.targets.begin(), b.targets.end(),
                       [&](const CheckpointTarget& other) { return other.pid == mine.pid; });
  });
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return "the helper died of signal " + std::to_string(WTERMSIG(status));
  return "the helper ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

bool checkpoint_all(const CheckpointResult& result, CheckpointState state) {
  return std::all_of(result.processes.begin(), result.processes.end(),
                     [&](const CheckpointedProcess& process) {
                       return process.state == state || process.state == CheckpointState::kGone;
                     });
}

bool checkpoint_clear(const CheckpointResult& result) {
  return std::ranges::all_of(result.processes, [](const CheckpointedProcess& process) {
    switch (process.state) {
      case CheckpointState::kRunning:
      case CheckpointState::kFailed:
      case CheckpointState::kGone:
        return true;
      case CheckpointState::kUnknown:
        return !process.touched;
      default:
        return false;
    }
  });
}

struct Checkpoints::Pool {
  /// Killed, not dead yet: a call in the kernel may take its time.
  struct Leaving {
    pid_t pid;
    Fd pidfd;
    bool watched;  // its end is an event; else it is looked after now and then
  };
  std::string program;
  std::vector<std::string> environment;
  Fd epoll;
  Fd timer;
  std::list<CheckpointTask> working;
  std::deque<CheckpointTask> waiting;
  std::vector<CheckpointDone> done;
  std::vector<Leaving> leaving;
  CheckpointId next = 1;

  Pool(std::string path, const char* const* environ_now)
      : program(std::move(path)),
        environment(probe_environment(environ_now)),
        epoll(epoll_create1(EPOLL_CLOEXEC)),
        timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    if (!watch(timer.get())) epoll.reset();
  }
  ~Pool() {
    for (CheckpointTask& task : working) helper_kill(&task.helper);
    for (const Leaving& helper : leaving) waitpid(helper.pid, nullptr, WNOHANG);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  bool watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    return fd >= 0 && epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  // What is closed leaves the epoll set by itself, unless a child still has it: fork copies
  // descriptors, exec closes them, and in between they hold on to the set.
  void forget(Fd* fd) {
    if (*fd) epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
    fd->reset();
  }

  void helper_kill(CheckpointHelper* helper) {
    kill(-helper->child.pid, SIGKILL);
    forget(&helper->child.output);
    leaving.push_back({helper->child.pid, std::move(helper->pidfd), helper->watched});
  }

  bool helper_start(CheckpointTask* task, std::int64_t limit_ms) {
    ChildOptions options;
    options.program = program;
    options.environment = environment;
    options.arguments = checkpoint_arguments(
        {checkpoint_order(*task), task->job.lock_ms, task->job.pairs, task->job.targets});
    CheckpointHelper& helper = task->helper;
    helper = {};
    int fault = epoll ? child_start(options, &helper.child) : -EMFILE;
    if (fault == 0) {
      fcntl(helper.child.output.get(), F_SETFL, O_NONBLOCK);
      helper.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, helper.child.pid, 0)));
      helper.watched = helper.pidfd && watch(helper.pidfd.get());
      if (!helper.watched || !watch(helper.child.output.get())) {
        fault = -errno;
        helper_kill(&helper);
        all_touched(task);  // it was at work from its start, and nobody has heard of what
      }
    }
    if (fault == 0) {
      helper.deadline_ns = clock_ns() + limit_ms * kNsPerMs;
      return true;
    }
    if (task->result.text.empty()) task->result.step = CheckpointStep::kStart;
    checkpoint_text_add(&task->result,
                        std::string("no helper could be started: ") + std::strerror(-fault));
    return false;
  }

  void all_touched(CheckpointTask* task) {
    task->touched = true;
    for (CheckpointedProcess& process : task->result.processes) process.touched = true;
  }

  /// False = answered with what is known.
  bool begin(CheckpointTask* task) {
    task->start_ns = clock_ns();
    if (helper_start(task, task->job.deadline_ms)) return true;
    if (!task->touched) return false;
    task->afterwards = true;
    return helper_start(task, task->job.afterwards_ms);
  }

  void answer(CheckpointTask* task) {
    CheckpointResult& result = task->result;
    result.ok = result.text.empty();
    if (task->start_ns != 0) result.taken_ns = clock_ns() - task->start_ns;
    done.push_back({task->id, std::move(result)});
  }

  /// True when the task is answered.
  bool task_turn(CheckpointTask* task) {
    CheckpointHelper& helper = task->helper;
    // At its end the output would stay readable.
    if (helper.child.output && !checkpoint_output_read(task)) forget(&helper.child.output);
    siginfo_t info{};
    const bool ended = waitid(P_PID, static_cast<id_t>(helper.child.pid), &info,
                              WEXITED | WNOHANG | WNOWAIT) == 0 &&
                       info.si_pid == helper.child.pid;
    if (!ended && clock_ns() < helper.deadline_ns) return false;
    std::string why;
    if (ended) {
      if (helper.child.output)
        checkpoint_output_read(task);  // what it said between the look and its end
      why = helper_reap(&helper);
    } else {
      const std::int64_t limit_ms =
          task->afterwards ? task->job.afterwards_ms : task->job.deadline_ms;
      why = "no answer within " + std::to_string(limit_ms) + " ms";
      helper_kill(&helper);
    }
    if (helper.ended_well || !second_start(task, why)) {
      answer(task);
      return true;
    }
    return false;
  }

  /// The helper is gone before it was done. True when another one puts right what it left.
  bool second_start(CheckpointTask* task, const std::string& why) {
    // One that could not use the driver has said so and touched nothing.
    if (task->touched || task->result.text.empty()) checkpoint_break_put(task, why);
    if (task->afterwards || !task->touched) return false;
    task->afterwards = true;
    return helper_start(task, task->job.afterwards_ms);
  }

  /// Its processes go with it; by the number of the group while the helper still holds it.
  std::string helper_reap(CheckpointHelper* helper) {
    kill(-helper->child.pid, SIGKILL);
    int status = 0;
    waitpid(helper->child.pid, &status, 0);
    forget(&helper->pidfd);
    forget(&helper->child.output);
    return end_text(status);
  }

  void leaving_reap() {
    std::erase_if(leaving, [&](Leaving& helper) {
      if (waitpid(helper.pid, nullptr, WNOHANG) == 0) return false;
      forget(&helper.pidfd);
      return true;
    });
  }

  bool has_helper(const CheckpointTask& task) const {
    if (working.size() < kCheckpointHelpersMax) return true;
    return working.size() < kCheckpointHelpersMost &&
           std::ranges::none_of(
               working, [&](const CheckpointTask& other) { return other.job.uid == task.job.uid; });
  }

  bool may_start(const CheckpointTask& task,
                 std::deque<CheckpointTask>::const_iterator before) const {
    const auto shares = [&](const CheckpointTask& other) {
      return shares_process(other.job, task.job);
    };
    return std::none_of(working.begin(), working.end(), shares) &&
           std::none_of(waiting.begin(), before, shares);
  }

  void waiting_start() {
    for (auto task = waiting.begin(); task != waiting.end();) {
      if (!has_helper(*task) || !may_start(*task, task)) {
        ++task;
        continue;
      }
      if (begin(&*task))
        working.push_back(std::move(*task));
      else
        answer(&*task);
      task = waiting.erase(task);
    }
  }

  void timer_set() {
    std::int64_t first = 0;
    for (const CheckpointTask& task : working)
      first = first == 0 ? task.helper.deadline_ns : std::min(first, task.helper.deadline_ns);
    if (!std::ranges::all_of(leaving, &Leaving::watched)) {
      const std::int64_t look_ns = clock_ns() + kLookAfter_ns;
      first = first == 0 ? look_ns : std::min(first, look_ns);
    }
    if (!done.empty()) first = 1;  // long ago: readable at once
    itimerspec when{};
    when.it_value = {first / kNsPerS, first % kNsPerS};
    timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  }

  CheckpointTask* find(CheckpointId id) {
    for (CheckpointTask& task : working)
      if (task.id == id) return &task;
    return nullptr;
  }
};

Checkpoints::Checkpoints(std::string program, const char* const* environment)
    : pool_(std::make_unique<Pool>(std::move(program), environment)) {}
Checkpoints::~Checkpoints() = default;

int Checkpoints::descriptor() const { return pool_->epoll.get(); }

CheckpointId Checkpoints::start(CheckpointJob job) {
  CheckpointTask task;
  task.id = pool_->next++;
  for (const CheckpointTarget& target : job.targets)
    task.result.processes.push_back({.pid = target.pid});
  task.job = std::move(job);
  const CheckpointId id = task.id;
  pool_->waiting.push_back(std::move(task));
  pool_->waiting_start();
  pool_->timer_set();
  return id;
}

void Checkpoints::cancel(CheckpointId id) {
  if (CheckpointTask* task = pool_->find(id); task != nullptr) {
    task->cancelled = true;
    if (!task->afterwards) kill(task->helper.child.pid, SIGTERM);
    return;
  }
  const auto task = std::find_if(pool_->waiting.begin(), pool_->waiting.end(),
                                 [&](const CheckpointTask& waiting) { return waiting.id == id; });
  if (task == pool_->waiting.end()) return;
  checkpoint_text_add(&task->result, "cancelled");
  pool_->answer(&*task);
  pool_->waiting.erase(task);
  pool_->timer_set();
}

std::vector<CheckpointDone> Checkpoints::collect() {
  pool_->leaving_reap();
  pool_->working.remove_if([this](CheckpointTask& task) { return pool_->task_turn(&task); });
  pool_->waiting_start();
  std::vector<CheckpointDone> done;
  done.swap(pool_->done);
  pool_->timer_set();
  return done;
}

std::size_t Checkpoints::size() const {
  return pool_->working.size() + pool_->waiting.size() + pool_->done.size();
}

pid_t Checkpoints::helper_pid(CheckpointId id) const {
  const CheckpointTask* task = pool_->find(id);
  return task != nullptr ? task->helper.child.pid : 0;
}

}  // namespace sluice::devices
