// The broker's working part: feeds what happens to the pure core and carries out what the core
// decides. Owns the tenants' pages, their processes' pidfds and the queue of requests. Everything
// the core learns goes through feed(); everything it wants comes back as actions in order. Must not
// know sockets (answers go to the Outbox) nor whether a message was well-formed (sessions.h has
// checked).
//
// Its files: engine.cpp (asking), engine_who.cpp (who asks), engine_join.cpp (joining),
// engine_actions.cpp (what the core decides), engine_room.cpp (holds, moves and commands),
// engine_death.cpp (pidfds, exec, lost connections, the heartbeat), engine_device.cpp (what the
// devices themselves say), engine_kept.cpp (what they keep of ended processes), engine_idle.cpp
// (jobs that use no GPU), engine_report.cpp (job figures, snapshots), engine_reload.cpp (a new
// configuration), engine_restore.cpp (tenants of a broker before this one, and what the journal is
// told).
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "broker/core/core.h"
#include "broker/daemon/charge.h"
#include "broker/daemon/connections.h"
#include "broker/daemon/inventory.h"
#include "broker/daemon/journal.h"
#include "broker/daemon/keepers.h"
#include "broker/daemon/left_behind.h"
#include "broker/daemon/log.h"
#include "broker/daemon/loop.h"
#include "broker/daemon/pages.h"
#include "broker/daemon/profiles.h"
#include "broker/daemon/slow_work.h"
#include "broker/daemon/timer.h"
#include "broker/devices/checkpoint.h"
#include "broker/devices/loss_watch.h"
#include "config/reader/config.h"

