// One scrape: ask the broker, look at the kernel observers, build every family afresh. Of a tenant
// only the counters of the last seconds are kept between scrapes, and what is gone is gone.
// Thread-safe: the web server scrapes from several threads.
#pragma once

#include <prometheus/collectable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exporter/bpf/watch.h"
#include "exporter/hour.h"
#include "exporter/idle/thread.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {

struct CollectorParts {
  std::unique_ptr<SnapshotSource> source;
  std::unique_ptr<Watch> watch;  // null = not loaded
  std::string watch_reason;
  std::unique_ptr<Devices> devices;  // null = no NVML
  std::unique_ptr<IdleThread> idle;  // null = causes of idle time are not looked for
  std::string idle_reason;           // then: why
  std::string bypass_figures;        // where sluice-watch writes its counts; empty = nowhere
  std::uint32_t tenants_max = 200;
  std::function<std::uint64_t()> clock_ns;  // monotonic
  std::function<void(const std::string&)>
      say;  // one line for people, when the broker goes or comes
};

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(CollectorParts parts) : parts_(std::move(parts)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;
  /// The same for the wall page, as /snapshot.json. At most one a second is made, however many look
  /// on.
  std::string wall() const;
  /// Asks the broker between scrapes: for shares of the last seconds, for who came and how long it
  /// had waited, and to let the observers know of new processes. To be called about once a second,
  /// so that short jobs are seen too.
  void refresh() const;

 private:
  /// What is known at one moment, from whom it can be had.
  struct Gathered {
    SnapshotResult result;
    const Snapshot* snapshot = nullptr;  // in `result`; null = there is none
    WatchFigures watch;
    DeviceFigures devices;
    IdleState idle;
    RecentFigures recent;
  };
  void gather(Gathered& out) const;
  void change_say(const SnapshotError* error) const;

  CollectorParts parts_;
  mutable std::mutex mutex_;  // guards all below, and the watch
  mutable OwnFigures own_;
  mutable History history_;
  mutable Hour hour_;
  mutable std::string wall_;  // as last made, at
  mutable std::uint64_t wall_made_ns_ = 0;
  mutable std::string last_error_;  // empty = the broker answered
};

/// The families as Prometheus text.
std::string metrics_text(const std::vector<prometheus::MetricFamily>& families);

}  // namespace sluice::exporter
