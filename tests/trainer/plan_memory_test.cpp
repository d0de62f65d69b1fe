// What the cost model says that a rank allocates, against what the driver says it took.
#include <dlfcn.h>

#include "tests/trainer/device_fixture.h"
#include "trainer/plan/memory.h"

namespace sluice::train::planner {
namespace {

class PlanMemoryTest : public tests::DeviceTest {
 protected:
  /// Bytes of the device that are not taken.
  static std::size_t free_bytes() {
    static const auto call = reinterpret_cast<CUresult (*)(std::size_t*, std::size_t*)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemGetInfo_v2"));
    std::size_t free = 0, total = 0;
    EXPECT_NE(call, nullptr);
    if (call != nullptr) driver_check(call(&free, &total), "asking for free memory");
    return free;
  }

  KernelRates any_rates() {
    KernelRates rates;
    rates.multiprocessors = stream().device().multiprocessors();
    for (Rate& rate : rates.rates) rate.samples = 1;
    return rates;
  }

  /// Trains one step, because products take their memory when they first need it.
  std::size_t taken_bytes(const Job& job, int accumulate) {
    const int batch = job.global_batch / accumulate;
    const std::size_t before = free_bytes();
    const auto network = job.shape.make(
        stream(), {.batch_max = batch, .accumulates = accumulate > 1, .precision = job.precision});
    Optimizer optimizer(stream(), job.optimizer, job.shape.parameter_count());
    const SampleShape sample = network->sample();
    const std::vector<std::uint32_t> inputs(sample.inputs * static_cast<std::size_t>(batch));
    const std::vector<int> targets(sample.targets * static_cast<std::size_t>(batch));
    network->batch_upload(inputs.data(), targets.data(), batch);
    network->forward(batch);
    network->backward(batch, batch);
    optimizer.step(0.1, network->gradients(), network->parameters());
    stream().synchronize();
    return before - free_bytes();
  }
};

TEST_F(PlanMemoryTest, IsWhatNetworkAndOptimizerTake) {
  const auto gpt = GptShape{256, 16, 32, 2, 2};
  const std::vector<ModelShape> shapes = {mlp_shape({64, 32}), cnn_shape({4, 8}, {16}), gpt};
  // Loads kernels, which take memory of their own.
  for (const ModelShape& shape : shapes) {
    Job job;
    job.shape = shape;
    taken_bytes(job, 1);
  }
  for (const ModelShape& shape : shapes) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      for (const int accumulate : {1, 2}) {
        Job job;
        job.shape = shape;
        job.global_batch = 8;
        job.precision = precision;
        job.optimizer.method = Method::kAdam;
        Candidate c;
        c.micro_batches = accumulate;
        const Machine machine{any_rates(), {}, 1};
        const auto predicted = predict(job, c, machine).memory_bytes;
        const auto taken = static_cast<double>(taken_bytes(job, accumulate));
        EXPECT_NEAR(predicted / taken, 1, 0.01)
            << shape.text() << " " << precision_name(precision) << " " << accumulate << ": "
            << predicted << " " << taken;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::train::planner
