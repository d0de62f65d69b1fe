// What people ask for.
//
// A command changes a wish (suspended, move_to); the moves themselves are stay.cpp's. It is
// answered when the tenant is where it is to be, however long that takes, or as soon as that has
// failed; one at a time for each tenant. What a suspended tenant was promised is free for others
// (vacate.cpp): to be resumed it waits in the queue like a new one.
#include "broker/core/command.h"

#include <algorithm>

#include "broker/core/arrive.h"
#include "broker/core/backfill.h"
#include "broker/core/binding.h"
#include "broker/core/hold.h"
#include "broker/core/lease.h"
#include "broker/core/leaving.h"
#include "broker/core/memory.h"
#include "broker/core/placement.h"
#include "broker/core/runaway.h"
#include "broker/core/schedule.h"
#include "broker/core/stay.h"
#include "broker/core/texts.h"
#include "broker/core/vacate.h"
#include "broker/protocol/gpu_index.h"

namespace sluice::core {
namespace {

using protocol::CommandVerb;

/// What was copied the way that the command goes. The other way brings more of it than was asked:
/// processes tell a new broker what they have on the host as if they had just moved it.
Bytes moved_bytes(const Tenant& tenant, CommandVerb verb) {
  Bytes sum = 0;
  for (const Share& share : tenant.shares)
    sum += verb == CommandVerb::kSuspend ? share.moved_out_bytes : share.moved_in_bytes;
  return sum;
}

/// To be resumed a job may wait for hours in the queue, which is no part of the move.
Nanos taken_ns(const PendingCommand& command, const Tenant& tenant, Nanos now) {
  if (command.verb != CommandVerb::kResume) return now - command.asked_at;
  return ways_of(tenant, now).restoring_ns - command.restoring_before;
}

CommandAnswered answer(RequestId request, RefusalCode code, std::string text, Bytes bytes = 0) {
  return {request, code, bytes, 0, std::move(text)};
}

std::uint32_t gpu_index(const State& state, const GpuUuid& uuid) {
  const std::uint32_t g = protocol::gpu_index(state.gpus, uuid);
  return g < state.gpus.size() && !state.gpus[g]->lost ? g : kNoGpu;
}

/// What going out, or coming back, would copy.
Bytes to_move(const Tenant& tenant, bool out) {
  Bytes sum = 0;
  for (const Share& share : tenant.shares) {
    if (!out)
      sum += share_return(share);
    else
      sum += tenant.swap ? share_movable(share) : share_on_gpu(share) - share.left;
  }
  return sum;
}

/// Checks that no tenant's state could change; true = answered.
bool refused(const State& state, const CommandAsked& event, const Tenant* tenant, Actions& out) {
  auto refuse = [&](RefusalCode code, const std::string& text) {
    out.emplace_back(answer(event.request, code, text));
    return true;
  };
  if (tenant == nullptr)
    return refuse(RefusalCode::kUnknownTenant, "there is no job " + std::to_string(event.tenant) +
                                                   "; `sluice status` lists the jobs that run");
  if (!event.root && event.uid != tenant->uid)
    return refuse(RefusalCode::kNotAllowed, job_text(*tenant) + " belongs to user " +
                                                std::to_string(tenant->uid) +
                                                "; ask that user, or root");
  if (tenant->exclusive())
    return refuse(
        RefusalCode::kCannotMove,
        job_text(*tenant) + " has its GPUs as a whole and is never moved; end it instead");
  if (tenant->released)
    return refuse(RefusalCode::kCannotMove,
                  job_text(*tenant) + " is over; its processes are ending");
  const bool undone = event.verb == CommandVerb::kSuspend && tenant->vacated;
  if (!undone && std::ranges::any_of(state.commands, [&](const PendingCommand& c) {
        return c.tenant == tenant->id;
      }))
    return refuse(RefusalCode::kCannotMove, "another command for " + job_text(*tenant) +
                                                " is under way; wait for its end and try again");
  if (stay_lost(*tenant) && event.verb != CommandVerb::kResume)
    return refuse(RefusalCode::kCannotMove,
                  "the driver has lost a process of " + job_text(*tenant) +
                      " in a checkpoint, so nothing of it can be moved; `sluice status` names the "
                      "process: end it, and try again");
  return false;
}

void gpu_command(State& state, const CommandAsked& event, Actions& out) {
  const bool drain = event.verb == CommandVerb::kDrain;
  const std::uint32_t g = gpu_index(state, event.gpu);
  if (!event.root) {
    out.emplace_back(answer(event.request, RefusalCode::kNotAllowed,
                            "only root, or whom the broker belongs to, may close a GPU to new jobs "
                            "or open it again"));
    return;
  }
  if (g == kNoGpu) {
    out.emplace_back(answer(event.request, RefusalCode::kNoSuchGpu, unknown_gpu_text(event.gpu)));
    return;
  }
  Gpu& gpu = *state.gpus[g];
  std::string text;
  if (event.dry_run)
    text = "nothing was changed; " + std::to_string(gpu.shares.size()) +
           (gpu.shares.size() == 1 ? " job would stay on it" : " jobs would stay on it");
  else if (gpu.closed_to_new != drain || (drain && gpu.drain != event.drain)) {
    state.queue_dirty = true;
    gpu.closed_to_new = drain;
    gpu.drain = drain ? event.drain : GpuDrain{};
    out.emplace_back(GpuNoted{gpu.uuid, drain, gpu.drain});
  }
  out.emplace_back(answer(event.request, RefusalCode::kNone, text));
}

void pending_add(State& state, const CommandAsked& event, Tenant& tenant, Nanos now, Actions& out) {
  state.commands.push_back(PendingCommand{event.request, event.verb, tenant.id, now,
                                          moved_bytes(tenant, event.verb),
                                          ways_of(tenant, now).restoring_ns});
  stay_note(tenant, out);
  stay_look(state, tenant);
  state.room_dirty = true;
}

/// The words of a dry run.
std::string would_text(const char* what, Bytes bytes, bool checkpoint) {
  return std::string("nothing was changed; ") + bytes_text(bytes) + " would be " + what +
         (checkpoint ? " by the driver's checkpoint, which may refuse" : "");
}

void suspend(State& state, const CommandAsked& event, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant.suspended) {
    out.emplace_back(answer(event.request, RefusalCode::kNone, ""));
    return;
  }
  const Bytes bytes = to_move(tenant, true);
  if (tenant.phase == Phase::kRunaway) {
    out.emplace_back(answer(event.request, RefusalCode::kCannotMove,
                            "a kernel of " + job_text(tenant) +
                                " runs and does not end, or a process of it is stopped, so its "
                                "memory cannot be moved; end it, or let the process go on"));
    return;
  }
  if (bytes > host_room(state, tenant.uid)) {
    out.emplace_back(
        answer(event.request, RefusalCode::kHostMemoryLimit,
               host_limit_text(tenant.uid, bytes, state.policy.swap_host_bytes_per_user), bytes));
    return;
  }
  if (event.dry_run) {
    out.emplace_back(answer(event.request, RefusalCode::kNone,
                            would_text("moved to the host", bytes, !tenant.swap), bytes));
    return;
  }
  tenant.suspended = true;
  tenant.suspended_by = event.uid;
  tenant.rests = tenant.due_back = false;
  vacated_stays(state, tenant);
  commands_fail(state, tenant, RefusalCode::kCannotMove, "it is suspended again", now, out);
  pending_add(state, event, tenant, now, out);
}

/// What stands in the way of a tenant that is to come back now; empty = nothing does.
std::string return_text(const State& state, const Tenant& tenant) {
  if (!tenant.vacated) return "";
  const TenantAsked ask = vacated_ask(state, tenant);
  const Placement place = placement_find(state, ask, GpuFlags(state.gpus.size(), false));
  if (!place.gpus.empty()) return "";
  return ", but not now: " + wait_text(state, ask, place.reason);
}

void resume(State& state, const CommandAsked& event, Tenant& tenant, Nanos now, Actions& out) {
  if (tenant_aside_by(tenant) != 0) {
    out.emplace_back(answer(event.request, RefusalCode::kNoRoom,
                            "job " + std::to_string(tenant_aside_by(tenant)) + " has the GPU of " +
                                job_text(tenant) +
                                " as a whole; it comes back by itself after that has ended"));
    return;
  }
  if (tenant.residence == Residence::kIn && !tenant.suspended) {
    out.emplace_back(answer(event.request, RefusalCode::kNone, ""));
    return;
  }
  if (event.dry_run) {
    const Bytes bytes = to_move(tenant, false);
    out.emplace_back(answer(
        event.request, RefusalCode::kNone,
        would_text("brought back", bytes, tenant.frozen) + return_text(state, tenant), bytes));
    return;
  }
  tenant.suspended = tenant.rests = false;
  tenant.due_back = true;
  tenant.retry_at = now;
  pending_add(state, event, tenant, now, out);
}

void move(State& state, const CommandAsked& event, Tenant& tenant, Nanos now, Actions& out) {
  const std::uint32_t to = gpu_index(state, event.gpu);
  if (to == kNoGpu) {
    out.emplace_back(answer(event.request, RefusalCode::kNoSuchGpu, unknown_gpu_text(event.gpu)));
    return;
  }
  const TenantRefused refusal = move_refusal(state, tenant, to);
  if (refusal.code != RefusalCode::kNone) {
    out.emplace_back(answer(event.request, refusal.code, refusal.text));
    return;
  }
  if (tenant.shares.front().gpu == to) {
    out.emplace_back(answer(event.request, RefusalCode::kNone, ""));
    return;
  }
  const Bytes bytes = tenant.shares.front().held;
  if (event.dry_run) {
    out.emplace_back(answer(
        event.request, RefusalCode::kNone,
        would_text("moved to the host and from there to the other GPU", bytes, true), bytes));
    return;
  }
  tenant.move_to = to;
  tenant.yields = false;
  pending_add(state, event, tenant, now, out);
}

bool done(const PendingCommand& command, const Tenant& tenant) {
  if (tenant.move_to != kNoGpu) return false;
  if (command.verb == CommandVerb::kSuspend)
    return tenant.residence == Residence::kOut && tenant.suspended;
  if (command.verb == CommandVerb::kMove && tenant.suspended)
    return tenant.residence == Residence::kOut;
  // A broker before this one suspended it, and no process of it has memory that could come back. A
  // process that registers later brings its memory along.
  if (command.verb == CommandVerb::kResume && tenant.restored && tenant.processes.empty() &&
      tenant.residence == Residence::kOut)
    return !tenant.vacated;
  return tenant.residence == Residence::kIn;
}

template <class Which>
void commands_answer(State& state, const Tenant& tenant, RefusalCode code, const std::string& text,
                     Nanos now, Actions& out, Which which) {
  std::erase_if(state.commands, [&](const PendingCommand& command) {
    if (command.tenant != tenant.id || !which(command)) return false;
    const Bytes moved = moved_bytes(tenant, command.verb) - command.moved_before;
    out.emplace_back(
        CommandAnswered{command.request, code, moved, taken_ns(command, tenant, now), text});
    return true;
  });
}

}  // namespace