namespace sluice::daemon {

// Descriptors of each: of a tenant its two pages and the founder's pidfd, else a pidfd.
inline constexpr std::uint32_t kTenantDescriptors = 3;
inline constexpr std::uint32_t kProcessDescriptors = 1;
inline constexpr std::uint32_t kRequestDescriptors = 1;

/// Who asks, and how to answer.
struct Asker {
  ConnectionId connection = 0;
  const Peer& peer;
  std::uint32_t request = 0;  // Header::request of the question
};

/// An asker that is answered later: a registration that waits until the rest of its job is back
/// (engine_restore.cpp) or until its user's default tenant is admitted (engine_join.cpp), or a
/// request that is being looked up (engine_who.cpp).
struct Knock {
  DescriptorCharge charge;
  ConnectionId connection = 0;
  std::uint32_t request = 0;
  Peer peer;
  std::string command;
};

/// What one rank of a training job last reported.
struct JobFigures {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t exposed_communication_ns = 0;
  double straggler_score = 0;
};

struct Tenant {
  DescriptorCharge charge;
  protocol::TenantId id = 0;
  protocol::JoinKey key = 0;
  uid_t uid = 0;
  std::string name;
  std::string profile;
  bool is_default = false;  // the one that unannounced programs of its user join
  std::vector<protocol::GpuUuid> gpus;
  std::unique_ptr<Pages> pages;
  std::int64_t admitted_ns = 0;
  ConnectionId granted_on = 0;   // where the key was sent; 0 once a process has used it
  core::TenantAdmitted grant;    // the limits in force, and where
  std::uint64_t quota_most = 0;  // the highest memory_max it had: claims count up to it
  AskedLimits asked;             // what of them was asked for
  std::int64_t window_ns = 0;    // as asked
  std::int64_t asked_ns = 0;
  protocol::TenantClass tenant_class{};
  bool released = false;
  std::uint8_t distrust = 0;    // what its claims have said that cannot be true
  bool in_grace = false;        // restored, and its founder is dead or unknown: ends with the grace
  bool gather_over = false;     // nobody is waited for any more
  std::int64_t knocked_ns = 0;  // when the first of `knocks` came
  std::vector<Knock> knocks;
  pid_t founder_pid = 0;
  std::uint64_t founder_start_ticks = 0;
  devices::Fd founder_pidfd;  // reset once the founder has ended
  Loop::Key founder_key = 0;
  std::set<core::ProcessId> processes;
  std::set<core::ProcessId> kept;  // ended, and the device still has memory of it (engine_kept.cpp)
  bool kept_is_founder = false;    // they stand in for the founder
  Stay stay;
  bool comes_back = false;  // restored, and no word of this broker has ordered its memory yet
  std::map<std::uint32_t, JobFigures> ranks;
  std::uint64_t busy_seen_ns = 0;  // by its meters, on all its GPUs, when that was looked at last,
  std::int64_t busy_changed_ns = 0;  // and when it was last another figure, or it wanted its GPU
  std::int64_t away_ns = 0;          // when it was last suspended, or in the queue to come back
  std::uint32_t idle_said = 0;       // protocol::kIdle..., as told last
  bool idle_ended = false;           // it got SIGTERM for that
  std::string how;                   // why it is being ended; empty = it is not
  std::uint32_t crashes = 0;         // of its processes,
  std::string crashed;               // and the last of these, for people
};

/// Of a process that has ended: whether the device has returned its memory (engine_kept.cpp).
enum class Ending : std::uint8_t { kLives, kDoubt, kKept };

/// One registered process. It is a member until its pidfd says that it ended (or exec threw its
/// shim away) and the device has returned its memory.
struct Process {
  DescriptorCharge charge;
  core::ProcessId id = 0;
  protocol::TenantId tenant = 0;
  pid_t pid = 0;
  std::uint32_t slot = 0;
  std::uint64_t start_ticks = 0;
  std::uint64_t program = 0;  // that it ran when it registered last; 0 = not known
  bool restored = false;      // known from the journal; has not come back yet
  bool lost = false;          // by the driver, in a checkpoint: it can only be ended
  std::string command;
  devices::Fd pidfd;
  Loop::Key key = 0;
  ConnectionId connection = 0;  // 0 = unregistered: lives, but its socket is closed
  int beats_detached = 0;       // heartbeats seen while unregistered
  // By GPU of its tenant: the room word that it had read when it last wanted memory there.
  std::array<std::optional<std::uint32_t>, protocol::kTenantGpusMax> wanted_rooms;
  Ending ending = Ending::kLives;
  bool unclean = false;                  // it ended without saying so before
  bool work = false;                     // and had work on the device
  bool left_leases = false;              // the core has been told that it is gone
  std::vector<LeftBehind> had;           // when it ended, by GPU of its tenant
  std::vector<std::uint64_t> on_device;  // what of that the device may have still
  std::int64_t ended_ns = 0;
  std::int64_t answered_ns = 0;   // the device has last told of it
  std::int64_t work_seen_ns = 0;  // and shown work of it
  std::string keepers;            // for people
};

struct Counters {
  std::uint64_t registrations = 0;
  std::uint64_t admissions = 0;
  std::uint64_t refusals = 0;
  std::array<std::uint64_t, protocol::kRefusalCodes> refused_by_code{};
  std::uint64_t protocol_errors = 0;
  std::array<std::uint64_t, protocol::kProtocolErrors> protocol_errors_by_kind{};
  std::uint64_t reloads_ok = 0;
  std::uint64_t reloads_failed = 0;
};

/// What an engine is made with.
struct EngineSetup {
  std::vector<ServedGpu> gpus;
  config::Config config;
  Journal* journal = nullptr;                          // null: nothing is remembered
  std::string probe = program_beside("sluice-probe");  // empty: no device is asked anything
  Accounts accounts{};  // known from the beginning (the fuzzer's); others are looked up
  /// How long a request waits for its user or cgroup to be looked up. Above the few seconds after
  /// which the C library gives up on one server of a directory service.
  std::int64_t who_patience_ns = 8'000'000'000;
  /// How long processes that come back to a restored job wait for the rest of it. Below the 5 s
  /// after which a shim that has asked gives up and asks again.
  std::int64_t gather_patience_ns = 3'000'000'000;
  /// How long a reload may take. A directory service gives up before.
  std::int64_t reload_patience_ns = 30'000'000'000;
};

class Engine {
 public:
  Engine(Loop& loop, Log& log, Outbox& outbox, SlowWork& slow, const EngineSetup& setup);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Takes in the tenants of the journal that may still live. To be called once, before anybody can
  /// connect.
  void restore();

