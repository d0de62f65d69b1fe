// Directory checks, the lock beside the socket, bind, accept.
#include "broker/daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "broker/protocol/wire.h"

namespace sluice::daemon {
namespace {

constexpr int kBacklog = 512;
// Few, so that a connection is served before all others have come in: of 64 that come together the
// first would wait for 63 others. More with each turn that leaves some waiting: the last of a full
// backlog would wait for the messages of all before it. At about 20 us each, the most cost about a
// millisecond, which leases can wait.
constexpr int kAcceptsMin = 4;
constexpr int kAcceptsMax = 64;
/// The next try after an accept that failed and will fail again.
constexpr std::int64_t kPause_ns = 50'000'000;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string lock_of(const std::string& path) { return path + ".lock"; }

bool fail(std::string* error, const std::string& text) {
  *error = text;
  return false;
}

std::string why() { return std::strerror(errno); }

// Whoever can write the directory can put another socket in our place.
bool directory_check(const std::string& directory, bool is_private, std::string* error) {
  const mode_t mode = is_private ? 0700 : 0755;
  if (mkdir(directory.c_str(), mode) < 0 && errno != EEXIST) {
    return fail(error, "cannot make the directory " + directory + " (" + why() +
                           "); make it, run sluiced as root, or choose another with --socket");
  }
  struct stat status {};
  if (lstat(directory.c_str(), &status) < 0)
    return fail(error, "cannot look at " + directory + ": " + why());
  if (!S_ISDIR(status.st_mode))
    return fail(error, directory + " is not a directory; choose another with --socket");
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    return fail(error,
                directory + " belongs to uid " + std::to_string(status.st_uid) +
                    ", who could put another socket in its place; use a directory of your own");
  }
  const mode_t forbidden = is_private ? 0077 : 0022;
  if ((status.st_mode & forbidden) != 0) {
    return fail(error,
                directory + (is_private ? " is open to other users, and a private broker's "
                                          "directory must be its user's alone; chmod 0700 it"
                                        : " is open to other users, who could put another socket "
                                          "in its place; chmod go-w it"));
  }
  return true;
}

// A socket file left by a broker that died goes, and so does its link to one; anything else stays
// and is reported.
bool stale_remove(const std::string& path, std::string* error) {
  struct stat status {};
  if (lstat(path.c_str(), &status) < 0)
    return errno == ENOENT || fail(error, "cannot look at " + path + ": " + why());
  struct stat target {};
  const bool link = S_ISLNK(status.st_mode) &&
                    (stat(path.c_str(), &target) < 0 ? errno == ENOENT : S_ISSOCK(target.st_mode));
  if (!S_ISSOCK(status.st_mode) && !link)
    return fail(error, path + " exists and is not a socket; remove it or choose another");
  const int fd = protocol::wire_connect(path.c_str());
  if (fd >= 0) {
    close(fd);
    return fail(error, "another broker already answers at " + path +
                           "; stop it first, or choose another --socket");
  }
  if (unlink(path.c_str()) < 0)
    return fail(error, "cannot remove the stale socket " + path + ": " + why());
  return true;
}

// Takes the lock of a place where clients look, and clears the place.
bool place_take(const std::string& path, bool is_private, devices::Fd* lock, std::string* error) {
  if (!directory_check(directory_of(path), is_private, error)) return false;
  devices::Fd own(::open(lock_of(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!own) return fail(error, "cannot open " + lock_of(path) + ": " + why());
  if (flock(own.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno != EWOULDBLOCK) return fail(error, "cannot lock " + lock_of(path) + ": " + why());
    return fail(error, "another broker already answers at " + path +
                           "; stop it first, or choose another --socket");
  }
  if (!stale_remove(path, error)) return false;
  *lock = std::move(own);
  return true;
}

}  // namespace

Listener::Listener(Loop& loop, const ListenOptions& options, Accepted accepted)
    : loop_(loop),
      options_(options),
      accepts_(kAcceptsMin),
      accepted_(std::move(accepted)),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      again_(
          loop, [this] { watch(); }, "accept again") {}

std::unique_ptr<Listener> Listener::open(Loop& loop, const ListenOptions& options,
                                         Accepted accepted, std::string* error) {
  std::unique_ptr<Listener> listener(new Listener(loop, options, std::move(accepted)));
  if (options.inherited_fd >= 0) {
    listener->socket_ = devices::Fd(options.inherited_fd);
  } else if (!listener->prepare(error)) {
    return nullptr;
  }
  listener->watch();
  return listener;
}

void Listener::watch() {
  key_ = loop_.add(
      socket_.get(), [this] { ready(); }, "accept");
}

void Listener::pause() {
  loop_.remove(key_);
  key_ = 0;
  again_.at(clock_ns() + kPause_ns);
}

bool Listener::prepare(std::string* error) {
  const std::string& path = options_.path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof address.sun_path) {
    return fail(error, "the socket path '" + path + "' must be absolute and shorter than " +
                           std::to_string(sizeof address.sun_path) +
                           " bytes; choose another with --socket");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  devices::Fd lock;
  if (!place_take(path, options_.is_private, &lock, error)) return false;
  socket_ = devices::Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_ ||
      bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    return fail(error, "cannot listen at " + path + ": " + why());
  }
  bound_ = true;
  lock_ = std::move(lock);
  // Anybody may ask the system's broker: who asks is the kernel's word, and what he gets the
  // configuration's.
  if (chmod(path.c_str(), options_.is_private ? 0600 : 0666) < 0 ||
      listen(socket_.get(), kBacklog) < 0) {
    return fail(error, "cannot listen at " + path + ": " + why());
  }
  if (!options_.link.empty() && options_.link != path) link_make();
  return true;
}

void Listener::link_make() {
  devices::Fd lock;
  if (!place_take(options_.link, options_.is_private, &lock, &link_fault_)) return;
  if (symlink(options_.path.c_str(), options_.link.c_str()) < 0) {
    link_fault_ = "cannot make the link " + options_.link + ": " + why();
    unlink(lock_of(options_.link).c_str());
    return;
  }
  link_lock_ = std::move(lock);
  linked_ = true;
}

Listener::~Listener() {
  stop();
  if (!bound_) return;
  if (linked_) {
    unlink(options_.link.c_str());
    unlink(lock_of(options_.link).c_str());
  }
  unlink(options_.path.c_str());
  unlink(lock_of(options_.path).c_str());
}

void Listener::stop() {
  loop_.remove(key_);
  key_ = 0;
  again_.clear();
  socket_.reset();
}

void Listener::ready() {
  const int most = accepts_;
  accepts_ = std::min(2 * accepts_, kAcceptsMax);
  for (int i = 0; i < most && socket_; ++i) {
    devices::Fd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      accepted_(std::move(fd));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    accepts_ = kAcceptsMin;
    const bool full = errno == EMFILE || errno == ENFILE;
    if (errno != EAGAIN && !(full && shed())) pause();
    return;
  }
}

/// Refuses one connection when descriptors have run out. False if it could not: the connection
/// stays in the backlog, and the loop would spin on it.
bool Listener::shed() {
  spare_.reset();
  devices::Fd refused(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool shed = static_cast<bool>(refused);
  refused.reset();  // its number is the one that the spare gets
  spare_ = devices::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return shed;
}

}  // namespace sluice::daemon
