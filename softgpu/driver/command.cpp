// How each command executes on a stream's worker thread; see command.h.
#include "softgpu/driver/command.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "softgpu/driver/event.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

/// What a kernel needs from us while it runs: device time, the clock, output, a heap.
class LaunchHost : public ptx::Host {
 public:
  LaunchHost(Stream& stream, std::uint64_t number)
      : stream_(stream), context_(stream.owner()), number_(number) {}
  bool charge(std::uint64_t warp_instructions) override {
    device::Device& model = context_.gpu.model;
    return model.work_charge(stream_.queue(), number_, model.compute_cost(warp_instructions),
                             context_.stop);
  }
  std::uint64_t globaltimer_ns() override { return static_cast<std::uint64_t>(device::clock_ns()); }
  std::uint64_t clock_hz() override { return static_cast<std::uint64_t>(kClockKhz) * 1000; }
  void print(std::string_view text) override { context_.print(text); }
  void* heap_allocate(std::size_t bytes) override {
    const std::size_t limit = context_.limits[CU_LIMIT_MALLOC_HEAP_SIZE];
    return bytes <= limit ? std::malloc(bytes) : nullptr;
  }
  void heap_free(void* p) override { std::free(p); }

 private:
  Stream& stream_;
  Context& context_;
  std::uint64_t number_;
};

CUresult fault_error(ptx::Fault fault) {
  switch (fault) {
    case ptx::Fault::kNone:
    case ptx::Fault::kAborted:
      return CUDA_SUCCESS;
    case ptx::Fault::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case ptx::Fault::kMisaligned:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case ptx::Fault::kIllegalInstruction:
      return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case ptx::Fault::kTrap:
      return CUDA_ERROR_LAUNCH_FAILED;
    case ptx::Fault::kAssert:
      return CUDA_ERROR_ASSERT;
    case ptx::Fault::kStackOverflow:
      return CUDA_ERROR_HARDWARE_STACK_ERROR;
  }
  return CUDA_ERROR_UNKNOWN;
}

void run_kernel(const KernelCommand& c, Stream& stream, Op& op) {
  Context& context = stream.owner();
  device::Device& model = context.gpu.model;
  const std::uint64_t blocks = std::uint64_t{c.grid.x} * c.grid.y * c.grid.z;
  // Blocks go to the emptiest SM first, as on hardware: as many SMs work as there are blocks.
  const auto width =
      static_cast<double>(std::min<std::uint64_t>(blocks, model.settings().sm_count));
  const std::uint64_t number = model.work_open(
      stream.queue(), {device::WorkKind::kCompute, width, op.floor_ns}, context.stop);
  if (number == 0) return;
  stream.last_number = number;
  model.launch_count(context.gpu.client);
  model.work_charge(stream.queue(), number, device::kLaunchNs * width, context.stop);
  LaunchHost host(stream, number);
  ptx::Launch launch;
  launch.grid = c.grid;
  launch.block = c.block;
  launch.dynamic_shared_bytes = c.shared_bytes;
  launch.stack_bytes_max = static_cast<std::uint32_t>(
      std::max<std::size_t>(context.limits[CU_LIMIT_STACK_SIZE], 64 * 1024));
  launch.cooperative = c.cooperative;
  launch.params = c.params.data();
  launch.sm_count = model.settings().sm_count;
  const ptx::Outcome outcome = ptx::launch_run(*c.function->kernel, launch, host);
  const CUresult error = fault_error(outcome.fault);
  if (error != CUDA_SUCCESS) {
    if (Process::get().log_level() > 0)
      std::fprintf(stderr, "softgpu: kernel fault: %s\n", outcome.fault_text.c_str());
    context.fail(error);
  }
  if (!context.stop) model.work_close(stream.queue(), number);
}

void copy_bytes(const CopyCommand& c) {
  const std::byte* from = c.staged != nullptr ? c.staged->data() : c.from;
  for (std::size_t z = 0; z < c.depth; ++z) {
    for (std::size_t y = 0; y < c.height; ++y)
      std::memmove(c.to + z * c.to_plane + y * c.to_pitch,
                   from + z * c.from_plane + y * c.from_pitch, c.width);
  }
}

