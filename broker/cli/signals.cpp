// Handlers that only take note.
#include "broker/cli/signals.h"

namespace sluice::cli {
namespace {

volatile sig_atomic_t signal_seen = 0;

void signal_note(int number) { signal_seen = number; }

}  // namespace

SignalWatch::SignalWatch() {
  signal_seen = 0;
  struct sigaction action {};
  action.sa_handler = signal_note;  // no SA_RESTART: the wait must end
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
  if (interrupt_.sa_handler == SIG_IGN) sigaction(SIGINT, &interrupt_, nullptr);
}

SignalWatch::~SignalWatch() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

int SignalWatch::seen() { return signal_seen; }

}  // namespace sluice::cli
