// Watches the tenants' threads, reads what their processes tell, and keeps an account of each
// tenant's time on each of its GPUs. Not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "exporter/idle/activity.h"
#include "exporter/idle/figures.h"
#include "exporter/snapshot.h"

namespace sluice::exporter {

/// Gives the pages of tenants: the broker, or a test.
class ActivitySource {
 public:
  virtual ~ActivitySource() = default;
  /// A descriptor of the tenant's claims page, the caller's from then on; -1 = it cannot be had.
  virtual int activity_fd(protocol::TenantId tenant) = 0;
};

/// Asks the broker at `socket`, each time on a connection of its own.
class BrokerActivity : public ActivitySource {
 public:
  explicit BrokerActivity(std::string socket, int timeout_ms = 2000)
      : socket_(std::move(socket)), timeout_ms_(timeout_ms) {}
  int activity_fd(protocol::TenantId tenant) override;

 private:
  std::string socket_;
  int timeout_ms_;
};

class IdleObserver {
 public:
  IdleObserver(std::unique_ptr<ThreadWatch> watch, std::unique_ptr<ActivitySource> source);

  /// Who is there: to be told about once a second. Tenants of whole GPUs are left out, because
  /// nothing is measured of them.
  void tenants_set(const Snapshot& snapshot);
  /// One look at everything; some ten times a second, so that no gap is lost.
  void look();

  /// Of the tenants whose pages could be had.
  IdleTable figures() const;
  /// How many tenants' could not.
  std::uint64_t unseen_tenants() const;
  bool is_coarse() const { return watch_->is_coarse(); }
  std::uint64_t periods_lost() const;
  /// Of a tenant of several processes: how long each waited for the network while its own GPU had
  /// nothing to do, as far as is known. In a job whose ranks step together the one that waits least
  /// is the one that the others wait for.
  std::map<std::uint32_t, std::uint64_t> peer_waits(protocol::TenantId tenant) const;

 private:
  struct Tenant {
    explicit Tenant(ThreadHistory::StateNow state_now) : history(std::move(state_now)) {}
    std::unique_ptr<ActivityPage> page;
    int asked_ago = 0;  // in calls of tenants_set; what was refused is asked for again, but seldom
    std::set<std::uint32_t> processes;  // registered, and what they started
    std::set<std::uint32_t> registered;
    std::vector<std::string> gpus;  // by index in the page
    ThreadHistory history;          // of these processes' threads
    std::vector<IdleAccount> accounts;
    std::map<std::uint32_t, std::uint64_t> peer_waits;
    std::deque<std::pair<std::uint32_t, GpuTold::Gap>> peer_gaps;  // not explained yet
  };
  std::uint64_t periods_take(std::uint64_t now_ns);
  void account(Tenant& tenant, const std::vector<ProcessNews>& news, std::uint64_t now_ns,
               std::uint64_t known_ns);
  void peers_look(Tenant& tenant, const std::vector<ProcessNews>& news, std::uint64_t known_ns);
  protocol::TenantId tenant_of(std::uint32_t process);

  std::unique_ptr<ThreadWatch> watch_;
  std::unique_ptr<ActivitySource> source_;
  std::map<protocol::TenantId, Tenant> tenants_;
  std::unordered_map<std::uint32_t, protocol::TenantId> owners_;  // of processes seen so far
};

}  // namespace sluice::exporter
