// Limits of contexts that take device memory long after their call: the heap of device malloc and
// the buffer of device printf, which the driver takes when it loads the first kernel that uses
// them. That load cannot be undone. So what such a limit may take is reserved when it is set, and
// stays charged until a reading (residual.h, estimate.h) finds that the driver has taken it: then
// the driver's figure replaces the reservation.
//
// cuda.h says of both limits that they are refused with CUDA_ERROR_INVALID_VALUE once a kernel uses
// them. So a limit has been taken if setting the value that it has is refused like that.
//
// Default sizes, which no program has set, are not reserved.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// The address stands for what the limits of a context are estimated to take.
extern const char limits_taken;

/// Returns true if the limit takes memory after its call.
bool limit_takes_later(CUlimit limit);
/// Sets such a limit of the thread's current context. Within a TouchScope. A limit that the quota
/// has no room for is refused before the driver is asked; the sentence was said.
CUresult limit_set_reserved(CUlimit limit, size_t value);

/// Sets a limit of the current context that takes its memory at once. Within a TouchScope. A raise
/// that the quota has no room for is refused, or taken back; the sentence was said.
CUresult limit_set_at_once(CUlimit limit, size_t value);

/// Returns what is reserved on one of the tenant's GPUs and not on the device.
uint64_t limits_reserved(int gpu);
/// Makes what limits on `device` have taken part of the residual. Nothing is charged or given back.
/// For readings: the calling thread has stopped the process's account, or knows that it is busy.
void limits_look(int device);
/// Makes what limits of the current `context` have taken part of what is estimated. Returns how
/// much of `taken`, the bytes that the device has less, that is. Outside of all AccountScopes.
uint64_t limits_estimated(const void* context, uint64_t taken);
/// Gives back what is reserved for the limits of a context that has ended. In an AccountScope.
void limits_context_end(const void* context);
/// Writes into the process's slot, which may be a new one, what is reserved; adds it to `bytes`.
void limits_restore(uint64_t* bytes_by_device);
void limits_reset_after_fork();

}  // namespace sluice::interpose
