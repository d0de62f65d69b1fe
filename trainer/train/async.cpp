// See async.h.
#include "trainer/train/async.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "kernels/kernels.h"

namespace sluice::train {
namespace {

constexpr Nanos kPushLookGap = 20'000;  // between looks at the board

int rank_of_worker(int worker) { return worker + 1; }

}  // namespace

StalenessBook::StalenessBook(int workers, std::uint64_t bound)
    : bound_(bound), workers_(static_cast<std::size_t>(workers)) {
  assert(workers > 0);
}

void StalenessBook::begin_at(const std::vector<std::uint64_t>& steps) {
  assert(steps.size() == workers_.size());
  for (std::size_t i = 0; i < steps.size(); ++i) workers_[i].steps = steps[i];
  // Of all workers together with a bound of 0, else of each.
  updates_ =
      bound_ == 0 ? steps.front() : std::accumulate(steps.begin(), steps.end(), std::uint64_t{0});
}

std::vector<std::uint64_t> StalenessBook::clocks() const {
  std::vector<std::uint64_t> out;
  for (const Worker& one : workers_) out.push_back(one.steps);
  return out;
}

std::uint64_t StalenessBook::ahead(int worker) const {
  std::uint64_t slowest = UINT64_MAX;
  for (const Worker& one : workers_) slowest = std::min(slowest, one.steps);
  return of(worker).steps - slowest;
}

void StalenessBook::weights_given(int worker) {
  ahead_max_ = std::max(ahead_max_, ahead(worker));
  workers_[static_cast<std::size_t>(worker)].version = updates_;
}

std::uint64_t StalenessBook::updated(const std::vector<int>& workers) {
  std::uint64_t oldest = updates_;
  for (const int worker : workers) {
    Worker& one = workers_[static_cast<std::size_t>(worker)];
    oldest = std::min(oldest, one.version);
    ++one.steps;
  }
  const std::uint64_t age = updates_++ - oldest;
  ++ages_[age];
  return age;
}

double StalenessBook::age_mean() const {
  double sum = 0;
  double updates = 0;
  for (const auto& [age, count] : ages_) {
    sum += static_cast<double>(age) * static_cast<double>(count);
    updates += static_cast<double>(count);
  }
  return updates > 0 ? sum / updates : 0;
}

AsyncWorker::AsyncWorker(Communicator& comm, Stream& stream, Network& model, RankLine& line)
    : comm_(comm), stream_(stream), model_(model), line_(line), said_(kReplyCount) {}

ReductionTimes AsyncWorker::exchange() {
  stream_.synchronize();
  const Nanos begin = now_ns();
  line_.pushes = line_.pushes + 1;
  comm_.send(stream_, model_.gradients(), model_.gradient_count(), DataType::kFloat32, 0);
  comm_.group_begin();
  comm_.receive(stream_, model_.parameters(), model_.parameter_count(), DataType::kFloat32, 0);
  comm_.receive(stream_, reply_.at(), kReplyCount, DataType::kFloat32, 0);
  comm_.group_end();
  stream_.download(said_.data(), reply_.at(), reply_.bytes());
  stream_.synchronize();
  ReductionTimes times;
  times.wall_ns = now_ns() - begin;
  const std::size_t floats = model_.gradient_count() + model_.parameter_count() + kReplyCount;
  times.collective_ns = comm_.link_ns(Operation::kPointToPoint, floats * sizeof(float));
  times.exposed_ns = times.collective_ns;
  return times;
}

AsyncServer::AsyncServer(const ServerOptions& options, Communicator& comm, Stream& stream,
                         Network& model, WeightUpdate& update, BoardMap& board, JobLog& log,
                         std::function<bool()> wants_stop)
    : options_(options),
      comm_(comm),
      stream_(stream),
      model_(model),
      update_(update),
      board_(board),
      line_(board.line(0)),
      log_(log),
      wants_stop_(std::move(wants_stop)),
      book_(options.workers, options.bound),
      taken_(static_cast<std::size_t>(options.workers)),
      age_(taken_.size()),
      losses_(taken_.size()),
      waits_(taken_.size()),
      left_(0),
      inbox_(model.gradient_count()) {
  book_.begin_at(options.clocks);
  for (const std::uint64_t clock : options.clocks) left_ += clock < options.steps ? 1 : 0;
}

std::vector<std::uint64_t> AsyncServer::run() {
  for (int worker = 0; worker < options_.workers; ++worker) book_.weights_given(worker);
  const auto sent = [this] {
    const auto traffic = comm_.traffic();
    return traffic ? traffic->of(Operation::kPointToPoint).bytes : 0;
  };
  const std::uint64_t sent_before = sent();
  while (left_ > 0) {
    if (options_.bound == 0) {
      step_together();
    } else {
      const int worker = push_await();
      push_take(worker, model_.gradients());
      pushes_apply({worker});
    }
    options_.on_update(book_);
    replies_send();
    line_.sent_bytes = sent() - sent_before;
  }
  ages_log();
  return book_.clocks();
}

bool AsyncServer::has_pushed(int worker) {
  return board_.line(rank_of_worker(worker)).pushes > taken_[static_cast<std::size_t>(worker)];
}

/// The next worker whose push is there or under way, in turns. Nobody at all for the timeout: they
/// have ended or hang.
int AsyncServer::push_await() {
  const Nanos deadline = now_ns() + nanos_of_seconds(options_.timeout_s);
  for (;;) {
    for (int i = 0; i < options_.workers; ++i) {
      const int worker = (next_ + i) % options_.workers;
      if (!has_pushed(worker)) continue;
      next_ = worker + 1;
      return worker;
    }
    if (!stopping_ && wants_stop_()) {
      stopping_ = true;
      replies_send();
    }
    if (now_ns() > deadline) {
      throw PeerFailure(
          text_format("lost the other ranks: no worker has sent gradients for %g s "
                      "(--comm-timeout); one of them has ended or hangs",
                      options_.timeout_s));
    }
    sleep_until(now_ns() + kPushLookGap);
  }
}

void AsyncServer::push_take(int worker, CUdeviceptr to) {
  comm_.receive(stream_, to, model_.gradient_count(), DataType::kFloat32, rank_of_worker(worker));
  float extras[kExtraCount];
  stream_.download(extras, to + model_.parameter_count() * sizeof(float), sizeof extras);
  stream_.synchronize();
  const auto at = static_cast<std::size_t>(worker);
  ++taken_[at];
  losses_[at] = extras[kExtraLoss];
  stopping_ = stopping_ || extras[kExtraStop] > 0;
}

void AsyncServer::pushes_apply(const std::vector<int>& workers) {
  const std::uint64_t step = book_.steps(workers.front());
  update_.step(rate_at(options_.rates, step));
  const std::uint64_t age = book_.updated(workers);
  for (const int worker : workers) {
    waits_[static_cast<std::size_t>(worker)] = true;
    age_[static_cast<std::size_t>(worker)] = age;
  }
  note();
}

/// A bound of 0: in the order of ranks, so that the sum is the same bits in every run.
void AsyncServer::step_together() {
  std::vector<int> workers(static_cast<std::size_t>(options_.workers));
  std::iota(workers.begin(), workers.end(), 0);
  for (const int worker : workers) {
    push_take(worker, worker == 0 ? model_.gradients() : inbox_.at());
    if (worker == 0) continue;
    stream_.launch(kernels::array_add(static_cast<int>(model_.gradient_count()), inbox_.at(),
                                      model_.gradients()));
  }
  stopping_ = stopping_ || wants_stop_();
  pushes_apply(workers);
}

void AsyncServer::replies_send() {
  for (int worker = 0; worker < options_.workers; ++worker) {
    const auto at = static_cast<std::size_t>(worker);
    const bool last = stopping_ || book_.steps(worker) >= options_.steps;
    if (!waits_[at] || !(last || book_.may_begin(worker))) continue;
    const float said[kReplyCount] = {last ? 1.0f : 0.0f, static_cast<float>(age_[at]),
                                     static_cast<float>(book_.ahead(worker))};
    stream_.upload(reply_.at(), said, sizeof said);
    comm_.group_begin();
    comm_.send(stream_, model_.parameters(), model_.parameter_count(), DataType::kFloat32,
               rank_of_worker(worker));
    comm_.send(stream_, reply_.at(), kReplyCount, DataType::kFloat32, rank_of_worker(worker));
    comm_.group_end();
    stream_.synchronize();  // the next reply goes through the same memory
    waits_[at] = false;
    if (last) {
      --left_;
    } else {
      book_.weights_given(worker);
    }
  }
}

void AsyncServer::note() {
  const double losses = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  line_.loss = losses / (static_cast<double>(options_.workers) * options_.batch *
                         static_cast<double>(model_.sample().targets));
  line_.steps = book_.updates();
  line_.end_ns = now_ns();
  line_.age_mean = book_.age_mean();
  line_.age_max = book_.age_max();
  line_.ahead_max = book_.ahead_max();
}

void AsyncServer::ages_log() {
  for (const auto& [age, count] : book_.ages())
    log_.write(JsonLine("staleness").add("age", age).add("updates", count));
}

}  // namespace sluice::train