  // What arrives on connections.
  void admit(const Asker& asker, const protocol::Admit& message);
  void join(const Asker& asker, const protocol::Register& message);
  /// False when the note does not fit the process (a GPU its tenant does not have).
  [[nodiscard]] bool note(core::ProcessId process, const protocol::Envelope& envelope);
  void command(const Asker& asker, const protocol::Command& message);
  void job_report(const Asker& asker, const protocol::JobReport& message);
  void job_release(const Asker& asker, const protocol::Release& message);
  void snapshot_send(const Asker& asker);
  void activity_send(const Asker& asker, const protocol::ActivityRequest& message);
  void connection_closed(ConnectionId connection, bool unread);

  /// The process that registered on this connection; 0 = none did.
  core::ProcessId process_on(ConnectionId connection) const;
  /// Whether an Admit, Register or Command of this connection waits for its answer.
  bool pending_on(ConnectionId connection) const {
    return request_on(connection) != 0 || knocking_.count(connection) != 0 ||
           questions_.count(connection) != 0 || commanding(connection) || reload_waits(connection);
  }

  void refuse(ConnectionId connection, std::uint32_t request, protocol::RefusalCode code,
              const std::string& text, std::uint64_t minimum_bytes = 0);
  void protocol_error_count(protocol::ProtocolError kind) {
    ++counters_.protocol_errors;
    ++counters_.protocol_errors_by_kind[static_cast<std::size_t>(kind)];
  }

  /// Descriptors of the broker that the user's requests, tenants and processes take (not his
  /// connections).
  void descriptors_add(Descriptors* out) const { charges_.add_to(out); }

  /// Reads the configuration again; a file with a mistake changes nothing but the counter.
  void reload();
  /// The same for an asker, who is answered with what changed, or with what is wrong.
  void reload_asked(const Asker& asker, const protocol::Reload& message);
  /// Stamps the lease pages and does all that goes by time and has no timer of its own:
  /// unregistered processes, GPUs and their drains, requests and reloads that took too long, idle
  /// jobs, waiting registrations, the journal. Called four times a second.
  void heartbeat();
  bool idle() const { return tenants_.empty() && pending_.empty() && questions_.empty(); }
  /// The user's name as far as it is known, else the number.
  std::string user_name(uid_t uid) const { return accounts_.name(uid); }
  std::size_t tenant_count() const { return tenants_.size(); }

 private:
  // A request the core has not answered for good.
  struct Pending {
    DescriptorCharge charge;
    ConnectionId connection = 0;
    std::uint32_t request = 0;
    uid_t uid = 0;
    pid_t pid = 0;
    std::uint64_t program = 0;
    devices::Fd pidfd;
    std::string name;
    std::string profile;
    protocol::TenantClass tenant_class{};
    AskedLimits asked;
    std::int64_t window_ns = 0;
    std::uint8_t cut = 0;  // protocol::kCut...
    std::int64_t asked_ns = 0;
    std::optional<protocol::Register> join;  // set: a default tenant for this registration,
    std::vector<Knock> followers;            // and those of the same user that came after it
    std::optional<protocol::Queued> place;   // what it was told last
  };
  using Asked = std::variant<protocol::Admit, protocol::Register>;
  // A request whose user or cgroup is being looked up (engine_who.cpp).
  struct Question {
    Knock asker;
    Asked message;
    std::int64_t asked_ns = 0;
    std::shared_ptr<int> cgroup_asked;  // for as long as the answer is wanted
    std::optional<std::string> cgroup;  // nothing: not told yet
  };
  struct Checkpointing {
    protocol::TenantId tenant = 0;
    core::CheckpointStep step{};
  };
  struct AskedCommand {
    ConnectionId connection = 0;
    std::uint32_t request = 0;
    uid_t uid = 0;
  };

  void feed(core::Event event);
  void carry_out(const core::TenantAdmitted& action);
  void carry_out(const core::TenantQueued& action);
  void carry_out(const core::TenantRefused& action);
  void carry_out(const core::TenantEnded& action);
  void carry_out(const core::LimitsSet& action);
  void carry_out(const core::LeaseSet& action);
  void carry_out(const core::UsageWanted& action);
  void carry_out(const core::RunawaySeen& action);
  void carry_out(const core::RankLost& action);
  void carry_out(const core::HoldSet& action);
  void carry_out(const core::RoomSet& action);
  void carry_out(const core::MemoryLookWanted& action);
  void carry_out(const core::CheckpointWanted& action);
  void carry_out(const core::TenantMoved& action);
  void carry_out(const core::StayNoted& action);
  void carry_out(const core::MoveFailed& action);
  void carry_out(const core::CommandAnswered& action);
  void carry_out(const core::TenantLost& action);
  void carry_out(const core::DeviceLookWanted& action);
  void carry_out(const core::MemoryNotReturned& action);
  void carry_out(const core::AlarmSet& action);
  void carry_out(const core::GpuNoted& action);

