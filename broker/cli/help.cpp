// The pages themselves.
#include "broker/cli/help.h"

#include <cstdio>
#include <cstring>

namespace sluice::cli {
namespace {

constexpr char kOverview[] =
    R"(Sluice shares GPUs between programs that were never written to share.

usage: sluice COMMAND [options]

  run      start a program on a slice of a GPU (or on whole GPUs), waiting in line if need be
  status   who is on which GPU, who waits and why
  suspend  put a job's GPU memory away, to the host, until it is resumed
  resume   bring a suspended job back
  move     let a job go on on another GPU
  drain    let a GPU take no new jobs; undrain lets it again
  config   check the configuration, or show it
  reload   have the broker read its configuration again, and say what changed
  doctor   check driver, libraries and broker, and whether a program can be shared
  lab      measure shared against exclusive GPUs on this machine
  why      say why a job's GPU had nothing to do
  help     this page, or the page of a command: sluice help run
  --version  the version of this installation

examples:
  sluice run --memory 2GiB --sm 25 -- python3 train.py
  sluice run --class inference --memory 3GiB --sm 40 -- ./serve
  sluice run --soft 2 --class exclusive --gpus 2 -- sluice-train --steps 50
  sluice status

Without a GPU, --soft N behind run gives any of them N software GPUs.
)";

constexpr char kRun[] =
    R"(usage: sluice run [options] -- COMMAND [arguments]

Asks the broker for a slice of a GPU, waits in line until there is room, and becomes COMMAND. The program needs no
change; it sees its slice as its GPU. Nothing is printed when all is well.

what to ask for:
  --class CLASS       batch, debug, inference or exclusive: which job goes first, and which may be interrupted;
                      exclusive owns whole GPUs that no other job touches meanwhile. Default: batch where your profile
                      allows it, else the first class that it lists
  --memory SIZE       hard limit of device memory per GPU, e.g. 2G; going over it is the usual CUDA out-of-memory
                      error. Default: the class's memory_max in sluice.toml, else a quarter of the smallest GPU; cut,
                      with a line that says so, to what your profile allows and the GPU has
                      M, G: the same as MiB, GiB (1G = 1024 MiB). MB, GB are decimal (1GB = 1,000,000,000 bytes).
                      A number without a unit is refused
  --swap              the job's memory may be moved to the host while it is idle or others have their turn, and back to
                      the same addresses: it gets in where a GPU is oversold. Such memory cannot be shared with other
                      processes (CUDA IPC)
  --memory-min SIZE   with --swap: the part that stays promised when others need room (default: one context). Without,
                      all of --memory is, and a smaller part is refused
  --sm N              percent of GPU time, --sm 25 or --sm 25%, guaranteed whenever the job wants it. Guarantees on a GPU
                      add up to 100 at most: where none has so much left, the job waits (reason Share). In a class that
                      gives weights (sm in sluice.toml) it is a weight, and a line says so. Default: the class's
                      sm_percent; at most what your profile allows
  --weight N          no guarantee, and no wait for one: the job's part of the GPU time that the guarantees leave, N
                      against the weights of the others that want it
  --sm-mode MODE      best-effort (default: more when the GPU is idle), equal (1/n of those running), fixed (never more)
  --gpus K            so many GPUs (default 1, at most 8 for one job); they are granted and taken together
  --gpu G             this GPU: a UUID, the beginning of one, or an index of sluice status; again, or 0,1, for more.
                      CUDA_VISIBLE_DEVICES does not choose: it is set to what was granted, counted from 0
  --profile P         ask for this profile of sluice.toml instead of the one that fits your user and groups
  --name N            name shown to others (default: the command's)

how to wait:
  --timeout TIME      give up after e.g. 30s or 10m in line
  --no-wait           give up at once if there is no room
  --dry-run           say what would be granted, run nothing
  Ctrl-C leaves the line.

where:
  --soft N            use N software GPUs (1 to 16; one job has 8 of them at most): needs no GPU. Another N than before makes new
                      ones. The machine's broker has no such GPUs, so a private one is started, also where that one runs;
                      --socket or SLUICE_SOCKET names another
  --socket PATH       the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)
  Where no broker answers and the machine has no /etc/sluice/sluice.toml, a private one is started for this command and
  whatever it starts (a nested sluice run shares it); it ends by itself afterwards.

variables: SLUICE_SOCKET as --socket; SLUICE_MEMORY and SLUICE_SM make the slice smaller for one program. Any other
SLUICE_... is named, since nothing reads it.

A refusal says what your profile allows and, where the administrator has named it, whom to ask for more.

exit codes: the command's own; 124 no room in time, 125 Sluice failed or refused, 126 the command cannot be executed,
127 it is not found, or its interpreter or loader is not

examples:
  sluice run --memory 2GiB --sm 25 -- python3 train.py --epochs 3
  sluice run --class debug --memory 512MiB --timeout 10m -- ./vector_add
  sluice run --soft 1 --memory 256MiB -- ./vector_add
  sluice run --soft 2 --class exclusive --gpus 2 -- sluice-train --steps 50
)";

