// The broker's memory of its tenants across its own death: an append-only file in the state
// directory that says which tenants were admitted, which processes joined, which of them have
// ended, and which GPUs are closed to new tenants and why. A broker that is started after a crash
// reads it and goes on where the other stopped.
//
// A record is one write() and is not synced: a killed broker loses nothing that it wrote, because
// the kernel has it; a crash of the machine loses it, and with it every process that it speaks of
// (the journal of another boot is set aside). Compaction writes a new file and renames it over the
// old one, at a heartbeat and without a sync: nobody's answer waits for it, nor for a disk.
//
// A journal that is there is honoured, even if it cannot be written (a read-only file system, a
// full disk): the broker takes its jobs in, goes on, says so once, counts it, and tries to write
// the whole state anew from time to time. Until that works the file tells of an earlier moment. One
// that is there and cannot be read, or that others could have written, ends the start: without it
// the memory of jobs that run would be promised again.
//
// Not known here: sockets, pages, the core. Thread safety: none; one caller.
#pragma once

#include <memory>
#include <string>

#include "broker/daemon/journal_files.h"
#include "broker/daemon/journal_format.h"
#include "broker/daemon/log.h"
#include "broker/daemon/slow_work.h"

namespace sluice::daemon {

class Journal {
 public:
  /// `slow` may be null: then no later write is synced. A sync that hangs there keeps `files` alive
  /// and touches nothing else of this.
  Journal(std::shared_ptr<JournalFiles> files, Log& log, std::string directory, std::string boot_id,
          SlowWork* slow = nullptr);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Takes the directory (made with mode 0700 where it is missing) and reads what is there. False
  /// with `error` (without prefix) when another broker keeps its journal there, or when there is
  /// one that cannot be read or trusted. What else goes wrong is logged.
  [[nodiscard]] bool open(std::string* error);

  /// What is on record now; after open, what the broker before left.
  const JournalState& state() const { return state_; }

  /// Adds the tenant, or replaces what is known of it; its processes stay as they are.
  void tenant_put(const JournalTenant& tenant);
  void tenant_end(protocol::TenantId id);
  void process_put(protocol::TenantId id, const JournalProcess& process);
  void process_end(protocol::TenantId id, const ProcessName& name);

  /// Whether the GPU is closed to new tenants.
  void gpu_put(const protocol::GpuUuid& gpu, bool closed);
  /// Why a closed GPU is.
  void drain_put(const JournalDrain& drain);

  /// Compacts what has grown, and tries again what failed, at most every few seconds. To be called
  /// now and then, while nobody waits.
  void tend(std::int64_t now_ns);

  /// Writes that failed since the start.
  std::uint64_t faults() const { return faults_; }
  /// Records, or damaged places, of the journal before that could not be read.
  std::uint64_t lost() const { return lost_; }

 private:
  bool directory_take(std::string* error);
  int file_check(int fd);
  bool bytes_read(std::string* out);
  bool refuse_if_there(std::string* error);
  void sync_later();
  void contents_take(const std::string& bytes);
  void aside_set();
  void append(const std::string& record);
  bool append_at(off_t size);
  void compact_if_due();
  int rewrite(bool synced);
  int write_all(int fd, std::string_view bytes);
  void fault_say(const char* what, int error);
  void taken_say(const std::string& error);
  std::string path(const char* name) const { return directory_ + "/" + name; }

  std::shared_ptr<JournalFiles> files_;
  Log& log_;
  std::string directory_;
  std::string boot_id_;
  JournalWriter writer_;
  SlowWork* slow_;
  JournalState state_;
  int lock_fd_ = -1;         // of the directory, which is locked
  int fd_ = -1;              // -1: nothing can be appended now
  off_t size_ = 0;           // of whole records in the file behind fd_; 0 = none can be appended
  std::size_t records_ = 0;  // in that file
  std::size_t compaction_look_ = 0;  // so many records before the dead are counted again
  bool seen_ = false;                // what the directory had at first was looked at
  int tries_left_ = 0;               // of opening: nothing is said before the last
  bool said_ = false;                // the present trouble is in the log
  int trouble_ = 0;                  // errno or Trouble of the last failure
  std::uint64_t faults_ = 0;
  std::uint64_t lost_ = 0;
  std::int64_t tried_ns_ = 0;
};

/// This boot of the machine, as the kernel names it; empty where it cannot be read.
std::string boot_id_read();

}  // namespace sluice::daemon
