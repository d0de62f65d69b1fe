// Opening, appending, compacting, and going on when none of it works.
#include "broker/daemon/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>

namespace sluice::daemon {
namespace {

constexpr char kFile[] = "journal";
constexpr char kNewFile[] = "journal.new";
constexpr char kAsideFile[] = "journal.old";
constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;
// A compaction writes down everybody who lives; so it must be worth it.
constexpr std::size_t kRecordsBeforeCompaction = 1024;
constexpr std::int64_t kRetry_ns = 5'000'000'000;
constexpr int kTriesMore = 2;

/// What the journal itself finds wrong, beside the errno values of the kernel.
enum Trouble : int { kDirectoryShared = 4096, kFileForeign, kFileShared, kNotAFile };

constexpr char kElsewhere[] = "give sluiced another directory with --state";

struct TroubleText {
  std::string what;
  std::string remedy;
};

TroubleText trouble_text(int error) {
  switch (error) {
    case kDirectoryShared:
      return {"the directory must be the broker's alone: its owner, mode 0700",
              "chmod 0700 it, as its owner or root, or "};
    case kFileForeign:
      return {"another user owns it", "chown it if only root could have written it, or "};
    case kFileShared:
      return {"others can write it", "chmod 0600 it if only root could have written it, or "};
    case kNotAFile:
      return {"it is not a regular file", "move it away, or "};
    case ELOOP:
      return {"it is a symbolic link", "move it away, or "};
    case EPERM:
      return {"Operation not permitted; is it immutable? lsattr shows that",
              "chattr -i the files and the directory, or "};
    case EACCES:
      return {std::strerror(error), "run sluiced as the directory's owner, or "};
    case ENOSPC:
    case EDQUOT:
      return {std::strerror(error), "free some space there, or "};
    default:
      return {std::strerror(error), "mend that, or "};
  }
}

/// Whether another try in a moment is of no use.
bool lasting(int error) { return error >= kDirectoryShared || error == EPERM || error == ELOOP; }

bool foreign(uid_t owner) { return owner != 0 && owner != geteuid(); }

void pause_now() {
  const timespec pause{0, 10'000'000};
  nanosleep(&pause, nullptr);
}

}  // namespace

std::string boot_id_read() {
  std::string id;
  for (int i = 0; i <= kTriesMore && id.empty(); ++i) {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::getline(file, id);
  }
  return id.substr(0, 36);
}

Journal::Journal(std::shared_ptr<JournalFiles> files, Log& log, std::string directory,
                 std::string boot_id, SlowWork* slow)
    : files_(std::move(files)),
      log_(log),
      directory_(std::move(directory)),
      boot_id_(std::move(boot_id)),
      writer_(boot_id_),
      slow_(slow) {}

Journal::~Journal() {
  if (fd_ >= 0) files_->close(fd_);
  if (lock_fd_ >= 0) files_->close(lock_fd_);
}

void Journal::fault_say(const char* what, int error) {
  ++faults_;
  trouble_ = error;
  if (lasting(error)) tries_left_ = 0;
  if (said_ || tries_left_ > 0) return;
  said_ = true;
  const TroubleText text = trouble_text(error);
  log_.message(Level::kError, "journal_failed",
               "cannot " + std::string(what) + " the journal in " + directory_ + " (" + text.what +
                   "); jobs come and go as ever, but a broker started anew would not know those of "
                   "now; " +
                   text.remedy + kElsewhere,
               {});
}

/// Says once that another broker has taken the directory that could not be used at the start.
void Journal::taken_say(const std::string& error) {
  ++faults_;
  if (trouble_ == EWOULDBLOCK) return;
  trouble_ = EWOULDBLOCK;
  said_ = true;
  log_.message(Level::kError, "journal_failed",
               error + "; a broker started anew would not know the jobs of this one", {});
}

// Whoever can write there could hand out memory with a journal of his own; whoever can read there
// has the keys of all jobs. The lock is on the directory itself, so that it needs no file: it holds
// where nothing can be written.
bool Journal::directory_take(std::string* error) {
  if (lock_fd_ >= 0) return true;
  const int made = files_->make_directory(directory_.c_str(), kDirectoryMode);
  uid_t owner = 0;
  mode_t mode = 0;
  int rc = files_->look_at_directory(directory_.c_str(), &owner, &mode);
  if (rc == -ENOENT && made < 0) rc = made;
  if (rc == 0 && (foreign(owner) || (mode & 0077) != 0)) rc = -kDirectoryShared;
  if (rc < 0) {
    fault_say("use", -rc);
    return false;
  }
  const int lock = files_->open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (lock < 0) {
    fault_say("lock", -lock);
    return false;
  }
  rc = files_->lock(lock);
  if (rc == 0) {
    lock_fd_ = lock;
    return true;
  }
  files_->close(lock);
  if (rc == -EWOULDBLOCK)
    *error = "another broker keeps its journal in " + directory_ +
             "; stop it first, or choose another directory with --state";
  else
    fault_say("lock", -rc);
  return false;
}

bool Journal::open(std::string* error) {
  error->clear();
  std::string bytes;
  bool read = false;
  // What is wanting may be there in a moment.
  for (tries_left_ = kTriesMore;; --tries_left_) {
    read = directory_take(error) && bytes_read(&bytes);
    if (read || !error->empty() || tries_left_ <= 0) break;
    pause_now();
  }
  tries_left_ = 0;
  if (!error->empty()) return false;
  if (!read) return !refuse_if_there(error);
  seen_ = true;
  contents_take(bytes);
  const int rc = rewrite(true);
  if (rc < 0) fault_say("write", -rc);
  // A file of an earlier version stays as it is until tend() writes the whole state.
  if (rc < 0 && size_ > 0) append_at(size_);
  return true;
}

/// What is there and was not read: true with `error`. Jobs of the broker before may run.
bool Journal::refuse_if_there(std::string* error) {
  const int fd = files_->open(path(kFile).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd == -ENOENT || fd == -ENOTDIR) return false;
  if (fd >= 0) files_->close(fd);
  *error = "there is a journal in " + directory_ + " that cannot be used (" +
           trouble_text(trouble_).what +
           "), and the memory of the jobs in it would be promised again; put that right, or move " +
           path(kFile) + " away to begin without those jobs";
  return true;
}

// As of the directory: a file that others can write is not believed. The keys in one that others
// can read are known to them for as long as their jobs live; the rewrite at the start makes it
// private.
int Journal::file_check(int fd) {
  uid_t owner = 0;
  mode_t mode = 0;
  if (const int rc = files_->look_at_file(fd, &owner, &mode); rc < 0) return rc;
  if (!S_ISREG(mode)) return -kNotAFile;  // a pipe without a writer reads as an empty file
  if (foreign(owner)) return -kFileForeign;
  if ((mode & 0022) != 0) return -kFileShared;
  if ((mode & 0044) != 0)
    log_.message(Level::kWarning, "journal_readable",
                 "others could read the journal in " + directory_ +
                     ", and the keys of its jobs; it is written anew with mode 0600",
                 {});
  return 0;
}

bool Journal::bytes_read(std::string* out) {
  const int fd = files_->open(path(kFile).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd == -ENOENT) return true;
  if (fd < 0) {
    fault_say("read", -fd);
    return false;
  }
  if (const int rc = file_check(fd); rc < 0) {
    files_->close(fd);
    fault_say("read", -rc);
    return false;
  }
  char buffer[16384];
  ssize_t got = 0;
  do {
    got = files_->read(fd, buffer, sizeof buffer);
    if (got > 0) out->append(buffer, static_cast<std::size_t>(got));
    if (out->size() > kJournalBytesMax) got = -EFBIG;
  } while (got > 0 || got == -EINTR);
  files_->close(fd);
  if (got == 0) return true;
  fault_say("read", static_cast<int>(-got));
  out->clear();
  return false;
}

void Journal::contents_take(const std::string& bytes) {
  JournalReading reading = journal_read(bytes, boot_id_);
  switch (reading.outcome) {
    case JournalOutcome::kEmpty:
      return;
    case JournalOutcome::kOtherBoot:
      log_.line(Level::kInfo, "journal_of_another_boot", {{"directory", directory_}});
      aside_set();
      return;
    case JournalOutcome::kUnreadable:
      log_.message(Level::kWarning, "journal_unreadable",
                   "the journal in " + directory_ + " cannot be used: " + reading.fault +
                       "; it is kept as " + kAsideFile +
                       " and nobody of the broker before is known",
                   {});
      aside_set();
      return;
    case JournalOutcome::kRead:
      break;
  }
  lost_ = reading.lost;
  if (lost_ != 0) {
    log_.message(Level::kWarning, "journal_damaged",
                 "the journal in " + directory_ + " is damaged in " + std::to_string(lost_) +
                     " places, first: " + reading.fault + "; " + std::to_string(reading.records) +
                     " records are taken in; a job whose record is lost goes on without a broker",
                 {{"lost", lost_}, {"records", reading.records}, {"bytes", bytes.size()}});
  }
  state_ = std::move(reading.state);
  size_ = reading.earlier ? 0 : static_cast<off_t>(reading.good_bytes);
  records_ = reading.records;
}

void Journal::aside_set() {
  const int rc = files_->rename(path(kFile).c_str(), path(kAsideFile).c_str());
  if (rc < 0 && rc != -ENOENT) fault_say("set aside", -rc);
}

/// Goes on behind the first `size` bytes of the file that is there.
bool Journal::append_at(off_t size) {
  const int fd = files_->open(path(kFile).c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW, 0);
  const int rc = fd < 0 ? fd : files_->truncate(fd, size);
  if (rc < 0) {
    fault_say("write", -rc);
    if (fd >= 0) files_->close(fd);
    return false;
  }
  fd_ = fd;
  return true;
}

int Journal::write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = files_->write(fd, bytes.data(), bytes.size());
    if (wrote == -EINTR) continue;
    if (wrote <= 0) return wrote == 0 ? -EIO : static_cast<int>(wrote);
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return 0;
}

