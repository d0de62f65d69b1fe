// The engine of a job with one rank, and the choice between engines.
#include "trainer/comm/communicator.h"

#include <cstdlib>

namespace sluice::train {
namespace {

class AloneComm final : public Communicator {
 public:
  const char* name() const override { return "none"; }
  void all_reduce(Stream&, CUdeviceptr, std::size_t, DataType, Reduction) override {}
  void reduce_scatter(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                      DataType type, Reduction) override {
    copy(stream, send, receive, count, type);
  }
  void all_gather(Stream& stream, CUdeviceptr send, CUdeviceptr receive, std::size_t count,
                  DataType type) override {
    copy(stream, send, receive, count, type);
  }
  void broadcast(Stream&, CUdeviceptr, std::size_t, DataType, int) override {}
  void reduce(Stream&, CUdeviceptr, std::size_t, DataType, Reduction, int) override {}
  void send(Stream&, CUdeviceptr, std::size_t, DataType, int) override { nobody(); }
  void receive(Stream&, CUdeviceptr, std::size_t, DataType, int) override { nobody(); }
  void group_begin() override {}
  void group_end() override {}
  void barrier(Stream& stream) override { stream.synchronize(); }
  std::optional<Traffic> traffic() const override { return Traffic(); }

 private:
  static void copy(Stream& stream, CUdeviceptr from, CUdeviceptr to, std::size_t count,
                   DataType type) {
    if (from != to && count > 0) stream.copy(to, from, count * type_bytes(type));
  }
  [[noreturn]] static void nobody() { throw Failure("a job of one rank has nobody to send to"); }
};

}  // namespace

std::unique_ptr<Communicator> alone_comm() { return std::make_unique<AloneComm>(); }

std::optional<Engine> engine_parse(const std::string& name) {
  if (name == "auto") return Engine::kAuto;
  if (name == "gloo") return Engine::kGloo;
  if (name == "nccl") return Engine::kNccl;
  return std::nullopt;
}

Engine engine_chosen(Engine engine, bool software) {
  if (engine != Engine::kAuto) return engine;
  return !software && nccl_missing().empty() ? Engine::kNccl : Engine::kGloo;
}

std::unique_ptr<Communicator> comm_make(const CommOptions& options, Engine engine,
                                        bool own_gpu_each, bool software) {
  if (options.rank_count == 1) return alone_comm();
  if (engine_chosen(engine, software) == Engine::kGloo) return gloo_comm(options);
  if (!own_gpu_each && std::getenv("NCCL_HOSTID") == nullptr) {
    throw Failure(
        "ranks share a GPU, and NCCL takes that only from ranks with an NCCL_HOSTID each; set one, "
        "or give --comm gloo");
  }
  return nccl_comm(options);
}

}  // namespace sluice::train
