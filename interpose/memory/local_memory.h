// Local memory of kernels. Each thread that a device can hold at a time has as much as the deepest
// kernel of its context needs. The driver takes it with the first launch of that kernel, or with a
// node of a graph that names it, and keeps it (cuda.h, cuCtxSetLimit: the driver raises the stack
// limit as launches need it, and does not set it back). Before each such call the shim raises the
// limit itself, within what the quota has room for, so that what follows takes nothing.
//
// A launch on the short way does not look which kernel it names. So the short way is closed in a
// context as long as its limit is below what the deepest kernel needs that was ever given out. A
// program that asks for a deep kernel and never launches it keeps to the long way. So does one that
// lists functions which are not loaded: the driver does not tell what they need.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

struct ContextRecord;

/// A function or a kernel was given out.
void local_known(CUfunction function);
void local_known(CUkernel kernel);
/// The same for modules and whatever else is no kernel.
inline void local_known(const void*) {}

/// Bytes a thread: what the deepest of them needs.
extern uint32_t local_deepest;
/// A context may be without them.
extern uint32_t local_pending;

/// A context begins, with a limit that is not known yet.
void local_context_made();
/// Returns true if no kernel that was given out makes the driver take local memory in the context.
bool local_is_in(const ContextRecord* context);
/// Makes the driver take the local memory of the function, or of a kernel, in the thread's current
/// context, which is known. Within a TouchScope. OUT_OF_MEMORY: the call that names the function is
/// not to be made, because the quota has no room; the sentence was said.
CUresult local_take_here(CUfunction function);

/// The stack limit of the current context is about to be lowered; it was set.
void stack_limit_falls();
void stack_limit_set();
void local_reset_after_fork();

}  // namespace sluice::interpose