constexpr char kStatus[] =
    R"(usage: sluice status [--json] [--socket PATH]

One line per GPU (promised and held memory, who has the lease), one per job (memory held/limit, share, GPU time used, and
how much of its memory is out on the host), and the line: position, reason, which job is ahead, and for each what it waits for: the
sum that is full, its numbers, and which job has most of it, in use or idle. Jobs that do not run say why; one that has used no GPU for 5 s
or more reads idle.

  --json          everything the broker knows, for programs. Times end in _ns (CLOCK_MONOTONIC), sizes in _bytes;
                  names do not change between versions. Top level: broker, policy, gpus, tenants, ended (the last
                  hundred jobs, the last one first); each tenant has gpus and processes
  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

exit codes: 0, 1 no broker answers (waited for 10 s), 2 wrong usage

examples:
  sluice status
  sluice status --json | jq '.tenants[] | {name, state, gpus}'
)";

constexpr char kSuspend[] =
    R"(usage: sluice suspend [--socket PATH] JOB

Stops JOB, a number or a name of sluice status, and moves its GPU memory to the host, so that others have the GPU. Its
processes stay and wait at their next CUDA call; nothing is lost. It stays so until sluice resume. Of your own jobs, or of
anybody's as root.

Jobs started with --swap (or movable by their profile) are moved by Sluice; the memory of others as far as the driver can
check the program out. Where neither can be, the job is left as it was and the reason is said.

Once it is out, its quota and its guarantee are free for others. Its programs say on stderr that it is suspended.

  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

Waits until it is done and says how much Sluice moved, or how long the driver took. Ctrl-C ends the waiting, not the moving.

exit codes: 0 done, 1 refused or failed (and as it was before), 2 wrong usage

example:
  sluice run --swap --memory 2G --name train -- python3 train.py &
  sluice suspend train && sluice run --class debug -- ./quick_look; sluice resume train
)";

constexpr char kResume[] =
    R"(usage: sluice resume [--socket PATH] JOB

Brings a suspended JOB, a number or a name of sluice status, back onto its GPU: it waits, before all new requests, until its
quota and its guarantee are free there; its memory is copied back to where it was, and the job goes on. sluice status says
what it waits for. Of your own jobs, or of anybody's as root.

  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

Waits until it is done, and says on stderr what for. Ctrl-C ends the waiting, not the resuming. The time that it tells is that
of the way back; a wait of a second or more before it stands beside it.

exit codes: 0 done, 1 refused or failed (it stays suspended), 2 wrong usage

example:
  sluice resume train
)";

constexpr char kMove[] =
    R"(usage: sluice move [--socket PATH] JOB --gpu G

Lets JOB go on on another GPU: its processes are checked out by the driver, memory and all, and in again on G. Needs a driver
and a program that can be checked out (no managed memory, no CUDA IPC, a GPU of the same kind), and room on G for what the
job was promised. Of your own jobs, or of anybody's as root.

  --gpu G         an index or UUID of sluice status
  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

exit codes: 0 done, 1 refused or failed (and where it was before), 2 wrong usage

example:
  sluice move train --gpu 1
)";

