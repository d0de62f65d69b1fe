// How each command executes; see command.h.
#include "softgpu/driver/command.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "softgpu/driver/event.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/memory_strict.h"
#include "softgpu/driver/pool.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

/// A kernel tells the device of its instructions when so many have gathered: some microseconds of
/// modelled time.
constexpr std::uint64_t kChargeAt = 1024;
/// How often a word of memory is looked at, at first and after a long wait. Nobody tells when it
/// changes.
constexpr std::chrono::microseconds kLookFirst{10}, kLookLast{5000};
/// A word is seen after a wait this part longer, at most: a look costs up to 30 us on some hosts.
constexpr int kLookPart = 16;

/// What a kernel needs from us while it runs: device time, the clock, output, a heap.
class LaunchHost : public ptx::Host {
 public:
  /// `timed`: its cost is known already, whatever it executes.
  LaunchHost(Stream& stream, std::uint64_t number, bool timed)
      : stream_(stream), context_(stream.owner()), number_(number), timed_(timed) {}
  void enter() override { strict_thread_enter(); }
  bool charge(std::uint64_t warp_instructions) override {
    const std::uint64_t gathered = gathered_.fetch_add(warp_instructions) + warp_instructions;
    if (gathered < kChargeAt) return running();
    return context_.gpu.model.work_charge(stream_.queue(), number_, cost(gathered_.exchange(0)),
                                          context_.stop) &&
           running();
  }
  /// Device time that the device has not been told of.
  double cost_open() const { return cost(gathered_); }
  std::uint64_t globaltimer_ns() override {
    return static_cast<std::uint64_t>(context_.gpu.model.work_time(stream_.queue(), number_));
  }
  std::uint64_t clock_hz() override { return static_cast<std::uint64_t>(kClockKhz) * 1000; }
  void print(std::string_view text) override { context_.print(text); }
  void* heap_allocate(std::size_t bytes) override { return context_.heap.allocate(bytes); }
  void heap_free(void* p) override { context_.heap.release(p); }
  const ptx::Image* image(std::uint64_t handle) override {
    return ImageTable::get().see(handle, context_.id);
  }

 private:
  bool running() const { return !context_.stop && context_.status() == CUDA_SUCCESS; }
  double cost(std::uint64_t instructions) const {
    return timed_ ? 0 : context_.gpu.model.compute_cost(instructions);
  }

  Stream& stream_;
  Context& context_;
  std::uint64_t number_;
  bool timed_;
  std::atomic<std::uint64_t> gathered_{0};
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
    case ptx::Fault::kInvalidAddressSpace:
      return CUDA_ERROR_INVALID_ADDRESS_SPACE;
    case ptx::Fault::kInvalidPc:
      return CUDA_ERROR_INVALID_PC;
  }
  return CUDA_ERROR_UNKNOWN;
}

/// The event that a monitor sees of a kernel's fault: of the memory unit, or of an engine.
std::uint32_t fault_xid(ptx::Fault fault) {
  constexpr std::uint32_t kMemoryPageFault = 31, kEngineException = 13;
  return fault == ptx::Fault::kIllegalAddress ? kMemoryPageFault : kEngineException;
}

void run_kernel(const KernelCommand& c, Stream& stream, Op& op) {
  Context& context = stream.owner();
  device::Device& model = context.gpu.model;
  const std::uint64_t blocks = std::uint64_t{c.grid.x} * c.grid.y * c.grid.z;
  // Blocks go to the emptiest SM first, as on hardware: as many SMs work as there are blocks.
  const auto width =
      static_cast<double>(std::min<std::uint64_t>(blocks, model.settings().sm_count));
  const auto timed = model.timed(c.function->info().name);
  const double cost = timed ? timed->ns * width : model.launch_cost(width);
  const std::uint64_t number =
      stream.work_begin({device::WorkKind::kCompute, width, op.floor_ns, cost,
                         c.priority.value_or(stream.priority), true});
  if (number == 0) return;
  LaunchHost host(stream, number, timed.has_value());
  ptx::Launch launch;
  launch.grid = c.grid;
  launch.block = c.block;
  launch.dynamic_shared_bytes = c.shared_bytes;
  launch.stack_bytes_max = static_cast<std::uint32_t>(
      std::max<std::size_t>(context.limits[CU_LIMIT_STACK_SIZE], 64 * 1024));
  launch.cooperative = c.cooperative;
  launch.params = c.params.data();
  launch.sm_count = model.settings().sm_count;
  const bool skipped = timed && timed->skip != 0;
  const ptx::Outcome outcome =
      skipped ? ptx::Outcome{} : ptx::launch_run(*c.function->kernel, launch, host);
  stream.work_end(number, host.cost_open());
  const CUresult error = fault_error(outcome.fault);
  if (error == CUDA_SUCCESS) return;
  Process::get().complain("kernel fault: " + outcome.fault_text +
                          "; its context answers every call with " + error_name(error));
  (void)stream.work_drain();  // nobody sees a fault before the device has come to it
  context.fail(error);
  model.xid_note(fault_xid(outcome.fault));
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

/// Programs may look at a word while the device sets it.
template <typename T>
[[gnu::no_sanitize("thread")]] void fill(std::byte* to, std::size_t count, unsigned value) {
  T* const words = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<T>(value);
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

bool word_satisfied(const Word& c) {
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
      return c.bytes == 4 ? ~static_cast<std::uint32_t>(value | c.value) != 0
                          : ~(value | c.value) != 0;
  }
}

void word_write(const Word& c) {
  if (c.bytes == 4)
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(c.address),
                     static_cast<std::uint32_t>(c.value), __ATOMIC_RELEASE);
  else
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(c.address), c.value, __ATOMIC_RELEASE);
}

