// See account_uses.h.
#include "interpose/account_uses.h"

#include "interpose/account.h"
#include "interpose/captures.h"
#include "interpose/say.h"
#include "interpose/uses.h"

namespace sluice::interpose {

uint32_t uses_open;

namespace {

struct Ending {
  uint64_t moment;  // Use::ending
  CUevent event;    // behind the unmapping
};
constexpr uint64_t kNow = ~uint64_t{0};

constinit Uses uses;
constinit Table<Ending> endings;
uint64_t tickets_given;
uint64_t moments;
Lock lock;

void use_end(const Use& use) { vmm_unhold(use.handle); }

uint64_t object_of(const CUarrayMapInfo& info) {
  return info.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
             ? reinterpret_cast<uint64_t>(info.resource.mipmap)
             : reinterpret_cast<uint64_t>(info.resource.array);
}

Part part_of(const CUarrayMapInfo& info) {
  Part part{};
  part.object = object_of(info);
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    const auto& tail = info.subresource.miptail;
    part.kind = PartKind::kMipTail;
    part.layer = tail.layer;
    part.begin[0] = tail.offset;
    part.end[0] = tail.offset + tail.size;
    return part;
  }
  const auto& box = info.subresource.sparseLevel;
  part.kind = PartKind::kTiles;
  part.level = box.level;
  part.layer = box.layer;
  const uint64_t begin[] = {box.offsetX, box.offsetY, box.offsetZ};
  const uint64_t extent[] = {box.extentWidth, box.extentHeight, box.extentDepth};
  for (int i = 0; i < 3; ++i) {
    part.begin[i] = begin[i];
    part.end[i] = begin[i] + extent[i];
  }
  return part;
}

Part bound_part(uint64_t object, int device, uint64_t offset, uint64_t bytes) {
  Part part{};
  part.object = object;
  part.kind = PartKind::kBound;
  part.level = static_cast<uint32_t>(device);
  part.begin[0] = offset;
  part.end[0] = offset + bytes;
  return part;
}

// With the lock held, as all of the following.
bool use_begin(uint64_t ticket, uint64_t handle, const void* context, const Part& part) {
  // A multicast object from elsewhere may outlive all that this process has of it.
  const bool followed =
      part.kind == PartKind::kBound && vmm_known(part.object) && !vmm_is_exported(part.object);
  if (uses.begin(ticket, handle, context, part, followed)) {
    store_relaxed(uses_open, 1u);
    return true;
  }
  vmm_unhold(handle);
  unrecorded_say("a mapping's record");
  return false;
}

void cancel(const Tickets& tickets) {
  for (uint64_t i = 0; i < tickets.count; ++i) {
    Use use;
    if (uses.cancel(tickets.first + i, &use)) use_end(use);
  }
}

Tickets tickets_take(uint64_t count) {
  const Tickets taken{tickets_given + 1, count};
  tickets_given += count;
  return taken;
}

void end_at(uint64_t moment) {
  uses.end_if([&](const Use& use) { return use.ending == moment; }, use_end);
}

// Without an event to wait for, what is unmapped is held until its array ends.
void ending_mark(uint64_t moment, CUstream stream) {
  const RelaxedScope relaxed(RelaxedScope::When::kAlways);
  CUevent event = nullptr;
  if (driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
  if (driver.cuEventRecord(event, stream) == CUDA_SUCCESS && endings.insert(Ending{moment, event}))
    return;
  (void)driver.cuEventDestroy_v2(event);
}

}  // namespace

bool array_maps_begin(const CUarrayMapInfo* list, unsigned count, const void* context,
                      Tickets* out) {
  const LockScope scope(lock);
  *out = tickets_take(count);
  for (unsigned i = 0; i < count; ++i) {
    if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
    const uint64_t handle = list[i].memHandle.memHandle;
    if (vmm_hold(handle) < 0) continue;  // an import's
    if (use_begin(out->first + i, handle, context, part_of(list[i]))) continue;
    cancel(*out);
    return false;
  }
  return true;
}

void array_maps_end(const CUarrayMapInfo* list, unsigned count, const Tickets& tickets,
                    CUstream stream, CUresult result) {
  const LockScope scope(lock);
  // Of several some may have been mapped.
  if (result != CUDA_SUCCESS && count <= 1) {
    cancel(tickets);
    return;
  }
  const uint64_t moment = ++moments;
  bool ends = false;
  for (unsigned i = 0; i < count; ++i) {
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
      ends |= uses.settle(tickets.first + i, result == CUDA_SUCCESS ? moment : 0);
    } else if (result == CUDA_SUCCESS) {
      ends |= uses.leave(part_of(list[i]), moment) != 0;
    }
  }
  if (ends && result == CUDA_SUCCESS) ending_mark(moment, stream);
}

