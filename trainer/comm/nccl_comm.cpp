// Collectives by NCCL, one GPU per rank. The library is opened at run time (its types come from
// nccl.h when compiling), so that the trainer starts where NCCL is not installed; built without
// nccl.h, it says so. Ranks share NCCL's unique id through a file in the job's private directory.
#include "trainer/comm/communicator.h"

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice::train {
namespace {

struct NcclTable {
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRank) init_rank;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclAllReduce) allreduce;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclGetErrorString) error_string;
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
    const bool whole = function_find(library, "ncclGetUniqueId", &table.get_unique_id) &&
                       function_find(library, "ncclCommInitRank", &table.init_rank) &&
                       function_find(library, "ncclCommDestroy", &table.destroy) &&
                       function_find(library, "ncclAllReduce", &table.allreduce) &&
                       function_find(library, "ncclBroadcast", &table.broadcast) &&
                       function_find(library, "ncclGetErrorString", &table.error_string);
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
    if (comm_ != nullptr) nccl_->destroy(comm_);
  }

  const char* name() const override { return "nccl"; }

  void allreduce_sum(Stream& stream, CUdeviceptr data, std::size_t count) override {
    void* memory = reinterpret_cast<void*>(data);
    check(nccl_->allreduce(memory, memory, count, ncclFloat, ncclSum, comm_, stream.handle()),
          "the all-reduce");
  }
  void broadcast(Stream& stream, CUdeviceptr data, std::size_t count) override {
    void* memory = reinterpret_cast<void*>(data);
    check(nccl_->broadcast(memory, memory, count, ncclFloat, 0, comm_, stream.handle()),
          "the broadcast");
  }
  void barrier(Stream& stream) override {
    stream.zero(one_.at(), 1);
    allreduce_sum(stream, one_.at(), 1);
    stream.synchronize();
  }

 private:
  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    throw Failure(text_format("%s failed: NCCL says %s", what, nccl_->error_string(result)));
  }

  /// Rank 0 makes the id and puts it into the directory under its final name only when whole; the
  /// others wait for it.
  ncclUniqueId id_share() {
    ncclUniqueId id{};
    const std::string path = options_.directory + "/nccl-id";
    if (options_.rank == 0) {
      check(nccl_->get_unique_id(&id), "making a unique id");
      std::ofstream(path + ".part", std::ios::binary).write(id.internal, sizeof id.internal);
      std::filesystem::rename(path + ".part", path);
      return id;
    }
    const Nanos deadline = now_ns() + nanos_of_seconds(options_.timeout_s);
    while (!std::filesystem::exists(path)) {
      if (now_ns() > deadline) {
        throw Failure(text_format("rank 0 gave no NCCL id within %.0f s", options_.timeout_s));
      }
      sleep_until(now_ns() + 5 * kNanosPerMilli);
    }
    std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal);
    return id;
  }

  CommOptions options_;
  DeviceArray<float> one_;
  const NcclTable* nccl_ = nullptr;
  ncclComm_t comm_ = nullptr;
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