/// The whole state into a new file, which takes the place of the old one. 0 or -errno, and then the
/// old one is as it was. At the start, when no client waits, it is `synced`: a disk that takes
/// nothing any more says so then and not later.
int Journal::rewrite(bool synced) {
  const std::string fresh = path(kNewFile);
  const std::string image = writer_.image(state_);
  // What is left under that name may have any mode and owner.
  if (const int rc = files_->remove(fresh.c_str()); rc < 0 && rc != -ENOENT) return rc;
  const int fd = files_->open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, kFileMode);
  int rc = fd < 0 ? fd : write_all(fd, image);
  if (rc == 0 && synced) rc = files_->sync(fd);
  if (rc == 0) rc = files_->rename(fresh.c_str(), path(kFile).c_str());
  if (rc < 0) {
    if (fd >= 0) files_->close(fd);
    return rc;
  }
  if (fd_ >= 0) files_->close(fd_);
  fd_ = fd;
  size_ = static_cast<off_t>(image.size());
  records_ = state_.record_count();
  if (said_) log_.line(Level::kInfo, "journal_written_again", {{"directory", directory_}});
  said_ = false;
  // The new name needs no sync of the directory: what a crash of the machine loses is of no use
  // after it.
  return 0;
}

// What was written of a record that did not fit is cut off again.
void Journal::append(const std::string& record) {
  if (fd_ < 0) return;
  const int rc = write_all(fd_, record);
  if (rc == 0) {
    size_ += static_cast<off_t>(record.size());
    ++records_;
    return;
  }
  fault_say("write", -rc);
  files_->truncate(fd_, size_);
  files_->close(fd_);
  fd_ = -1;  // only the whole state is right now; tend() writes it
}

