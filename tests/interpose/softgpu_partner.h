// Another process of the tenant, for the tests over the software GPU: it does what it is told, one
// driver call for each request, and answers with the result. Requests and answers are datagrams on
// a socket pair, descriptors travel with them. softgpu_partner.cpp is the program.
#pragma once

#include <cuda.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>

namespace sluice::test {

enum class PartnerOp : std::uint32_t {
  kInit,             // a = device: cuInit, its primary context becomes current
  kAlloc,            // a = bytes -> value = pointer
  kFree,             // a = pointer
  kIpcGet,           // a = pointer -> blob
  kIpcOpen,          // blob -> value
  kIpcClose,         // a = pointer
  kVmmCreate,        // a = bytes -> value = handle, may be exported
  kVmmRelease,       // a = handle
  kVmmExport,        // a = handle -> fd
  kVmmImport,        // fd -> value = handle
  kVmmMap,           // a = handle, b = bytes -> value = address
  kVmmUnmap,         // a = address, b = bytes
  kExternalImport,   // fd, a = bytes -> value = external memory
  kExternalMap,      // a = external memory, b = bytes -> value = pointer
  kExternalDestroy,  // a = external memory
  kPoolCreate,       // -> value = pool, may be exported
  kPoolDestroy,      // a = pool
  kPoolAlloc,        // a = pool, b = bytes -> value
  kPoolTrim,         // a = pool
  kPoolExport,       // a = pool -> fd
  kPoolImport,       // fd -> value = pool
  kPointerExport,    // a = pointer -> blob
  kPointerImport,    // a = pool, blob -> value
  kMemoryInfo,       // -> value = free, extra = total
  kSynchronize,      // the current context
  kModuleLoad,       // a = bytes of its variable -> value
  kSpin,             // a = launches of a kernel that counts to b, and waits for them
  kChurn,            // below
  kChurnAllWays,     // below
  kChurnPools,       // below
  kNeighbour,        // blob, fd: what kChurnShares opens
  kKeep,             // below
  kLetGo,            // of what kKeep kept
  kExec,             // answers, and begins anew in the same process, at the same addresses
  kEnd,              // ends as programs do
};

// kChurn: in each of four threads `b` rounds of cuMemAlloc and cuMemFree, of at most `a` bytes, or
// of exactly that many with kChurnSameSize, so that it is known what fits. Answers the refusals in
// `value` and wrong answers in `extra`: a result that is neither success nor out of memory, an
// output that a refusal touched, a view beyond the quota.
// kChurnAllWays: the same by every way in turn, those that the flags name included. `b` = 0: what a
// process learns of the driver when it first meets it, in one thread, with room to spare.
// kChurnPools: `b` steps of one thread, each an allocation of at most `a` bytes from a pool of its
// own or a free, chosen from the seed `value`. What it has in the end it keeps: `a` bytes. Answers
// as kChurn. kKeep: each of four threads takes `a` bytes once and keeps them: variables of modules
// and of libraries, and allocations. Answers as kChurn.
enum ChurnFlags : std::uint64_t {
  kChurnSameSize = 1,
  kChurnLoads = 2,   // what is charged when it is there
  kChurnShares = 4,  // imports and exports
  kChurnMortal = 8,  // neighbours are killed meanwhile
};

// What of the partners' loads is in progress: in the file `loads` of SOFTGPU_DIR, where that is.
struct LoadsPage {
  std::uint64_t now_bytes, most_bytes;
};

struct PartnerMessage {
  PartnerOp op{};
  CUresult result = CUDA_SUCCESS;
  std::uint64_t a = 0, b = 0, value = 0, extra = 0;
  unsigned char blob[64] = {};
};

class Partner {
 public:
  Partner() = default;
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;
  /// Starts it with the environment as it is now. A stranger is a process of no job.
  void start(bool stranger = false);
  int pid() const { return pid_; }
  /// Asks and waits for the answer; a partner that died answers CUDA_ERROR_UNKNOWN. The descriptor
  /// that came with the last answer is in `fd`.
  PartnerMessage ask(PartnerMessage request, int fd_sent = -1);
  PartnerMessage ask(PartnerOp op, std::uint64_t a = 0, std::uint64_t b = 0) {
    return ask({.op = op, .a = a, .b = b});
  }
  void send(const PartnerMessage& request, int fd_sent = -1);
  PartnerMessage receive();
  /// Ends it by a signal, or waits for its own end (0), and reaps it.
  void end(int signal);
  int fd = -1;

 private:
  pid_t pid_ = -1;
  int life_ = -1;  // a pidfd
  int socket_ = -1;
};

/// One message; -1 for no descriptor. False when the other side is gone.
bool partner_send(int socket, const PartnerMessage& message, int fd);
bool partner_receive(int socket, PartnerMessage* message, int* fd);

}  // namespace sluice::test
