// Libraries that the driver loads lazily: the first call that needs one in a context loads its
// variables there, and nothing but the end of the library takes them back. There are many such
// calls: launches, handles, addresses, questions, nodes of graphs. Before each of them the shim
// loads the library itself, by cuLibraryGetModule, within what the quota has room for. So each
// library is asked for once in each context, by one function, and what follows loads nothing.
//
// Only libraries whose image tells the size of its variables (image_size.h) are known here. Others
// are charged when they are there (late.h).
//
// A launch on the short way does not look whether it names a kernel of a library. So the short way
// is closed in a context until it has every library whose kernels were given out.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/memory/local_memory.h"
#include "interpose/types.h"

namespace sluice::interpose {

struct ContextRecord;

/// Remembers that the first use of `library` in a context takes `bytes` at least; 0 = not known.
void library_known(CUlibrary library, uint64_t bytes);
/// Remembers that `kernel` of `library` was given out. False without memory for that: the kernel is
/// to be withheld, and the sentence was said.
[[nodiscard]] bool library_gave(CUlibrary library, CUkernel kernel);
/// Remembers the kernels of `library` that the driver listed in an array of so many. False without
/// memory for one of them.
[[nodiscard]] bool library_listed(CUlibrary library, const CUkernel* kernels, unsigned count);
/// Guards a library's unload. Call ended() only if the driver succeeded.
class LibraryEnd {
 public:
  explicit LibraryEnd(CUlibrary library);
  void ended();

 private:
  const uint64_t key_;
  uint64_t number_ = 0;  // 0 = it is not known
};

/// Loads the library into the current context, if it is known and not there. Answers an error if
/// the call that needs it is not to be made: the quota, or the device, has no room. Within a
/// TouchScope.
CUresult library_load_here(CUlibrary library);
/// Loads into `context` (nullptr = the current one) what a launch of the function needs there: the
/// library of a kernel, and local memory. Within a TouchScope.
CUresult kernel_load_in(CUfunction function, CUcontext context);
inline CUresult kernel_load(CUfunction function) { return kernel_load_in(function, nullptr); }
inline CUresult kernel_load(CUkernel kernel) {
  return kernel_load(reinterpret_cast<CUfunction>(kernel));
}
/// Loads what the parameters of a graph's node name, if it is a kernel.
CUresult kernel_load(const CUDA_KERNEL_NODE_PARAMS_v1* params);
CUresult kernel_load(const CUDA_KERNEL_NODE_PARAMS_v2* params);
CUresult kernel_load(const CUgraphNodeParams* params);
/// Loads what a launch into the stream needs. Outside of all scopes.
SLUICE_NOINLINE CUresult kernel_load_for(CUfunction function, CUstream stream);

/// How many known libraries have given out kernels.
extern uint32_t libraries_watched;
/// Returns true if launches have to look for what their kernel needs first.
inline bool kernels_need() {
  return (load_relaxed(libraries_watched) | load_relaxed(local_pending)) != 0;
}
/// Returns true if the context has all that kernels need which were given out, so that launches may
/// take the short way in it.
bool kernels_are_in(const ContextRecord* context);
void libraries_reset_after_fork();

}  // namespace sluice::interpose
