// The engine of a job with one rank, and the choice between engines.
#include "trainer/comm/communicator.h"

namespace sluice::train {
namespace {

class AloneComm final : public Communicator {
 public:
  const char* name() const override { return "none"; }
  void allreduce_sum(Stream&, CUdeviceptr, std::size_t) override {}
  void broadcast(Stream&, CUdeviceptr, std::size_t) override {}
  void barrier(Stream& stream) override { stream.synchronize(); }
};

}  // namespace

std::unique_ptr<Communicator> alone_comm() { return std::make_unique<AloneComm>(); }

std::optional<Engine> engine_parse(const std::string& name) {
  if (name == "auto") return Engine::kAuto;
  if (name == "gloo") return Engine::kGloo;
  if (name == "nccl") return Engine::kNccl;
  return std::nullopt;
}

std::unique_ptr<Communicator> comm_make(const CommOptions& options, Engine engine,
                                        bool own_gpu_each, bool software) {
  if (options.rank_count == 1) return alone_comm();
  if (engine == Engine::kAuto) {
    const bool fits = own_gpu_each && !software && nccl_missing().empty();
    engine = fits ? Engine::kNccl : Engine::kGloo;
  }
  return engine == Engine::kNccl ? nccl_comm(options) : gloo_comm(options);
}

}  // namespace sluice::train