void run_copy(const CopyCommand& c, Stream& stream, Op& op) {
  if (!c.on_device) stream.work_drain();
  copy_bytes(c);
  if (!c.on_device) return;
  const std::uint64_t bytes = std::uint64_t{c.width} * c.height * c.depth;
  stream.work_add(op, c.kind, stream.owner().gpu.model.copy_cost(c.kind, bytes));
}

template <typename T>
void fill(std::byte* to, std::size_t count, unsigned value) {
  std::fill_n(reinterpret_cast<T*>(to), count, static_cast<T>(value));
}

void run_set(const SetCommand& c, Stream& stream, Op& op) {
  for (std::size_t y = 0; y < c.height; ++y) {
    std::byte* row = c.to + y * c.pitch;
    if (c.element == 1) std::memset(row, static_cast<int>(c.value & 0xff), c.width);
    if (c.element == 2) fill<std::uint16_t>(row, c.width, c.value);
    if (c.element == 4) fill<std::uint32_t>(row, c.width, c.value);
  }
  const std::uint64_t bytes = std::uint64_t{c.width} * c.height * c.element;
  stream.work_add(op, device::WorkKind::kCopyInside,
                  stream.owner().gpu.model.copy_cost(device::WorkKind::kCopyInside, bytes));
}

bool word_satisfied(const WordCommand& c) {
  std::uint64_t value = 0;
  if (c.bytes == 4)
    value = __atomic_load_n(reinterpret_cast<std::uint32_t*>(c.address), __ATOMIC_ACQUIRE);
  else
    value = __atomic_load_n(reinterpret_cast<std::uint64_t*>(c.address), __ATOMIC_ACQUIRE);
  switch (c.flags & 3U) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return c.bytes == 4 ? static_cast<std::int32_t>(value - c.value) >= 0
                          : static_cast<std::int64_t>(value - c.value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == c.value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & c.value) != 0;
    default:
      return ~(value | c.value) != 0;
  }
}

void run_word(const WordCommand& c, Stream& stream, Op&) {
  stream.work_drain();
  if (!c.wait) {
    if (c.bytes == 4)
      __atomic_store_n(reinterpret_cast<std::uint32_t*>(c.address),
                       static_cast<std::uint32_t>(c.value), __ATOMIC_RELEASE);
    else
      __atomic_store_n(reinterpret_cast<std::uint64_t*>(c.address), c.value, __ATOMIC_RELEASE);
    return;
  }
  while (!word_satisfied(c) && !stream.owner().stop)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

struct Runner {
  Stream& stream;
  Op& op;
  void operator()(const EmptyCommand&) const {}
  void operator()(const KernelCommand& c) const { run_kernel(c, stream, op); }
  void operator()(const CopyCommand& c) const { run_copy(c, stream, op); }
  void operator()(const SetCommand& c) const { run_set(c, stream, op); }
  void operator()(const HostCommand& c) const {
    stream.work_drain();
    if (!stream.owner().stop) c.call();
  }
  void operator()(const DelayCommand& c) const {
    stream.work_add(op, device::WorkKind::kLink, c.ns);
  }
  void operator()(const FreeCommand& c) const { c.pool->free_finish(c.address); }
  void operator()(const RecordCommand& c) const { c.event->record_in_graph(op.shared()); }
  void operator()(const WaitCommand& c) const { (void)Stream::wait(c.event->op()); }
  void operator()(const WordCommand& c) const { run_word(c, stream, op); }
  void operator()(const GraphCommand& c) const { c.graph->run(stream, op); }
};

}  // namespace

void command_run(const Command& command, Stream& stream, Op& op) {
  if (stream.owner().status() != CUDA_SUCCESS || stream.owner().stop) return;
  std::visit(Runner{stream, op}, command);
}

}  // namespace softgpu::driver