void command_asked(State& state, const CommandAsked& event, Nanos now, Actions& out) {
  if (event.verb == CommandVerb::kDrain || event.verb == CommandVerb::kUndrain) {
    gpu_command(state, event, out);
    return;
  }
  Tenant* tenant = tenant_find(state, event.tenant);
  if (refused(state, event, tenant, out)) return;
  switch (event.verb) {
    case CommandVerb::kSuspend:
      suspend(state, event, *tenant, now, out);
      return;
    case CommandVerb::kResume:
      resume(state, event, *tenant, now, out);
      return;
    case CommandVerb::kMove:
      move(state, event, *tenant, now, out);
      return;
    default:
      out.emplace_back(answer(event.request, RefusalCode::kMalformed, "there is no such command"));
  }
}

void commands_look(State& state, const Tenant& tenant, Nanos now, Actions& out) {
  if (state.commands.empty()) return;
  commands_answer(state, tenant, RefusalCode::kNone, "", now, out,
                  [&](const PendingCommand& command) { return done(command, tenant); });
}

void commands_fail(State& state, const Tenant& tenant, RefusalCode code, const std::string& text,
                   Nanos now, Actions& out) {
  if (state.commands.empty()) return;
  commands_answer(state, tenant, code, job_text(tenant) + ": " + text, now, out,
                  [](const PendingCommand&) { return true; });
}

