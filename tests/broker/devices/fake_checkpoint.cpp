// The checkpoint calls of the driver's double. FAKE_CHECKPOINT names a folder; in it the file PID
// holds the state of that process (a CUprocessState; no file = RUNNING), `log` gets a line
// "STEP PID" for each call, and `script` says which calls go wrong, one a line:
//
//   STEP PID WHAT     WHAT: a CUresult | hang | crash | lost (state FAILED and UNKNOWN) |
//                     die (the target is killed, then UNKNOWN) | wait
//
// A hang, a crash or a wait happens once (`happened` has the line), "hang always" each time. A hang
// and a wait tell who reads the pipe `there`, if there is one; a wait then ends when someone opens
// the pipe `go` for writing, and the call goes on as it should.
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

enum { kRunning = 0, kLocked = 1, kCheckpointed = 2, kFailed = 3 };
constexpr int kInvalidValue = 1, kIllegalState = 401, kUnknown = 999;

std::string path_of(const std::string& name) {
  const char* folder = std::getenv("FAKE_CHECKPOINT");
  return std::string(folder != nullptr ? folder : "/nonexistent") + "/" + name;
}

/// Negative = it cannot be told.
int state_get(int pid) {
  const int fd = open(path_of(std::to_string(pid)).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? kRunning : -1;
  char digit = '0';
  const ssize_t got = read(fd, &digit, 1);
  close(fd);
  return got < 0 ? -1 : got == 0 ? kRunning : digit - '0';
}

/// In one write, so that who is killed in the middle has changed it or has not. False = it has not.
bool state_set(int pid, int state) {
  const int fd = open(path_of(std::to_string(pid)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const char digit = static_cast<char>('0' + state);
  const bool done = fd >= 0 && write(fd, &digit, 1) == 1;
  if (fd >= 0) close(fd);
  return done;
}

void line_append(const char* name, const std::string& text) {
  const int fd = open(path_of(name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string line = text + "\n";
  (void)!write(fd, line.data(), line.size());
  close(fd);
}

bool line_find(const char* name, const std::string& text) {
  std::ifstream file(path_of(name));
  for (std::string line; std::getline(file, line);)
    if (line == text) return true;
  return false;
}

void hang() {
  for (;;) pause();
}

// Opening a named pipe waits for the other end.
void tell() { close(open(path_of("there").c_str(), O_WRONLY | O_CLOEXEC)); }

// 0 = the call goes on as it should.
int scripted(const std::string& step, int pid) {
  std::ifstream file(path_of("script"));
  for (std::string line; std::getline(file, line);) {
    const std::string call = step + " " + std::to_string(pid) + " ";
    if (line.rfind(call, 0) != 0) continue;
    const std::string what = line.substr(call.size());
    if (what == "hang always") hang();
    const bool once = what == "hang" || what == "crash" || what == "wait";
    if (once && line_find("happened", line)) continue;
    if (once) line_append("happened", line);
    if (what == "hang" || what == "wait") tell();
    if (what == "hang") hang();
    if (what == "wait") {
      close(open(path_of("go").c_str(), O_RDONLY | O_CLOEXEC));
      continue;
    }
    if (what == "crash") std::raise(SIGABRT);
    if (what == "die") kill(pid, SIGKILL);
    if (what == "lost") state_set(pid, kFailed);
    return what == "lost" || what == "die" ? kUnknown : std::atoi(what.c_str());
  }
  return 0;
}

int transition(const char* step, int pid, int from, int to) {
  line_append("log", std::string(step) + " " + std::to_string(pid));
  if (kill(pid, 0) != 0) return kInvalidValue;
  if (const int result = scripted(step, pid); result != 0) return result;
  const int now = state_get(pid);
  if (now != from) return now < 0 ? kUnknown : kIllegalState;
  return state_set(pid, to) ? 0 : kUnknown;
}

}  // namespace

extern "C" {

int cuCheckpointProcessGetState(int pid, int* state) {
  if (const int result = scripted("state", pid); result != 0) return result;
  if (kill(pid, 0) != 0) return kInvalidValue;
  *state = state_get(pid);
  return *state < 0 ? kUnknown : 0;
}
int cuCheckpointProcessLock(int pid, const unsigned* timeout_ms) {
  if (*timeout_ms == 0) std::abort();  // for ever: nobody may ask for that
  return transition("lock", pid, kRunning, kLocked);
}
int cuCheckpointProcessCheckpoint(int pid, void*) {
  return transition("checkpoint", pid, kLocked, kCheckpointed);
}
int cuCheckpointProcessRestore(int pid, void*) {
  return transition("restore", pid, kCheckpointed, kLocked);
}
int cuCheckpointProcessUnlock(int pid, void*) {
  return transition("unlock", pid, kLocked, kRunning);
}

}  // extern "C"
