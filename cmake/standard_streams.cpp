// Linked into every installed program (sluice_program in SluiceBuild.cmake). Standard output is
// buffered, so a full disk shows when the buffer is flushed: without this file that is after main
// has chosen the exit code, and the program that lost its output ends with 0. A write beyond the
// limit on the size of files raises SIGXFSZ, which ends a program without a word: here it fails.
#include "cmake/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int standard_output_exit_code = 1;

namespace {

// What is opened later must not get the number of a standard stream that is closed: output would
// go there. A program that this one executes finds the stream closed again.
void standard_streams_occupy() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // Writing to standard output fails, as it would without.
    const int access = stream == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    (void)open("/dev/null", access | O_CLOEXEC);
  }
}

/// Flushes standard output. Returns 0, or the errno of a write that failed, now or before.
int standard_output_flush() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) return errno;
  if (!failed_before) return 0;
  // stdio keeps no errno. Another byte has the same fate, or ends the line that was cut off.
  return write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
}

void standard_output_check() {
  const int error = standard_output_flush();
  if (error == 0) return;
  std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program_invocation_short_name,
               error == EBADF ? "it is closed" : std::strerror(error));
  _exit(standard_output_exit_code);
}

// A handler, because a program that this one executes gets the default back, and not what is
// ignored.
void size_signal_catch() {
  struct sigaction action {};
  if (sigaction(SIGXFSZ, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGXFSZ, &action, nullptr);
}

// Before the constructors of all other objects; so the check runs after their exit handlers.
[[gnu::constructor(101)]] void standard_streams_prepare() {
  standard_streams_occupy();
  size_signal_catch();
  std::atexit(standard_output_check);
}

}  // namespace