TenantRefused move_refusal(const State& state, const Tenant& tenant, std::uint32_t to) {
  auto refuse = [](RefusalCode code, std::string text) {
    return TenantRefused{0, code, 0, std::move(text)};
  };
  const Gpu& gpu = *state.gpus[to];
  const Share& share = tenant.shares.front();
  if (tenant.shares.size() > 1)
    return refuse(RefusalCode::kCannotMove,
                  "it has several GPUs, and only jobs with one GPU are moved to another; "
                  "suspend it, or start it again on other GPUs");
  if (share.gpu == to) return {};
  if (share.left > 0)
    return refuse(RefusalCode::kCannotMove,
                  "processes of it have ended and left " + bytes_text(share.left) +
                      " on its GPU, which cannot be moved; `sluice status` says what keeps it: end "
                      "that, and try again");
  if (tenant_aside_by(tenant) != 0)
    return refuse(RefusalCode::kCannotMove, "its GPU is used whole by job " +
                                                std::to_string(tenant_aside_by(tenant)) +
                                                "; it can be moved after that has ended");
  if (gpu.lost || gpu.closed_to_new)
    return refuse(RefusalCode::kNoRoom,
                  "the GPU is closed to new jobs (`sluice undrain` opens it)");
  if (gpu.exclusive() || gpu.draining)
    return refuse(RefusalCode::kNoRoom, "that GPU is used whole, or is being emptied for it");
  if (held_by_other(state, to, tenant.uid))
    return refuse(RefusalCode::kNoRoom,
                  "a job of another user waits for that GPU and goes first for a while; move it "
                  "elsewhere, or try again later");
  if (tenant.memory_max < gpu.context_bytes)
    return refuse(RefusalCode::kMemoryBelowContext,
                  "its quota of " + bytes_text(tenant.memory_max) +
                      " is less than what a context takes on that GPU (" +
                      bytes_text(gpu.context_bytes) + ")");
  if (!promise_fits(state, gpu, tenant.swap, tenant.memory_most,
                    tenant.swap ? tenant.memory_min : tenant.memory_most))
    return refuse(RefusalCode::kNoRoom,
                  "the memory of that GPU is promised to others (" + bytes_text(gpu.promised_min) +
                      " of " + bytes_text(gpu.capacity) + "), and it needs " +
                      bytes_text(tenant.memory_most) + "; move it elsewhere, or try again later");
  if (!share_fits(gpu, tenant.sm_kind, tenant.sm_percent))
    return refuse(RefusalCode::kNoRoom, "that GPU guarantees " + std::to_string(gpu.guaranteed) +
                                            " % of its time to others, and the job has " +
                                            std::to_string(tenant.sm_percent) +
                                            " % guaranteed; move it elsewhere, or try again later");
  return {};
}

