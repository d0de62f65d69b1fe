// See green.h.
#include "interpose/green.h"

#include "interpose/account.h"
#include "interpose/account_uses.h"
#include "interpose/estimate.h"
#include "interpose/place.h"
#include "interpose/residual.h"
#include "interpose/say.h"
#include "interpose/swap.h"

namespace sluice::interpose {
namespace {

Lock ends_lock;  // while one ends

uint64_t key_of(CUgreenCtx green) { return reinterpret_cast<uint64_t>(green); }

// For a green context that has no record, because the shim has not seen it made.
int device_ask(CUcontext context) {
  const CurrentScope current(context);
  CUdevice device = 0;
  return current.result() == CUDA_SUCCESS && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device
                                                                                            : 0;
}

bool remember(CUgreenCtx green, CUcontext context, int device) {
  if (process.records.insert(Record{key_of(green), 0, context, RecordKind::kGreen, device}))
    return true;
  unrecorded_say("a green context's record");
  return false;
}

CUcontext context_of(const Record& record) {
  return static_cast<CUcontext>(const_cast<void*>(record.context));
}

// What was made in a context that is there no more.
void leave(CUcontext gone, int device) {
  CUcontext primary = nullptr;
  const bool stays = primary_look(device, &primary);
  if (gone == nullptr || gone == primary) return;
  if (!stays) {
    context_drop(gone);
    return;
  }
  process.records.move_context(gone, primary, estimate_key_moved);
  uses_context_moves(gone, primary);
  if (load_acquire(swap_used) != 0) swap_context_moves(gone, primary);
}

}  // namespace

bool green_made(CUgreenCtx green, int device) {
  return process_mode() < Mode::kOffline || remember(green, nullptr, device);
}

bool green_converted(CUgreenCtx green, CUcontext context) {
  const ErrnoGuard guard;
  if (process_mode() < Mode::kOffline) return true;
  Record record;
  const bool known = process.records.find(RecordKind::kGreen, key_of(green), &record);
  return remember(green, context, known ? record.device : device_ask(context));
}

GreenEnd::GreenEnd(CUgreenCtx green) : green_(green) {
  const ErrnoGuard guard;
  Record record;
  if (!process.records.find(RecordKind::kGreen, key_of(green), &record)) return;
  context_ = context_of(record);
  device_ = record.device;
}

// One at a time: each may be the one that ends the primary context, whose record only the first
// would have.
void GreenEnd::begin() {
  ends_lock.acquire();
  if (context_ != nullptr) own_ = context_ending(context_);
  // It may be the last that holds the primary context.
  primary_ = primary_known(device_, &primary_ends_);
  if (primary_ != nullptr) held_ = context_ending(primary_);
}

void GreenEnd::finish(bool ended) {
  if (context_ != nullptr) {
    context_ended(context_, own_, ended);
    // Nobody shall take it for one that is there, before its record goes.
    if (ended) (void)remember(green_, nullptr, device_);
  }
  if (primary_ != nullptr) primary_may_have_ended(device_, primary_, primary_ends_, held_);
  ends_lock.release();
}

bool green_ends_stop_for(uint64_t patience_ns) { return ends_lock.acquire_for(patience_ns); }
void green_ends_go() { ends_lock.release(); }
void green_reset_after_fork() { ends_lock.reset_after_fork(); }

void GreenEnd::settle() const {
  const ErrnoGuard guard;
  Record record;
  {
    const AccountScope account;
    if (!account.active() || !process.records.remove(RecordKind::kGreen, key_of(green_), &record)) {
      return;
    }
    leave(context_, record.device);
    thread_context_forget();
  }
  residual_settle_device(record.device);
}

}  // namespace sluice::interpose
