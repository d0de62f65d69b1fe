// See child.h. An answer begins with '=', anything else is a failure's text.
#include "trainer/job/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "trainer/base/failure.h"

namespace sluice::train {
namespace {

class AskedChild {
 public:
  AskedChild(int index, const std::function<std::string(int)>& work) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw errno_failure("making a pipe");
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) {
      close(ends[0]);
      close(ends[1]);
      throw errno_failure("forking");
    }
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      answer(ends[1], index, work);
    }
    close(ends[1]);
    end_ = ends[0];
  }
  ~AskedChild() {
    if (end_ >= 0) close(end_);
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  AskedChild(AskedChild&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), end_(std::exchange(other.end_, -1)) {}
  AskedChild& operator=(AskedChild&&) = delete;

  std::string wait() {
    char buffer[4096];
    std::string text;
    for (ssize_t got; (got = read(end_, buffer, sizeof buffer)) != 0;) {
      if (got < 0 && errno != EINTR) break;
      if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    }
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    return text;
  }

 private:
  [[noreturn]] static void answer(int end, int index, const std::function<std::string(int)>& work) {
    std::string text;
    try {
      text = "=" + work(index);
    } catch (const std::exception& failure) {
      text = failure.what();
    }
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t got = write(end, text.data() + sent, text.size() - sent);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) _exit(1);
      sent += static_cast<std::size_t>(got);
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int end_ = -1;
};

}  // namespace

std::vector<std::string> children_ask(int count, const char* busy,
                                      const std::function<std::string(int)>& work) {
  std::vector<AskedChild> children;
  for (int i = 0; i < count; ++i) children.emplace_back(i, work);
  std::vector<std::string> answers;
  for (AskedChild& child : children) {
    std::string text = child.wait();
    if (text.empty()) {
      throw Failure(std::string("the CUDA driver ended the process that was ") + busy);
    }
    if (text[0] != '=') throw Failure(text);
    answers.push_back(text.substr(1));
  }
  return answers;
}

}  // namespace sluice::train