bool bind_begin(CUmemGenericAllocationHandle object, uint64_t offset,
                CUmemGenericAllocationHandle handle, uint64_t bytes, Tickets* out) {
  const LockScope scope(lock);
  const int device = vmm_hold(handle);
  if (device < 0) return true;
  *out = tickets_take(1);
  return use_begin(out->first, handle, nullptr, bound_part(object, device, offset, bytes));
}

bool bind_address_begin(CUmemGenericAllocationHandle object, uint64_t offset, CUdeviceptr address,
                        uint64_t bytes, Tickets* out) {
  const LockScope scope(lock);
  const uint64_t end = address + bytes;
  *out = tickets_take(0);
  for (uint64_t at = address; at < end;) {
    VmmMapping mapping{};
    if (!vmm_mapping_at(at, &mapping)) return true;  // an import's
    const uint64_t next = mapping.end < end ? mapping.end : end;
    const int device = vmm_hold(mapping.handle);
    if (device >= 0) {
      const Part part = bound_part(object, device, offset + (at - address), next - at);
      ++tickets_given;
      ++out->count;
      if (!use_begin(tickets_given, mapping.handle, nullptr, part)) {
        cancel(*out);
        return false;
      }
    }
    at = next;
  }
  return true;
}

void bind_end(const Tickets& tickets, CUresult result) {
  const LockScope scope(lock);
  if (result != CUDA_SUCCESS) {
    cancel(tickets);
    return;
  }
  for (uint64_t i = 0; i < tickets.count; ++i) (void)uses.settle(tickets.first + i, kNow);
  end_at(kNow);
}

void unbound(CUmemGenericAllocationHandle object, int device, uint64_t offset, uint64_t bytes) {
  const LockScope scope(lock);
  if (uses.leave(bound_part(object, device, offset, bytes), kNow) != 0) end_at(kNow);
}

void uses_exported(CUmemGenericAllocationHandle object) {
  const LockScope scope(lock);
  uses.unfollow(object);
}

void uses_object_end(const void* array) {
  if (load_relaxed(uses_open) == 0) return;
  const LockScope scope(lock);
  const auto object = reinterpret_cast<uint64_t>(array);
  uses.end_if(
      [&](const Use& use) {
        return use.part.object == object && use.part.kind != PartKind::kBound;
      },
      use_end);
}

void uses_context_end(const void* context) {
  if (load_relaxed(uses_open) == 0) return;
  const LockScope scope(lock);
  uses.end_if(
      [&](const Use& use) { return use.context == context && use.part.kind != PartKind::kBound; },
      use_end);
}

void uses_context_moves(const void* from, const void* to) {
  const LockScope scope(lock);
  uses.context_moves(from, to);
}

void uses_read() {
  const ErrnoGuard guard;
  const LockScope scope(lock);
  if (!endings.empty()) {
    const RelaxedScope relaxed(RelaxedScope::When::kAlways);
    endings.erase_if([](const Ending& ending) {
      const CUresult passed = driver.cuEventQuery(ending.event);
      if (passed == CUDA_ERROR_NOT_READY) return false;
      if (passed == CUDA_SUCCESS) {
        end_at(ending.moment);
        (void)driver.cuEventDestroy_v2(ending.event);
      }
      return true;  // gone with its context, and so are the context's arrays
    });
  }
  uses.end_if(
      [](const Use& use) {
        return use.part.kind == PartKind::kBound && use.followed && !vmm_known(use.part.object);
      },
      use_end);
  if (uses.empty() && endings.empty()) store_relaxed(uses_open, 0u);
}

void uses_reset_after_fork() {
  lock.reset_after_fork();
  uses.clear();
  endings.clear();
  uses_open = 0;
}

}  // namespace sluice::interpose