void Journal::compact_if_due() {
  if (records_ < compaction_look_) return;
  const std::size_t live = state_.record_count();
  compaction_look_ = std::max(kRecordsBeforeCompaction, 2 * live + 1);
  if (records_ < compaction_look_) return;
  const int rc = rewrite(false);
  if (rc == 0) return;
  ++faults_;
  log_.line(Level::kWarning, "journal_not_compacted", {{"reason", std::strerror(-rc)}});
  records_ = live;  // the old file is whole and goes on; not to be tried at every record from now
}

void Journal::tend(std::int64_t now_ns) {
  if (fd_ >= 0) compact_if_due();
  if (fd_ >= 0 || now_ns - tried_ns_ < kRetry_ns) return;
  tried_ns_ = now_ns;
  std::string error;
  if (!directory_take(&error)) {
    if (!error.empty()) taken_say(error);
    return;
  }
  if (!seen_) aside_set();  // what stands there is of a broker whose tenants were not taken over
  seen_ = true;
  if (const int rc = rewrite(false); rc < 0)
    fault_say("write", -rc);
  else
    sync_later();
}

/// Syncs beside the loop, where a full or dying disk may answer late. The work may outlive the
/// journal: only its handler, which runs in the loop, uses the journal.
void Journal::sync_later() {
  if (slow_ == nullptr) return;
  const auto copy = std::make_shared<devices::Fd>(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!*copy) return;
  slow_->run([this, files = files_, copy]() -> Loop::Handler {
    const int rc = files->sync(copy->get());
    if (rc == 0) return nullptr;
    return [this, rc] {
      fault_say("write", -rc);
      if (fd_ >= 0) files_->close(fd_);
      fd_ = -1;
    };
  });
}