constexpr char kDrain[] =
    R"(usage: sluice drain [--socket PATH] [--reason TEXT] [--until TIME] --gpu G[,G...]
       sluice undrain [--socket PATH] --gpu G[,G...]

drain: GPU G, an index or UUID of sluice status or a list of them (0,1), takes no new jobs; those that are on it stay until they end. A job that is
suspended there comes back only after undrain, also where another GPU is free: sluice resume waits and says so. For maintenance,
or to empty it for a job that owns it. undrain: it takes jobs again. For root, or whoever started a private broker. A broker
that keeps a journal ([broker] state) and is started anew still knows it; a reboot opens all GPUs again. sluice status says
"draining" while a job or the contexts of a suspended one are on it, "drained" when it is empty. Those that wait for it are told whose command it was, why and
until when.

  --reason TEXT   why, for those that wait; at most 95 bytes
  --until TIME    the GPU takes jobs again by itself then: 18:00, 2h, or "2026-11-28 08:00". A second drain replaces
                  reason and time of the first
  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

exit codes: 0 done, 1 refused, 2 wrong usage

examples:
  sluice drain --gpu 0 --reason "new fans" --until 18:00
  sluice undrain --gpu 0
)";

constexpr char kConfig[] =
    R"(usage: sluice config check [--socket PATH] [FILE]
       sluice config show [--origin] [FILE]

check: says every mistake of FILE with its line and a caret under the place; users and groups that this machine has not got; and
a file that sluiced would refuse because another user could change it. Where the broker runs with FILE, root is told what
a reload would change, and what only a new start would; of the machine's own file it is said where that could not be asked for.
Changes nothing.
show: the whole configuration, defaults included, as a file that could be used.

  --origin        behind each value: the line of FILE that sets it, or "default", and whether a reload changes it
  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)
  FILE            default: /etc/sluice/sluice.toml; show without one prints the built-in settings

exit codes: 0 good (perhaps with names that this machine has not got), 1 mistakes, 2 wrong usage

examples:
  sluice config show > sluice.toml
  sluice config check sluice.toml
  sluice config show --origin sluice.toml
)";

constexpr char kReload[] =
    R"(usage: sluice reload [--socket PATH]

Has the broker read its configuration again, waits until it has, and says what changed, or every mistake: then nothing
is changed. Keys that are read at start only are named as such. The same as systemctl reload sluiced, with an answer. For root,
or the user that the broker runs as.

  --socket PATH   the broker to ask (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

exit codes: 0 read, 1 refused or mistaken (nothing was changed), 2 wrong usage

example:
  sluice reload
)";

constexpr char kDoctor[] =
    R"(usage: sluice doctor [--soft] [--json] [--socket PATH] [PROGRAM]

Checks what Sluice needs, one line each with the fix where something is missing: driver library, NVML and GPUs, broker,
shim library, permission for BPF, CUDA toolkit. With PROGRAM: whether its CUDA calls can be shared. A program cannot be
reached that is static, gains privileges (setuid, setgid, file capabilities), is built for another machine or for musl, or
exports the driver's functions itself; scripts are followed to what runs them, and libraries to those that they need. What
a program does when it runs is not seen.

  --soft          check the software GPU instead of the machine's driver
  --json          the same for programs
  --socket PATH   the broker to look for (default: $SLUICE_SOCKET, else /run/sluice/sluiced.sock)

exit codes: 0, 1 something that is required is missing, or the broker hangs (waited for 10 s), 2 wrong usage

example:
  sluice doctor ./train
)";

struct Page {
  const char* command;
  const char* text;
};
constexpr Page kPages[] = {{"", kOverview},       {"run", kRun},       {"status", kStatus},
                           {"suspend", kSuspend}, {"resume", kResume}, {"move", kMove},
                           {"drain", kDrain},     {"undrain", kDrain}, {"doctor", kDoctor},
                           {"config", kConfig},   {"reload", kReload}};

}  // namespace

bool help_print(const char* command) {
  for (const Page& page : kPages) {
    if (std::strcmp(page.command, command) != 0) continue;
    std::fputs(page.text, stdout);
    return true;
  }
  return false;
}

}  // namespace sluice::cli