  core::RequestId request_on(ConnectionId connection) const;
  bool commanding(ConnectionId connection) const;
  std::optional<Who> who_known(const Peer& peer) const;
  void who_ask(const Asker& asker, const Asked& message);
  void who_start(ConnectionId connection);
  void question_answer(ConnectionId connection, bool late);
  void who_over();
  void account_ask(uid_t uid);
  void places_name(uid_t uid);
  void place_send(const Pending& pending);
  void account_told(uid_t uid, const std::optional<Account>& account);
  void admit_as(const Asker& asker, const protocol::Admit& message, const Who& who);
  void join_as(const Asker& asker, const protocol::Register& message, const Who* who);
  std::optional<std::string> profile_fault(const Profile& profile, uid_t uid,
                                           const protocol::Admit& message) const;
  core::TenantAsked ask_make(const Profile& profile, const protocol::Admit& message, bool swap,
                             std::uint8_t* cut) const;
  std::uint64_t capacity_for(const protocol::Admit& message) const;
  void refuse_within(const Asker& asker, const Profile& profile, protocol::RefusalCode code,
                     const std::string& text);
  std::string allowed_text(const Profile& profile) const;
  std::string named_text(const std::string& text) const;
  void ask(const Asker& asker, const Profile& profile, const protocol::Admit& message,
           std::optional<protocol::Register> join);
  void join_default(const Asker& asker, const protocol::Register& message, const Who* who);
  void refuse_all(const Pending& pending, protocol::RefusalCode code, const std::string& text,
                  std::uint64_t minimum_bytes = 0);
  bool asker_left(Pending& pending, ConnectionId connection);
  bool knock_make(const Asker& asker, const std::string& command, Knock* out);
  std::uint32_t tenants_of(uid_t uid) const;
  Tenant* tenant_create(const core::TenantAdmitted& action, Pending* pending);
  bool admitted_send(const core::TenantAdmitted& action, const Pending& pending,
                     protocol::JoinKey key);
  void join_tenant(Tenant& tenant, ConnectionId connection, std::uint32_t request, const Peer& peer,
                   const std::string& command);
  bool rejoin(Tenant& tenant, Process& process, ConnectionId connection, std::uint32_t request,
              std::uint64_t program);
  void registered_send(const Tenant& tenant, const Process& process, ConnectionId connection,
                       std::uint32_t request);
  Tenant* tenant_find(protocol::TenantId id);
  Tenant* tenant_of(const Asker& asker, protocol::TenantId id, protocol::JoinKey key);
  std::string gpu_text(const Tenant& tenant, std::uint32_t gpu_index) const;
  std::uint64_t context_bytes(const protocol::GpuUuid& gpu) const;
  std::uint64_t capacity_of(const protocol::GpuUuid& gpu) const;
  /// What the tenant says of its memory, as far as it can be true.
  MemoryClaims memory_of(const Tenant& tenant, std::uint32_t gpu_index) const;
  core::MemorySeen memory_seen(const Tenant& tenant, std::uint32_t gpu_index) const;
  std::vector<core::MemorySeen> memory_look(const protocol::GpuUuid& gpu) const;
  bool gate_note(core::ProcessId id, const protocol::GateNote& note);
  std::vector<devices::CheckpointTarget> checkpoint_targets(const Tenant& tenant) const;
  void checkpoints_collect();
  std::vector<core::ProcessId> lost_find(protocol::TenantId id,
                                         const devices::CheckpointResult& result);
  void held(core::ProcessId id, const protocol::GateNote& note);
  bool moved(core::ProcessId id, const protocol::Moved& message);
  bool memory_want(core::ProcessId id, const protocol::MemoryWant& message);