void Journal::tenant_put(const JournalTenant& tenant) {
  JournalTenant& known = state_.tenants[tenant.id];
  std::vector<JournalProcess> processes = std::move(known.processes);
  known = tenant;
  known.processes = std::move(processes);
  state_.next_tenant = std::max(state_.next_tenant, tenant.id + 1);
  append(writer_.tenant(known));
}

void Journal::tenant_end(protocol::TenantId id) {
  if (state_.tenants.erase(id) != 0) append(writer_.tenant_ended(id));
}

void Journal::process_put(protocol::TenantId id, const JournalProcess& process) {
  const auto found = state_.tenants.find(id);
  if (found == state_.tenants.end()) return;
  std::erase_if(found->second.processes,
                [&](const JournalProcess& p) { return p.name.pid == process.name.pid; });
  found->second.processes.push_back(process);
  append(writer_.process(id, process));
}

void Journal::process_end(protocol::TenantId id, const ProcessName& name) {
  const auto found = state_.tenants.find(id);
  if (found == state_.tenants.end()) return;
  const auto ended = std::erase_if(found->second.processes,
                                   [&](const JournalProcess& p) { return p.name == name; });
  if (ended != 0) append(writer_.process_ended(id, name));
}

void Journal::gpu_put(const protocol::GpuUuid& gpu, bool closed) {
  const bool known = std::erase(state_.closed_gpus, gpu) != 0;
  if (closed) state_.closed_gpus.push_back(gpu);
  std::erase_if(state_.drains, [&](const JournalDrain& drain) { return drain.gpu == gpu; });
  if (known != closed) append(writer_.gpu(gpu, closed));
}

void Journal::drain_put(const JournalDrain& drain) {
  std::erase_if(state_.drains, [&](const JournalDrain& known) { return known.gpu == drain.gpu; });
  state_.drains.push_back(drain);
  append(writer_.drain(drain));
}

}  // namespace sluice::daemon