bool going_on(Context& context) { return !context.stop && context.status() == CUDA_SUCCESS; }

void word_wait(const Word& c, Context& context) {
  using Clock = std::chrono::steady_clock;
  for (const auto start = Clock::now(); !word_satisfied(c) && going_on(context);) {
    std::this_thread::sleep_for(
        std::clamp<Clock::duration>((Clock::now() - start) / kLookPart, kLookFirst, kLookLast));
  }
}

void run_words(const WordsCommand& c, Stream& stream, Op& op) {
  stream.work_drain();
  for (const Word& word : c.words) {
    if (!word.wait) {
      word_write(word);
      continue;
    }
    word_wait(word, stream.owner());
    if (!going_on(stream.owner())) return;
    op.floor_ns = stream.owner().gpu.now_ns();
  }
}

void run_host(const HostCommand& c, Stream& stream, Op& op) {
  stream.work_drain();
  // At exit the program's objects are going; only then is nobody told any more.
  if (!going_on(stream.owner()) && !(c.always && Process::get().status() == CUDA_SUCCESS)) return;
  {
    const HostSide host;
    c.call();
  }
  op.floor_ns = stream.owner().gpu.now_ns();
}

bool anyone_may(const Command& c) {
  return !std::holds_alternative<HostCommand>(c) && !std::holds_alternative<WordsCommand>(c) &&
         !std::holds_alternative<WaitCommand>(c) && !std::holds_alternative<GraphCommand>(c);
}

struct Runner {
  Stream& stream;
  Op& op;
  void operator()(const EmptyCommand&) const {}
  void operator()(const KernelCommand& c) const { run_kernel(c, stream, op); }
  void operator()(const CopyCommand& c) const { run_copy(c, stream, op); }
  void operator()(const SetCommand& c) const { run_set(c, stream, op); }
  void operator()(const HostCommand& c) const { run_host(c, stream, op); }
  void operator()(const DelayCommand& c) const {
    stream.work_add(op, device::WorkKind::kLink, c.ns);
  }
  void operator()(const FreeCommand&) const {}  // the pool looks at the operation
  // These are nodes only, and the run of their graph does what they say (graph_run.h).
  void operator()(const RecordCommand&) const {}
  void operator()(const WaitCommand&) const {}
  void operator()(const GraphCommand&) const {}
  void operator()(const WordsCommand& c) const { run_words(c, stream, op); }
};

}  // namespace

CommandOp::CommandOp(Command command)
    : Op(anyone_may(command) ? By::kAnyone : By::kWorker), command_(std::move(command)) {
  const auto* host = std::get_if<HostCommand>(&command_);
  always = host != nullptr && host->always;
  if (std::holds_alternative<KernelCommand>(command_)) images_.emplace();
}

void CommandOp::run(Stream& on) { std::visit(Runner{on, *this}, command_); }

void CommandOp::drop() {
  command_ = EmptyCommand{};
  images_.reset();
}

namespace {

/// Does its work at its end, which is the command's: executed or dropped.
class Return {
 public:
  explicit Return(std::function<void()> work) : work_(std::move(work)) {}
  ~Return() {
    if (work_) work_();
  }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;
  void forget() { work_ = nullptr; }

 private:
  std::function<void()> work_;
};

}  // namespace

CUresult command_submit_return(const StreamRef& stream, std::function<void()> work) {
  const auto kept = std::make_shared<Return>(std::move(work));
  const CUresult result = command_submit(stream, HostCommand{[kept] {}});
  if (result != CUDA_SUCCESS) kept->forget();
  return result;
}

void command_run(const Command& command, Stream& stream, Op& op) {
  if (going_on(stream.owner())) std::visit(Runner{stream, op}, command);
}

}  // namespace softgpu::driver
