// Parts of probe_driver that start other programs: with a changed driver answer, or with a wrapper
// round the launch; and the starting itself.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/gpu/probe.h"

extern char** environ;

namespace probe {
namespace {

std::string read_all(int fd) {
  std::string text;
  char block[4096];
  for (ssize_t got; (got = read(fd, block, sizeof block)) > 0;) {
    text.append(block, static_cast<size_t>(got));
  }
  return text;
}

std::vector<std::string> environment_with(const std::vector<std::string>& settings) {
  std::vector<std::string> made(settings);
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string name(*one, strcspn(*one, "=") + 1);
    bool replaced = false;
    for (const std::string& setting : settings) replaced |= setting.rfind(name, 0) == 0;
    if (!replaced) made.push_back(*one);
  }
  return made;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> made;
  for (std::string& text : texts) made.push_back(text.data());
  made.push_back(nullptr);
  return made;
}

/// The last line that looks like an object, or how the program ended instead of saying one.
std::string object_or_end(const Answer& answer) {
  const size_t at = answer.text.rfind('{');
  if (at == std::string::npos) return "{\"ended\": \"" + answer.ended + "\"}";
  std::string line = answer.text.substr(at, answer.text.find('\n', at) - at);
  return line;
}

constexpr const char* kLinks[] = {"shared", "static"};
// What probe_change.cpp can change; `none` is the library without a change.
constexpr const char* kChanges[] = {"none",       "total_memory", "sm_count",
                                    "pci_string", "name",         "uuid"};

}  // namespace

std::string sibling_path(const std::string& name) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  return path.substr(0, path.rfind('/') + 1) + name;
}

Answer sibling_run(const std::string& program, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& settings, unsigned timeout_s) {
  // timeout(1) ends the child when it hangs, also when a driver ignores the first signal.
  std::vector<std::string> words{"timeout", "-k", "5", std::to_string(timeout_s),
                                 sibling_path(program)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  // The settings are for the program, not for timeout(1): a preloaded library is put in by env(1).
  if (!settings.empty()) {
    words.insert(words.begin() + 4, "env");
    words.insert(words.begin() + 5, settings.begin(), settings.end());
  }
  std::vector<std::string> environment = environment_with({});
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {"", "no pipe"};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, words[0].c_str(), &actions, nullptr,
                                  pointers_to(words).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Answer answer;
  if (failed == 0) answer.text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  if (failed != 0 || waitpid(child, &status, 0) != child) return {"", "not started"};
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  answer.ended = code == 124 || code == 137 ? "timeout"
                 : code > 128               ? "signal " + std::to_string(code - 128)
                                            : "status " + std::to_string(code);
  return answer;
}

void integrity_print() {
  std::printf("  \"integrity\": {");
  for (const char* link : kLinks) {
    std::printf("%s\"%s\": {", link == kLinks[0] ? "" : ",\n    ", link);
    const std::string program = std::string("probe_runtime_") + link;
    std::printf("\"bare\": %s", object_or_end(sibling_run(program, {})).c_str());
    for (const char* change : kChanges) {
      const Answer answer = sibling_run(program, {},
                                        {"LD_PRELOAD=" + sibling_path("libprobe_change.so"),
                                         std::string("PROBE_CHANGE=") + change});
      std::printf(",\n      \"%s\": %s", change, object_or_end(answer).c_str());
    }
    std::printf("}");
  }
  std::printf("},\n");
}

void overhead_print() {
  const char* launches = getenv("PROBE_LAUNCHES");
  const std::string count = launches != nullptr ? launches : "1000000";
  std::printf("  \"overhead\": {");
  for (const char* link : kLinks) {
    const std::string program = std::string("probe_launch_") + link;
    const Answer bare = sibling_run(program, {count}, {}, 300);
    const Answer wrapped = sibling_run(
        program, {count},
        {"LD_PRELOAD=" + sibling_path("libprobe_change.so"), "PROBE_CHANGE=launch"}, 300);
    std::printf("%s\"%s\": {\"bare\": %s,\n      \"wrapper\": %s}",
                link == kLinks[0] ? "" : ",\n    ", link, object_or_end(bare).c_str(),
                object_or_end(wrapped).c_str());
  }
  std::printf("},\n");
}

}  // namespace probe
