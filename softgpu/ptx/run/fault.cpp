// SIGSEGV and SIGBUS inside a launch; see fault.h. The handler decides by a thread-local pointer,
// so faults of other threads are untouched: they go to the handler that was there before us, or
// kill the process as they would have.
#include "softgpu/ptx/run/fault.h"

#include <signal.h>

#include <mutex>

#include "softgpu/ptx/exec/warp.h"

namespace softgpu::ptx {
namespace {

// The initial-exec model: the handler must not allocate thread-local storage.
__attribute__((tls_model("initial-exec"))) thread_local FaultScope* t_scope = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local bool t_passing_on = false;

struct sigaction g_previous[2];

std::size_t slot_of(int signal_number) { return signal_number == SIGSEGV ? 0 : 1; }

void pass_on(int signal_number, siginfo_t* info, void* context) {
  const struct sigaction& previous = g_previous[slot_of(signal_number)];
  const bool has_info = (previous.sa_flags & SA_SIGINFO) != 0;
  if (!t_passing_on && has_info && previous.sa_sigaction != nullptr) {
    t_passing_on = true;
    previous.sa_sigaction(signal_number, info, context);
    t_passing_on = false;
  } else if (!t_passing_on && !has_info && previous.sa_handler != SIG_DFL &&
             previous.sa_handler != SIG_IGN) {
    t_passing_on = true;
    previous.sa_handler(signal_number);
    t_passing_on = false;
  } else {
    // The instruction runs again and the default action takes the process, with the right address
    // in its core.
    signal(signal_number, SIG_DFL);
  }
}

void on_fault(int signal_number, siginfo_t* info, void* context) {
  FaultScope* scope = t_scope;
  // Sent by another process (si_code <= 0): not a fault of the kernel.
  if (scope == nullptr || info->si_code <= 0) return pass_on(signal_number, info, context);
  scope->fault = Fault::kIllegalAddress;
  scope->address = reinterpret_cast<std::uint64_t>(info->si_addr);
  scope->by_processor = true;
  siglongjmp(scope->back, 1);
}

void install_one(int signal_number) {
  struct sigaction now {};
  sigaction(signal_number, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  g_previous[slot_of(signal_number)] = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  // NODEFER: the handler is left by a jump. ONSTACK: a program that set an alternative stack wants
  // it used.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(signal_number, &ours, nullptr);
}

}  // namespace

FaultScope::FaultScope() : outer_(t_scope) { t_scope = this; }
FaultScope::~FaultScope() { t_scope = outer_; }

void fault_handler_install() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  install_one(SIGSEGV);
  install_one(SIGBUS);
}

bool fault_is_ours(const void*) { return t_scope != nullptr; }

void fault_raise(Fault fault, u64 address) {
  t_scope->fault = fault;
  t_scope->address = address;
  siglongjmp(t_scope->back, 1);
}

void fault_text_keep(std::string text) { t_scope->text = std::move(text); }

void local_check(const Warp& w, u64 address, u64 bytes) {
  const auto inside = [&](const u8* start, u64 size) {
    const u64 at = address - reinterpret_cast<u64>(start);
    return at < size && bytes <= size - at;
  };
  if (inside(w.cta->local, w.cta->local_bytes)) return;
  for (const auto& [start, size] : w.stack_blocks) {
    if (inside(start, size)) return;
  }
  fault_raise(Fault::kIllegalAddress, address);
}

}  // namespace softgpu::ptx
