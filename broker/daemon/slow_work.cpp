// Threads, a queue to them and one back.
#include "broker/daemon/slow_work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

namespace sluice::daemon {
namespace {

// One that hangs leaves others; more would only wait for the same service.
constexpr int kThreadsMax = 4;
/// So much to be done is never looked through for what is wanted no more.
constexpr std::size_t kTodoLeast = 64;

}  // namespace

// Owned by the threads as well: one that hangs outlives the broker's objects.
struct SlowThreads::Shared {
  struct Todo {
    Work work;
    std::weak_ptr<const void> wanted_by;
  };
  std::mutex mutex;
  std::condition_variable wanted;
  std::deque<Todo> todo;
  std::size_t todo_checked = 0;  // of it were wanted when that was last looked at
  std::vector<Loop::Handler> done;
  devices::Fd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int threads = 0;
  int idle = 0;
  bool over = false;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      wanted.wait(lock, [this] { return over || !todo.empty(); });
      --idle;
      if (over) return;
      const Todo next = std::move(todo.front());
      todo.pop_front();
      if (next.wanted_by.expired()) continue;
      lock.unlock();
      Loop::Handler found = next.work();
      lock.lock();
      if (over || !found) continue;
      done.push_back(std::move(found));
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t told = write(event.get(), &one, sizeof one);
    }
  }

  static void* begin(void* argument) {
    const std::unique_ptr<std::shared_ptr<Shared>> shared(
        static_cast<std::shared_ptr<Shared>*>(argument));
    (*shared)->serve();
    return nullptr;
  }
};

SlowThreads::SlowThreads(Loop& loop) : loop_(loop), shared_(std::make_shared<Shared>()) {
  if (!shared_->event)
    loop_.fault_set(errno);
  else
    key_ = loop_.add(
        shared_->event.get(), [this] { collect(); }, "slow work");
}

SlowThreads::~SlowThreads() {
  loop_.remove(key_);
  const std::lock_guard lock(shared_->mutex);
  shared_->over = true;
  shared_->todo.clear();
  shared_->done.clear();
  shared_->wanted.notify_all();
}

void SlowThreads::run(Work work, std::weak_ptr<const void> wanted_by) {
  const std::lock_guard lock(shared_->mutex);
  // While a service hangs, clients can ask and go as often as they like: what is to be done is no
  // more than twice what is wanted.
  if (shared_->todo.size() > 2 * shared_->todo_checked) {
    std::erase_if(shared_->todo, [](const auto& todo) { return todo.wanted_by.expired(); });
    shared_->todo_checked = std::max(shared_->todo.size(), kTodoLeast);
  }
  shared_->todo.push_back({std::move(work), std::move(wanted_by)});
  shared_->wanted.notify_one();
  if (shared_->idle >= static_cast<int>(shared_->todo.size()) || shared_->threads >= kThreadsMax)
    return;
  // Signals are the loop's; a thread takes over the mask of the one that starts it.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto* argument = new std::shared_ptr<Shared>(shared_);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, Shared::begin, argument) == 0) {
    pthread_detach(thread);
    ++shared_->threads;
  } else {
    delete argument;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void SlowThreads::collect() {
  std::uint64_t count;
  [[maybe_unused]] const ssize_t got = read(shared_->event.get(), &count, sizeof count);
  std::vector<Loop::Handler> found;
  {
    const std::lock_guard lock(shared_->mutex);
    found.swap(shared_->done);
  }
  for (const Loop::Handler& handler : found) handler();
}

}  // namespace sluice::daemon
