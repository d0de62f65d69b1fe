// See kernel.h.
#include "broker/daemon/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "broker/daemon/pages.h"
#include "broker/devices/fd.h"

namespace sluice::daemon {
namespace {

/// A lack of descriptors or memory passes.
std::string sentence(const std::string& what, const char* why) {
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EINTR) return "";
  return "this kernel, or a filter for system calls, refuses " + what + " (" +
         std::strerror(errno) + "), " + why +
         "; use Linux 5.3 or later and permit it, or run programs without a broker under "
         "SLUICE_MEMORY and SLUICE_SM";
}

}  // namespace

std::string kernel_lacks() {
  const devices::Fd own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!own) return sentence("pidfd_open", "by which the broker knows who has ended");
  if (syscall(SYS_pidfd_send_signal, own.get(), 0, nullptr, 0) < 0)
    return sentence("pidfd_send_signal", "by which the broker ends a job and nobody else");
  const devices::Fd page(memfd_create("sluice-kernel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!page) return sentence("memfd_create", "in which jobs are told their leases");
  if (fcntl(page.get(), F_ADD_SEALS, kLeaseSeals) < 0)
    return sentence("F_SEAL_FUTURE_WRITE", "by which jobs cannot write their own leases");
  return "";
}

}  // namespace sluice::daemon
