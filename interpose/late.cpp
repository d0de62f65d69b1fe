// See late.h.
#include "interpose/late.h"

#include "interpose/account.h"
#include "interpose/memory/libraries.h"
#include "interpose/process.h"
#include "interpose/residual.h"

namespace sluice::interpose {
namespace {

// What was asked of whom in which context: known before the answer is.
uint64_t question_key(const void* owner, const char* name) {
  constexpr uint64_t kPrime = 0x100000001B3;  // FNV-1a
  uint64_t key = 0xCBF29CE484222325 ^ reinterpret_cast<uint64_t>(owner);
  key = (key ^ reinterpret_cast<uint64_t>(this_thread->context)) * kPrime;
  for (const char* at = name; at != nullptr && *at != '\0'; ++at)
    key = (key ^ static_cast<unsigned char>(*at)) * kPrime;
  return key * kPrime;
}

const void* owner_of_kernel(CUfunction function) {
  return library_of(reinterpret_cast<CUkernel>(function));
}

// What a question about the function is known by; 0 = there is nothing to look for.
uint64_t kernel_question(CUfunction function) {
  if (function == nullptr || process_mode() != Mode::kActive) return 0;
  const ErrnoGuard guard;
  if (this_thread == nullptr || this_thread->depth != 0 || !thread_context(this_thread) ||
      !handle_is_new(RecordKind::kFunction, reinterpret_cast<uint64_t>(function))) {
    return 0;
  }
  const uint64_t question = question_key(function, nullptr);
  return handle_is_new(RecordKind::kKernel, question) ? question : 0;
}

}  // namespace

bool handle_is_new(RecordKind kind, uint64_t key) {
  if (process_mode() != Mode::kActive) return false;
  const ErrnoGuard guard;
  Record record;
  return !process.records.find(kind, key, &record) || record.bytes != handles_round();
}

void handle_is_known(RecordKind kind, uint64_t key, const void* owner, int device) {
  const ErrnoGuard guard;
  (void)process.records.insert(Record{key, handles_round(), owner, kind, device});
}

void module_is_known(CUmodule module) {
  const ErrnoGuard guard;
  const int device = reach_here().device;
  if (device < 0) return;
  (void)process.records.insert(Record{reinterpret_cast<uint64_t>(module), 0, this_thread->context,
                                      RecordKind::kModule, device});
}

int device_of(CUmodule module) {
  const ErrnoGuard guard;
  Record record;
  return process.records.find(RecordKind::kModule, reinterpret_cast<uint64_t>(module), &record)
             ? record.device
             : -1;
}

int device_of(CUfunction function) {
  const ErrnoGuard guard;
  Record record;
  const auto key = reinterpret_cast<uint64_t>(function);
  if (process.records.find(RecordKind::kFunction, key, &record) &&
      record.bytes == handles_round() && record.device >= 0)
    return record.device;
  // A kernel is loaded into whatever context it is used in.
  if (!handle_is_new(RecordKind::kKernel, key)) return reach_here().device;
  CUmodule module = nullptr;
  return driver.cuFuncGetModule(&module, function) == CUDA_SUCCESS ? device_of(module) : -1;
}

ModuleEnd::ModuleEnd(CUmodule module) {
  const ErrnoGuard guard;
  known_ =
      process.records.remove(RecordKind::kModule, reinterpret_cast<uint64_t>(module), &record_);
}

ModuleEnd::~ModuleEnd() {
  const ErrnoGuard guard;
  if (known_) (void)process.records.insert(record_);
}

const void* library_of(CUkernel kernel) {
  CUlibrary library = nullptr;
  if (!estimate_is_used() || driver.cuKernelGetLibrary(&library, kernel) != CUDA_SUCCESS)
    return kernel;
  return library;
}

// Of whom the function was got, else the module that the driver names.
const void* owner_of(CUfunction function) {
  if (!estimate_is_used()) return function;
  const ErrnoGuard guard;
  Record known;
  if (process.records.find(RecordKind::kFunction, reinterpret_cast<uint64_t>(function), &known) &&
      known.bytes == handles_round() && known.context != nullptr)
    return known.context;
  CUmodule module = nullptr;
  return driver.cuFuncGetModule(&module, function) == CUDA_SUCCESS ? module
                                                                   : static_cast<void*>(function);
}

Late::Late(const void* owner, const char* name, uint64_t least)
    : owner_(owner),
      begun_(reach_wide().since),
      question_(estimate_is_used() ? question_key(owner, name) : 0),
      charged_(reach_here().device, least),
      estimate_(question_ != 0 && handle_is_new(RecordKind::kFunction, question_)) {}

bool Late::fits(int device) {
  charged_.taken();
  const bool estimated_fits = estimate_.charge_late(owner_);
  Reach reach = reach_of(device);
  if (device < 0) reach = {reach_here().device, true, begun_};
  if (!residual_settle_late(reach) || !estimated_fits) return false;
  if (question_ != 0) handle_is_known(RecordKind::kFunction, question_, nullptr, device);
  return true;
}

KernelAsked::KernelAsked(CUfunction function)
    : owner_(function), question_(kernel_question(function)), estimate_(question_ != 0) {
  if (estimate_.active()) owner_ = owner_of_kernel(function);
}

CUresult KernelAsked::answered(CUresult result) {
  if (question_ == 0) return result;
  // Also one that was refused for what else it asked.
  (void)estimate_.charge_late(owner_);
  const Reach reach = reach_here();
  (void)residual_settle_late(reach);
  if (result == CUDA_SUCCESS)
    handle_is_known(RecordKind::kKernel, question_, nullptr, reach.device);
  return result;
}

}  // namespace sluice::interpose
