// Collectives by NCCL. The library is opened at run time (its types come from
// nccl.h when compiling), so that the trainer starts where NCCL is not installed; built without
// nccl.h, it says so. Ranks share NCCL's unique id through the
// place where they meet.
#include "trainer/comm/communicator.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <cstring>

#include "trainer/comm/store.h"

namespace sluice::train {
namespace {

// member, function
// clang-format off
#define SLUICE_NCCL_CALLS(X) \
  X(get_unique_id, ncclGetUniqueId) \
  X(init_rank, ncclCommInitRank) \
  X(destroy, ncclCommDestroy) \
  X(abort, ncclCommAbort) \
  X(all_reduce, ncclAllReduce) \
  X(reduce_scatter, ncclReduceScatter) \
  X(all_gather, ncclAllGather) \
  X(broadcast, ncclBroadcast) \
  X(reduce, ncclReduce) \
  X(send, ncclSend) \
  X(receive, ncclRecv) \
  X(group_start, ncclGroupStart) \
  X(group_end, ncclGroupEnd) \
  X(error_string, ncclGetErrorString)
// clang-format on

struct NcclTable {
#define SLUICE_NCCL_MEMBER(member, function) decltype(&::function) member;
  SLUICE_NCCL_CALLS(SLUICE_NCCL_MEMBER)
#undef SLUICE_NCCL_MEMBER
};

template <class Function>
bool function_find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

/// Null and a reason when the library is absent.
const NcclTable* nccl_table(std::string* why_not) {
  static std::string problem;
  static const NcclTable* loaded = [] {
    static NcclTable table;
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      problem = dlerror();
      return static_cast<const NcclTable*>(nullptr);
    }
    bool whole = true;
#define SLUICE_NCCL_FIND(member, function) \
  whole = whole && function_find(library, #function, &table.member);
    SLUICE_NCCL_CALLS(SLUICE_NCCL_FIND)
#undef SLUICE_NCCL_FIND
    if (!whole) problem = "libnccl.so.2 lacks a function that is needed";
    return whole ? static_cast<const NcclTable*>(&table) : nullptr;
  }();
  if (loaded == nullptr && why_not != nullptr) *why_not = problem;
  return loaded;
}

class NcclComm final : public Communicator {
 public:
  explicit NcclComm(const CommOptions& options) : options_(options), one_(1) {
    std::string why_not;
    nccl_ = nccl_table(&why_not);
    if (nccl_ == nullptr) throw Failure("NCCL cannot be used: " + why_not);
    const ncclUniqueId id = id_share();
    check(nccl_->init_rank(&comm_, options.rank_count, id, options.rank),
          "meeting the other ranks");
  }
  ~NcclComm() override {
    if (comm_ != nullptr && !aborted_) nccl_->destroy(comm_);
  }

  const char* name() const override { return "nccl"; }

  void all_reduce(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                  Reduction reduction) override {
    if (count == 0) return;
    check(nccl_->all_reduce(memory(data), memory(data), count, type_of(type), op_of(reduction),
                            live(), stream.handle()),
          "the all-reduce");
  }
  void reduce_scatter(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                      DataType type, Reduction reduction) override {
    if (count == 0) return;
    check(nccl_->reduce_scatter(memory(send), memory(receive), count, type_of(type),
                                op_of(reduction), live(), stream.handle()),
          "the reduce-scatter");
  }
  void all_gather(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                  DataType type) override {
    if (count == 0) return;
    check(nccl_->all_gather(memory(send), memory(receive), count, type_of(type), live(),
                            stream.handle()),
          "the all-gather");
  }
  void broadcast(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
                 int root) override {
    if (count == 0) return;
    check(nccl_->broadcast(memory(data), memory(data), count, type_of(type), root, live(),
                           stream.handle()),
          "the broadcast");
  }
  void reduce(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
              Reduction reduction, int root) override {
    if (count == 0) return;
    check(nccl_->reduce(memory(data), memory(data), count, type_of(type), op_of(reduction), root,
                        live(), stream.handle()),
          "the reduction");
  }
  void send(Stream& stream, CUdeviceptr data, std::size_t count, DataType type, int peer) override {
    if (count == 0) return;
    check(nccl_->send(memory(data), count, type_of(type), peer, live(), stream.handle()),
          "the sending");
  }
  void receive(Stream& stream, CUdeviceptr data, std::size_t count, DataType type,
               int peer) override {
    if (count == 0) return;
    check(nccl_->receive(memory(data), count, type_of(type), peer, live(), stream.handle()),
          "the reception");
  }
  void group_begin() override { check(nccl_->group_start(), "beginning a group"); }
  void group_end() override { check(nccl_->group_end(), "ending a group"); }
  void barrier(Stream& stream) override {
    stream.zero(one_.at(), 1);
    all_reduce(stream, one_.at(), 1, DataType::kFloat32, Reduction::kSum);
    stream.synchronize();
  }
  /// Ends its kernels on the GPU as well, and frees the communicator.
  void abort() override {
    if (comm_ != nullptr && !aborted_.exchange(true)) nccl_->abort(comm_);
  }

 private:
  static void* memory(CUdeviceptr data) { return reinterpret_cast<void*>(data); }

  static ncclDataType_t type_of(DataType type) {
    switch (type) {
      case DataType::kFloat32:
        return ncclFloat32;
      case DataType::kFloat16:
        return ncclFloat16;
      case DataType::kBfloat16:
        return ncclBfloat16;
      case DataType::kByte:
        break;
    }
    return ncclUint8;
  }

  static ncclRedOp_t op_of(Reduction reduction) {
    return reduction == Reduction::kSum   ? ncclSum
           : reduction == Reduction::kMin ? ncclMin
                                          : ncclMax;
  }

  /// Not one that is freed; what has begun to use it before, NCCL ends by itself.
  ncclComm_t live() const {
    if (aborted_) throw PeerFailure("a rank was lost");
    return comm_;
  }

  void check(ncclResult_t result, const char* what) const {
    if (aborted_) throw PeerFailure(text_format("a rank was lost in %s", what));
    if (result == ncclSuccess) return;
    throw Failure(text_format("%s failed: NCCL says %s", what, nccl_->error_string(result)));
  }

  /// Rank 0 makes the id, the others wait for it.
  ncclUniqueId id_share() {
    ncclUniqueId id{};
    const auto store = store_open(options_.directory, options_.timeout_s, options_.cancelled);
    if (options_.rank == 0) {
      check(nccl_->get_unique_id(&id), "making a unique id");
      store->set("nccl-id", {id.internal, sizeof id.internal});
      return id;
    }
    const auto got = store->get("nccl-id", now_ns() + nanos_of_seconds(options_.timeout_s));
    if (!got)
      throw Failure(text_format("rank 0 gave no NCCL id within %.0f s", options_.timeout_s));
    if (got->size() != sizeof id.internal) throw Failure("rank 0 gave no whole NCCL id");
    std::memcpy(id.internal, got->data(), sizeof id.internal);
    return id;
  }

  CommOptions options_;
  DeviceArray<float> one_;
  const NcclTable* nccl_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::string nccl_missing() {
  std::string why_not;
  nccl_table(&why_not);
  return why_not;
}

std::unique_ptr<Communicator> nccl_comm(const CommOptions& options) {
  return std::make_unique<NcclComm>(options);
}

}  // namespace sluice::train
#else
namespace sluice::train {

std::string nccl_missing() { return "this program was built without nccl.h"; }

std::unique_ptr<Communicator> nccl_comm(const CommOptions&) {
  throw Failure("NCCL cannot be used: " + nccl_missing());
}

}  // namespace sluice::train
#endif