  void released(Tenant& tenant);
  void grant_lost(ConnectionId connection);
  void founder_drop(protocol::TenantId id);
  enum class End : std::uint8_t { kExited, kExec };
  void process_end_seen(core::ProcessId id, End end);
  void process_replaced(core::ProcessId id);
  /// How long the job has lived: no GPU was busy for it for longer, whatever its meter says.
  static std::uint64_t lived_ns(const Tenant& tenant) {
    return static_cast<std::uint64_t>(clock_ns() - tenant.admitted_ns);
  }
  void tenant_kill(const Tenant& tenant);
  // engine_kept.cpp
  /// Claims when a GPU was asked what is in use.
  struct DeviceAsked {
    std::uint64_t claimed = 0;
    bool still = false;  // nothing was being moved
    std::int64_t asked_ns = 0;
    ReleasedClaims released;
  };
  /// As of when no process had ended there; only of GPUs on which the driver lists processes.
  struct DeviceReference {
    DeviceReading reading;
    std::int64_t taken_ns = 0;
  };
  std::vector<std::uint64_t> device_bytes_of(const Tenant& tenant, std::uint32_t slot) const;
  void doubt_begin(Process& process, const Tenant& tenant);
  std::vector<std::pair<Process*, std::uint32_t>> ended_on(std::uint32_t g) const;
  std::vector<devices::EndedProcess> ended_names(std::uint32_t g) const;
  ReleasedClaims released_claims(std::uint32_t g) const;
  std::uint64_t released_room(const Tenant& tenant, std::uint32_t i,
                              const devices::ListedUse& listed) const;
  DeviceReading reading_of(std::uint32_t g, const devices::DeviceUse& use,
                           const ReleasedClaims& claims) const;
  void reference_renew(std::uint32_t g, const devices::DeviceUse& use, const DeviceAsked& asked);
  void left_look(std::uint32_t g, const devices::DeviceUse& use, const DeviceAsked& asked);
  void left_tell(protocol::TenantId id);
  /// What ended processes of the tenant have on the GPU, or may have.
  std::uint64_t left_bytes(const Tenant& tenant, const protocol::GpuUuid& gpu) const;
  void left_note(Process& process, std::uint32_t i, std::uint64_t left,
                 const devices::DeviceUse& use);
  void kept_begin(Process& process);
  void kept_tend();
  void kept_tend_one(Process& process);
  void leases_leave(Process& process);
  void process_over(core::ProcessId id);
  void founder_gone(Tenant& tenant);
  void keepers_name(const Process& process);
  void keepers_named(core::ProcessId id, const std::vector<pid_t>& found);
  void keepers_end(const Tenant& tenant);
  /// By index into gpus_; more than there are, if it is not served.
  std::uint32_t gpu_number(const protocol::GpuUuid& gpu) const;
  void drains_poll();
  void holds_poll();
  void devices_poll();
  void devices_beat();
  void device_ask(const protocol::GpuUuid& gpu);
  void device_answered(const devices::LossWatch::Used& used);
  std::uint64_t doubted_bytes(const Tenant& tenant, std::uint32_t gpu_index) const;
  std::uint64_t device_claimed(const protocol::GpuUuid& gpu, bool* still) const;
  void returned_look();
  void lies_look();
  static bool process_same(const Process& process, std::uint64_t program);

  std::unique_ptr<Pages> pages_make(const Tenant& tenant) const;
  Tenant* tenant_add(std::unique_ptr<Tenant> tenant);
  void tenant_restore(const JournalTenant& known);
  void process_restore(Tenant& tenant, const JournalProcess& known);
  void grace_over();
  void join_or_knock(Tenant& tenant, const Asker& asker, const std::string& command);
  bool gathering(const Tenant& tenant) const;
  void knocks_answer_if_due(protocol::TenantId id);
  void knocks_answer(protocol::TenantId id);
  void knock_withdraw(ConnectionId connection);
  void journal_tenant(const Tenant& tenant);
  void journal_process(const Process& process);
  struct Reloaded;
  void reloaded(Reloaded& fresh);
  void reload_look(const Asker& asker);
  void reload_answer(ConnectionId connection, std::uint32_t request, bool good,
                     const std::string& text);
  void reload_answer_all(bool good, const std::string& text);
  bool reload_waits(ConnectionId connection) const;
  std::string changes_text(const config::Config& after, bool look) const;
  void reload_over();
  void idle_look();
  void idle_step(Tenant& tenant, std::int64_t idle_ns);
  void idle_end(Tenant& tenant, std::int64_t idle_ns);
  std::int64_t idle_ns(const Tenant& tenant) const;
  std::int64_t idle_told_ns(const Tenant& tenant) const;
  std::string idle_text(protocol::TenantId id) const;
  void closed_gpus_open();
  void closed_gpu_note(const protocol::GpuUuid& gpu, bool closed, const core::GpuDrain& drain);
  void ended_note(const Tenant& tenant, std::uint64_t busy_ns);
  void limits_renew();
  std::uint64_t capacity_min() const;  // of the smallest GPU

