// What goes between the nodes of a job and their rendezvous (train/rendezvous.h): the messages, in
// the order of a job. The first of a connection says what it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::train {

inline constexpr char kRendezvousMagic[] = "sluice-train rendezvous";
inline constexpr std::uint64_t kRendezvousVersion = 1;
/// Of a message: what all ranks' connections need to find each other is some KiB.
inline constexpr std::size_t kRendezvousBodyMax = 256 * 1024;
/// Of the first one, from somebody who has not said yet who that is.
inline constexpr std::size_t kRendezvousHelloMax = 32 * 1024;

enum class Note : std::uint8_t {
  kNodeHello = 1,  // launcher: magic, version, node, of how many, its job in words, shares a GPU
  kRankHello = 2,  // rank: magic, version, the job's token
  kWelcome = 3,    // all are there: the job's token, whether ranks share a GPU anywhere
  kRefused = 4,    // why; the connection ends
  kSet = 5,        // rank: key, value
  kGet = 6,        // rank: key; answered when there is a value
  kValue = 7,      // to a rank: the value
  kLines = 8,      // launcher: how far its ranks are; passed on to the others as it is
  kTrouble = 9,    // launcher: what has gone wrong; passed on with the node before it
  kDone = 10,      // launcher: its ranks have ended; 1 = well
  kVerdict = 11,   // to launchers: all nodes are done, or lost; 1 = well
  kBeat = 12,      // to launchers: the rendezvous lives
};

}  // namespace sluice::train