void share_switch(State& state, Share& share, std::uint32_t to, Actions& out) {
  Gpu& from = *state.gpus[share.gpu];
  vacated_stays(state, *share.tenant);  // it asks for the other GPU from now on
  gangs_settle(state, state.now);
  debt_leave(state, share, state.now);
  if (share.booked) share_unbook(state, share);
  from.dead_busy_ns += share.busy_ns - share.elsewhere_ns;
  share.elsewhere_ns = share.busy_ns;
  share_forget(state, share);
  share.gpu = to;
  share.vtime = state.gpus[to]->vclock;
  share.place_at = kNever;
  if (share.tenant->vacated)
    state.gpus[to]->unbooked.push_back(&share);
  else
    share_book(state, share);
  debt_take(state, share, state.now);
  gangs_reweigh(state);
  windows_refresh(state, from, false, out);
  windows_refresh(state, *state.gpus[to], false, out);
  lease_window_renew(state, share, out);
}

void gpu_lost(State& state, const GpuLost& event, Nanos now, Actions& out) {
  const std::uint32_t g = gpu_index(state, event.uuid);
  if (g == kNoGpu) return;
  Gpu& gpu = *state.gpus[g];
  gpu.lost = true;
  state.queue_dirty = state.room_dirty = true;
  std::vector<Share*> here;
  gpu_shares_each(gpu, [&](Share& share) { here.push_back(&share); });
  for (Share* share : here) {
    Tenant& tenant = *share->tenant;
    const std::string text =
        "its GPU is gone (fallen off the bus, or taken out of service), and "
        "what it had there with it; it is ended";
    out.emplace_back(TenantLost{tenant.id, share->index, job_text(tenant) + ": " + text});
    commands_fail(state, tenant, RefusalCode::kCannotMove, text, now, out);
    job_released(state, JobReleased{tenant.id}, now, out);
  }
}

}  // namespace sluice::core