  devices::Fd snapshot_make(std::uint64_t* bytes);
  protocol::SnapshotPolicy policy_tell() const;
  void queued_fill(protocol::SnapshotTenant* row) const;

  Loop& loop_;
  Log& log_;
  Outbox& outbox_;
  SlowWork& slow_;
  std::vector<ServedGpu> gpus_;
  config::Config config_;
  const config::Config config_started_;  // keys that are read at start only are in force as here
  Profiles profiles_;
  std::optional<uid_t> exporter_uid_;  // may read what tenants tell of their idle time
  std::unique_ptr<core::State, void (*)(core::State*)> state_;
  Journal* journal_;
  Timer alarm_;
  Timer grace_;
  std::int64_t started_ns_;
  Counters counters_;

  std::deque<core::Event> answers_;  // to UsageWanted and MemoryLookWanted: before anything else
  std::deque<core::Event> events_;
  bool feeding_ = false;

  ChargeBook charges_;  // before all that is charged to it
  std::unordered_map<protocol::TenantId, std::unique_ptr<Tenant>> tenants_;
  std::unordered_map<core::ProcessId, std::unique_ptr<Process>> processes_;
  std::map<core::RequestId, Pending> pending_;
  std::map<ConnectionId, Question> questions_;
  const std::int64_t who_patience_ns_;
  const std::int64_t gather_patience_ns_;
  const std::int64_t reload_patience_ns_;
  Accounts accounts_;
  std::set<uid_t> accounts_asked_;  // and not answered yet
  bool reloading_ = false;
  bool reload_again_ = false;  // it was asked for while one was under way
  /// Of whoever asked for a reload, or a look: of the one under way, and of the one after it.
  struct ReloadAsker {
    ConnectionId connection = 0;
    std::uint32_t request = 0;
  };
  std::vector<ReloadAsker> reload_askers_;
  std::vector<ReloadAsker> reload_next_askers_;
  std::vector<ReloadAsker> reload_lookers_;
  std::int64_t reload_since_ns_ = 0;
  std::uint64_t reload_number_ = 0;  // of the one under way: others were given up
  std::map<core::RequestId, AskedCommand> commands_;
  std::unique_ptr<devices::Checkpoints> checkpoints_;  // null until the first job
  Loop::Key checkpoints_key_ = 0;
  std::map<devices::CheckpointId, Checkpointing> checkpointing_;
  devices::LossWatch losses_;
  int losses_fd_ = -1;
  Loop::Key losses_key_ = 0;
  std::map<std::uint32_t, DeviceAsked> device_asked_;  // by index into gpus_, until it has answered
  std::map<std::uint32_t, DeviceReference> device_references_;
  Timer kept_timer_;
  KeeperLooks keeper_looks_{slow_};
  std::map<std::uint32_t, std::int64_t> closed_gpus_until_;  // by GPU index, seconds of the epoch
  std::deque<protocol::SnapshotEnded> ended_;                // the latest first
  int beats_ = 0;
  std::unordered_map<ConnectionId, core::ProcessId> shims_;
  std::unordered_map<ConnectionId, protocol::TenantId> knocking_;
  std::map<std::uint32_t, std::uint64_t>
      retired_busy_ns_;  // by index into gpus_: of tenants that are gone
  core::RequestId next_request_ = 1;
  core::ProcessId next_process_ = 1;
};

}  // namespace sluice::daemon
