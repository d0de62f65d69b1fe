// Code and variables that the driver loads late: with a handle or an address that it gives out, a
// question about a kernel, or a first launch. Only the end of their module takes them back, so they
// are charged when they are there.
#pragma once

#include "interpose/cuda_api.h"
#include "interpose/estimate.h"
#include "interpose/memory/least.h"
#include "interpose/records.h"
#include "interpose/residual.h"

namespace sluice::interpose {

/// Programs that ask for the same handle before every launch pay for one look in a table. Known is
/// what was given out since modules ended last.
bool handle_is_new(RecordKind kind, uint64_t key);
/// With `owner`, whose end is the handle's, and the device that it is on; -1 = nobody knows.
void handle_is_known(RecordKind kind, uint64_t key, const void* owner, int device);

/// A module is where it was loaded, whatever context is current when it is asked for something.
void module_is_known(CUmodule module);
int device_of(CUmodule module);  // -1 = nobody knows
int device_of(CUfunction function);
/// Of its end. A call that fails has not ended it.
class ModuleEnd {
 public:
  explicit ModuleEnd(CUmodule module);
  explicit ModuleEnd(const void*) {}
  ~ModuleEnd();
  ModuleEnd(const ModuleEnd&) = delete;
  ModuleEnd& operator=(const ModuleEnd&) = delete;
  void ended() { known_ = false; }

 private:
  Record record_{};
  bool known_ = false;
};

/// Of whom a function is: a handle that an estimate is kept for.
const void* library_of(CUkernel kernel);
const void* owner_of(CUfunction function);

/// Around a call that may load: what `owner` loads late is measured or estimated, and charged.
class Late {
 public:
  /// `least`: what the call takes on the current context's device at least.
  Late(const void* owner, const char* name, uint64_t least = 0);
  /// False: the quota has no room for that. The sentence was said, and the driver is not to be
  /// asked.
  bool may_ask() const { return charged_.fits(); }
  /// After it, with the device that it loads on; -1 = nobody knows. False: the tenant is above its
  /// quota for it.
  bool fits(int device);

 private:
  const void* owner_;
  const uint64_t begun_;
  const uint64_t question_;
  LeastCharge charged_;
  Estimate estimate_;
};

/// Around a question about a function. It may be a kernel's handle, which belongs to no context:
/// the driver loads its code into the current one to answer. The answer is nothing that one could
/// withhold; a function's own handle was charged when it was given out.
class KernelAsked {
 public:
  explicit KernelAsked(CUfunction function);
  KernelAsked(const KernelAsked&) = delete;
  KernelAsked& operator=(const KernelAsked&) = delete;
  CUresult answered(CUresult result);

 private:
  const void* owner_;
  const uint64_t question_;  // 0 = it was asked before
  Estimate estimate_;
};

}  // namespace sluice::interpose
