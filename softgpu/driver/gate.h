// The gate that every driver call passes: closed while another process holds this one locked
// (checkpoint.h), so that calls block, and aware of who is inside, so that the lock knows when
// nobody is. Knows nothing of what a call does.
#pragma once

namespace softgpu::driver {

/// One driver call of the calling thread; calls that the driver makes of itself are part of it.
/// Waits while the gate is closed.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

/// Who comes now waits. Calls that are inside go on.
void gate_close();
void gate_open();
/// No call is inside.
bool gate_empty();
/// The calling thread is the driver's own and never waits at the gate.
void gate_exempt();
/// Around a fork. In the child only the calling thread is left, and nobody holds it.
void gate_fork_begin();
void gate_fork_parent();
void gate_fork_child();

}  // namespace softgpu::driver
