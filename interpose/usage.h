// What the management library says that this process uses of a GPU: NVML's figure for the pid that
// the broker knows it by. Where no broker tells, the process's own pid may mean another process to
// NVML (a PID namespace); it is believed once NVML lists it since the process made a context, and
// not before. The one place where the shim asks NVML for itself; knows nothing of the account.
#pragma once

#include "broker/protocol/words.h"
#include "interpose/types.h"

namespace sluice::interpose {

/// "GPU-01234567-89ab-cdef-0123-456789abcdef", as NVML and CUDA_VISIBLE_DEVICES have it.
void uuid_write(const protocol::GpuUuid& uuid, char out[41]);

/// False when there is no figure: no NVML, no pid that is known to be this process's, in a PID
/// namespace of its own a list with both of its pids, a GPU that NVML does not know. 0 bytes also
/// where NVML does not list the process. From a process that uses CUDA only: loads the library on
/// first use.
bool usage_read(int gpu, uint64_t* bytes);
/// Writes the figures of `count` processes, by the pids that the broker knows them by, from one
/// list; 0 for a process that NVML does not list. False as usage_read().
bool usage_read_of(int gpu, const uint32_t* pids, uint64_t* bytes, uint32_t count);
/// The figure of the process that has this pid itself, 0 when NVML does not list it; false without
/// NVML. `*proven`: this process's own pid is what NVML knows it by, so that the others' are.
bool usage_read_by_own_pid(int gpu, uint32_t pid, uint64_t* bytes, bool* proven);
/// What is in use on the whole GPU, whoever uses it; false without NVML.
bool usage_of_gpu(int gpu, uint64_t* bytes);
/// Adds the figures of all processes that NVML lists on the GPU; false without NVML. A process
/// without a figure counts nothing.
bool usage_of_processes(int gpu, uint64_t* bytes);
/// Right before and after the making of a context, where there is no broker.
void usage_before_context(int gpu);
void usage_after_context(int gpu);
/// NVML knows this process by the pid that it has itself.
bool usage_pid_is_proven();
/// After new pages: GPUs may have other numbers.
void usage_forget();
void usage_reset_after_fork();

}  // namespace sluice::interpose
